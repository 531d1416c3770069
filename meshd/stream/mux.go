package stream

import (
	"math/rand/v2"
	"slices"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of one cell.
const (
	// StreamsMax bounds the streams of a cell, PeerStreamsMax those that one other cell has opened here.
	StreamsMax     = 256
	PeerStreamsMax = 64
	// MemoryMax is the default bound on the buffers of all streams together.
	MemoryMax = 64 << 20
	// tickBudget is how many datagrams one Tick sends at most; then what was received has its turn.
	tickBudget = 256
	// turn is how many of them one stream sends before the next of its class.
	turn          = 32
	tombstonesMax = 256
	tombstoneLife = 8 * rtoMax
	// acceptRate bounds how many streams others may open here per second: each costs two scalar
	// multiplications.
	acceptRate  = 200
	acceptBurst = 200
)

// Options of New.
type Options struct {
	Self wire.CellID
	// Secret is derived from the cluster's key for this purpose alone.
	Secret  [32]byte
	Random  *rand.Rand
	Entropy func([]byte)
	// Send seals and sends a message of this cell to the next hop. The payload is valid during the call.
	Send func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte)
	// SendOpen passes on a STREAM_OPEN of another cell under its name, sealed by this cell.
	SendOpen func(to, originator wire.CellID, nonce uint32, payload []byte)
	// Forward sends a sealed datagram of another cell as it is.
	Forward func(to wire.CellID, sealed []byte)
	// Route names the next hop of the attempt-th way to a target, best first, beginning again after the last
	// one; 0 if there is none at all.
	Route func(target wire.CellID, attempt int) wire.CellID
	// NextHop chooses where a relay passes a stream on, 0 if it knows no way; what it says is checked (F150).
	NextHop func(target, source, previous wire.CellID) wire.CellID
	// Home reports whether a cell keeps contact to a target that cannot be reached otherwise.
	Home func(target, cell wire.CellID) bool
	// Member reports whether a cell is a member in service.
	Member func(id wire.CellID) bool
	// Incoming hears of each stream that another cell opens here, or this cell to itself. It calls Accept or
	// Reject, at once or within acceptLimit. nil refuses all.
	Incoming func(s *Stream)

	// AES: this processor has instructions for AES and for the multiplication of GCM.
	AES bool

	StreamsMax int // 0 = StreamsMax
	MemoryMax  int // bytes; 0 = MemoryMax
	Relays     RelayLimits
}

// Stats count what happened since New.
type Stats struct {
	WrittenBytes, ReceivedBytes            uint64
	Sent, Received                         uint64 // datagrams
	Retransmitted, Timeouts, Duplicates    uint64
	Acknowledgements, Malformed, Forged    uint64
	NoRoom, Unknown, Refused, RelayOffers  uint64
	Rerouted, Improved                     uint64
	Relayed, RelayedBytes, RelayRefused    uint64
	RelayLimited, RelayLoops, RelayHopsMax uint64
}

type streamKey struct {
	peer wire.CellID
	id   uint32
}

// tombstone remembers a stream that ended, for the other end's CLOSE that comes again, and so that its
// STREAM_OPEN does not begin another one.
type tombstone struct {
	key   streamKey
	via   wire.CellID
	other [publicSize]byte
	cum   uint32 // 0: it did not end in order
	until clock.Instant
}

// Mux holds all streams of a cell, and those that it relays. It belongs to one goroutine.
type Mux struct {
	options Options
	pool    pool
	streams map[streamKey]*Stream // never iterated
	list    []*Stream             // in order of class, then of age
	relays  relayTable
	nextID  uint32
	drawn   bool
	now     clock.Instant
	kicked  bool
	starved bool // a writer waits for memory
	stale   bool // the cached deadline is wrong
	cached  clock.Instant
	stats   Stats

	events   []*Stream // that have pending calls
	arrivals []*Stream // Incoming that the service has not heard of
	turnFrom [classes]int

	tombstones []tombstone // a ring
	graves     int
	accepts    float64 // tokens
	acceptsAt  clock.Instant

	payload   []byte
	extension []byte
	tag       [tagSize]byte
	ciphers   uint8 // what this cell offers and takes
}

