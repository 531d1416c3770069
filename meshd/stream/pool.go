package stream

// chunkSize holds the ciphertext of one datagram.
const chunkSize = 1152

// chunk is the memory of one datagram's data, sealed or plain.
type chunk [chunkSize]byte

// slabChunks are allocated together, so that a growing stream does not allocate per datagram.
const slabChunks = 32

// pool lends chunks to all streams of a cell. At its bound get gives nothing: writers wait, and what
// arrives is dropped as a network would.
type pool struct {
	free      []*chunk
	allocated int
	max       int // in chunks
}

func (p *pool) get() *chunk {
	if len(p.free) == 0 {
		if p.allocated+slabChunks > p.max {
			return nil
		}
		slab := new([slabChunks]chunk)
		for i := range slab {
			p.free = append(p.free, &slab[i])
		}
		p.allocated += slabChunks
	}
	last := len(p.free) - 1
	c := p.free[last]
	p.free = p.free[:last]
	return c
}

// put takes a chunk back. When all are back, a large stock is given to the garbage collector.
func (p *pool) put(c *chunk) {
	p.free = append(p.free, c)
	if len(p.free) == p.allocated && p.allocated > stockMax {
		p.free, p.allocated = nil, 0
	}
}

// stockMax is how many unused chunks are kept for the next stream, 1.2 MB.
const stockMax = 1024

func (p *pool) used() int { return p.allocated - len(p.free) }

// available is how many more chunks can be had.
func (p *pool) available() int { return p.max - p.used() }

// share reports whether a stream that holds so many chunks may have one more. The last eighth is for streams
// that hold less than their share, so that readers who stopped cannot stop the others.
func (m *Mux) share(s *Stream) bool {
	available := m.pool.available()
	if available > m.pool.max/8 {
		return true
	}
	held := int(s.out.end-s.out.una) + int(s.in.top+1-s.in.read)
	return available > 0 && held < m.pool.max/(4*len(m.list)+4)
}