// classes order the streams on the way out: people first, then text, then bulk.
const classes = 3

func classOf(kind wire.StreamType) int {
	switch kind {
	case wire.StreamExec, wire.StreamInvoke:
		return 0
	case wire.StreamLogs, wire.StreamMetrics:
		return 1
	}
	return 2
}

// New returns an empty Mux.
func New(options Options) *Mux {
	if !options.Self.Valid() || options.Random == nil || options.Entropy == nil || options.Send == nil ||
		options.Route == nil {
		panic("stream: incomplete options")
	}
	if options.StreamsMax == 0 {
		options.StreamsMax = StreamsMax
	}
	if options.MemoryMax == 0 {
		options.MemoryMax = MemoryMax
	}
	m := &Mux{
		options: options,
		pool:    pool{max: options.MemoryMax / chunkSize},
		streams: make(map[streamKey]*Stream),
		payload: make([]byte, 0, wire.PayloadMax), extension: make([]byte, 0, 256),
		accepts: acceptBurst, stale: true,
	}
	if options.AES {
		m.ciphers = cipherAES
	}
	m.relays.init(options.Relays)
	return m
}

// Stats returns the counters.
func (m *Mux) Stats() Stats { return m.stats }

// Len returns how many streams there are; both ends of one within the cell count.
func (m *Mux) Len() int { return len(m.list) }

// MemoryUsed returns the bytes of buffers in use.
func (m *Mux) MemoryUsed() int { return m.pool.used() * chunkSize }

// Each calls yield for every stream until it returns false.
func (m *Mux) Each(yield func(*Stream) bool) {
	for _, s := range m.list {
		if !yield(s) {
			return
		}
	}
}

func (m *Mux) kick() { m.kicked = true }

// low is what names the destination of a datagram in its header: relays tell by it apart which of several
// streams with one number it belongs to.
func low(id wire.CellID) uint32 { return uint32(id) }

func (m *Mux) send(s *Stream, kind wire.Type, payload []byte) {
	m.stats.Sent++
	m.options.Send(s.via, kind, low(s.peer), payload)
}

func (m *Mux) sendReset(via, peer wire.CellID, id uint32, reason Reason) {
	m.stats.Sent++
	m.options.Send(via, wire.TypeStreamClose, low(peer), wire.AppendStreamClose(m.payload[:0],
		wire.StreamClose{Stream: id, Reset: true, Reason: uint8(reason)}))
}

// Open starts a stream to a workload or volume of another cell, or of this one. The endpoint hears Accepted,
// or Closed with the reason. grant may be nil.
func (m *Mux) Open(target wire.CellID, kind wire.StreamType, name, grant []byte, endpoint Endpoint) (*Stream, error) {
	room := 1
	if target == m.options.Self {
		room = 2
	}
	if len(m.list)+room > m.options.StreamsMax {
		return nil, ErrStreams
	}
	if !target.Valid() || kind == 0 || endpoint == nil || !wire.ValidName(name) || len(grant) > 255 {
		return nil, ErrName
	}
	s := &Stream{
		mux: m, peer: target, kind: kind, class: classOf(kind), initiator: true,
		name: slices.Clone(name), grant: slices.Clone(grant), state: Opening, endpoint: endpoint,
	}
	s.out.init()
	s.in.init()
	s.control.init(m.options.Random.IntN(len(cycle)))
	if target == m.options.Self {
		s.via = target
		m.openLocal(s)
		return s, nil
	}
	s.id = m.drawID(target)
	s.keys.draw(m.options.Entropy)
	s.keys.offered = m.ciphers
	m.add(s)
	m.kick()
	return s, nil
}

// drawID finds a number that no stream between the two cells has. Bit 31 says which of the two opened it,
// so that both ends never choose the same (F149).
func (m *Mux) drawID(target wire.CellID) uint32 {
	if !m.drawn { // not with New: a cell that opens no stream draws nothing
		m.nextID, m.drawn = m.options.Random.Uint32(), true
	}
	for {
		m.nextID++
		id := m.nextID &^ (1 << 31)
		if m.options.Self > target {
			id |= 1 << 31
		}
		if m.streams[streamKey{target, id}] == nil {
			return id
		}
	}
}

func (m *Mux) add(s *Stream) {
	m.streams[streamKey{s.peer, s.id}] = s
	at := len(m.list)
	for at > 0 && m.list[at-1].class > s.class {
		at--
	}
	m.list = slices.Insert(m.list, at, s)
	m.adaptGentle()
}

// remove takes a stream off the network. Its reader may still hold what has arrived.
func (m *Mux) remove(s *Stream) {
	s.out.release(&m.pool)
	if at := slices.Index(m.list, s); at >= 0 {
		m.list = slices.Delete(m.list, at, at+1)
	}
	m.stale = true
	if s.pair != nil {
		return
	}
	if m.streams[streamKey{s.peer, s.id}] == s {
		delete(m.streams, streamKey{s.peer, s.id})
	}
	grave := tombstone{
		key: streamKey{s.peer, s.id}, via: s.via, other: s.keys.other, until: m.now.Add(tombstoneLife),
	}
	if s.in.fin != 0 && s.in.cum == s.in.fin {
		grave.cum = s.in.cum
	}
	m.bury(grave)
	m.adaptGentle()
}

// adaptGentle makes bulk streams careful while people share the cell's links with them.
func (m *Mux) adaptGentle() {
	people := len(m.list) > 0 && m.list[0].class == 0
	for _, s := range m.list {
		s.control.gentle = people && s.class > 0
	}
}

func (m *Mux) bury(t tombstone) {
	if len(m.tombstones) < tombstonesMax {
		m.tombstones = append(m.tombstones, t)
		return
	}
	m.tombstones[m.graves] = t
	m.graves = (m.graves + 1) % tombstonesMax
}

// Suspect asks the other end of all streams that were opened to a cell for a sign of life at once: the cell
// seems to have been restarted. If it was, it knows nothing of them and says so.
func (m *Mux) Suspect(now clock.Instant, peer wire.CellID) {
	m.now, m.stale = now, true
	for _, s := range m.list {
		if s.peer == peer && s.pair == nil {
			s.suspect(now)
		}
	}
}

// Shutdown resets all streams, because the cell stops or changes its cluster. The endpoints hear it at once.
func (m *Mux) Shutdown(reason Reason) {
	for len(m.list) > 0 {
		m.list[len(m.list)-1].Reset(reason)
	}
	m.deliver()
}

// extension returns the value of one extension, nil if it is not there.
func extension(raw []byte, tag uint8) []byte {
	for {
		found, value, rest, ok := wire.NextExtension(raw)
		if !ok || found > tag {
			return nil
		}
		if found == tag {
			return value
		}
		raw = rest
	}
}

// deliver makes the calls that are owed. A call may lead to more of them; what goes on without end, such as
// two ends within the cell that talk to each other, goes on in the next Tick.
func (m *Mux) deliver() {
	for range 8 {
		for i := 0; i < len(m.arrivals); i++ {
			if s := m.arrivals[i]; s.state == Incoming {
				if m.options.Incoming == nil {
					s.Reject(ReasonKind)
				} else {
					m.options.Incoming(s)
				}
			}
		}
		clear(m.arrivals)
		m.arrivals = m.arrivals[:0]
		if len(m.events) == 0 {
			return
		}
		count := len(m.events)
		for i := 0; i < count; i++ {
			m.events[i].call()
		}
		rest := copy(m.events, m.events[count:])
		clear(m.events[rest:])
		m.events = m.events[:rest]
	}
	m.kick()
}

// call makes the calls that one endpoint is owed.
func (s *Stream) call() {
	owed := s.pending
	s.pending = 0
	if s.endpoint == nil {
		return // it was never accepted
	}
	if owed&pendingAccepted != 0 {
		s.endpoint.Accepted(s)
	}
	if owed&pendingReadable != 0 && s.reason == ReasonNone {
		s.endpoint.Readable(s)
	}
	if owed&pendingWritable != 0 && (s.state.writable() || s.state == Opening) {
		s.wantWrite = false
		s.endpoint.Writable(s)
	}
	if owed&pendingClosed != 0 {
		s.endpoint.Closed(s, s.reason)
	}
}
