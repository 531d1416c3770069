package crdt

// The arena hands out blocks of bytes by 32-bit reference. A page of 8 KiB holds blocks of one size
// class; larger blocks get a page number of their own with a longer slice behind it.

const (
	pageBits   = 13
	pageSize   = 1 << pageBits
	unitBits   = 3 // references count in units of 8 bytes
	offsetBits = pageBits - unitBits
	pageCount  = 1 << (32 - offsetBits)

	classStep    = 16
	blockSizeMin = 48
	blockSizeMax = 4096
	chunkPages   = 128 // pages got from the Go heap at once when the arena is large

	spanClass = ^uint16(0)
	noBlock   = ^uint16(0)
)

// reference names a block: page number, then offset in units. Zero is no block.
type reference uint32

type page struct {
	data     []byte
	class    uint16
	live     uint16 // blocks in use
	free     uint16 // first free block, chained through the first two bytes of each
	fresh    uint16 // blocks from here on were never used
	previous uint32 // pages of the class that have room
	next     uint32
}

type arena struct {
	pages     []page // page 0 is never used
	spare     []uint32
	numbers   []uint32 // page numbers without memory
	withRoom  [len(classSizes)]uint32
	chunk     []byte
	bytes     int // memory held
	bytesMax  int
	chunkNext int
}

var classSizes = [...]uint16{
	48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256,
	288, 320, 352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 832, 896, 960, 1024,
	1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048, 2304, 2560, 2720, 3072, 3584, 4096,
}

// classOf maps a size in steps of classStep to its class.
var classOf = func() (table [blockSizeMax/classStep + 1]uint8) {
	class := 0
	for step := range table {
		for int(classSizes[class]) < step*classStep {
			class++
		}
		table[step] = uint8(class)
	}
	return table
}()

func classIndex(size int) int { return int(classOf[(size+classStep-1)/classStep]) }

// blockSize is the capacity that a block for size bytes really has.
func blockSize(size int) int {
	if size > blockSizeMax {
		return (size + pageSize - 1) &^ (pageSize - 1)
	}
	return int(classSizes[classIndex(size)])
}

func (a *arena) initialise(bytesMax int) {
	a.pages = append(a.pages, page{})
	a.bytesMax = bytesMax
	a.chunkNext = 2
}

// data returns the memory from the reference to the end of its page.
func (a *arena) data(ref reference) []byte {
	return a.pages[ref>>offsetBits].data[(ref&(1<<offsetBits-1))<<unitBits:]
}

// capacity returns the size of the block behind ref.
func (a *arena) capacity(ref reference) int {
	p := &a.pages[ref>>offsetBits]
	if p.class == spanClass {
		return len(p.data)
	}
	return int(classSizes[p.class])
}

// allocate returns a block of at least size bytes, or 0 at the memory limit.
func (a *arena) allocate(size int) reference {
	if size > blockSizeMax {
		return a.allocateSpan(size)
	}
	class := classIndex(size)
	number := a.withRoom[class]
	if number == 0 {
		number = a.takePage()
		if number == 0 {
			return 0
		}
		p := &a.pages[number]
		p.class, p.live, p.free, p.fresh = uint16(class), 0, noBlock, 0
		a.link(number)
	}
	p := &a.pages[number]
	bytes := int(classSizes[class])
	block := p.free
	if block != noBlock {
		raw := p.data[int(block)*bytes:]
		p.free = uint16(raw[0]) | uint16(raw[1])<<8
	} else {
		block = p.fresh
		p.fresh++
	}
	p.live++
	if p.free == noBlock && (int(p.fresh)+1)*bytes > pageSize {
		a.unlink(number)
	}
	return reference(number<<offsetBits | uint32(int(block)*bytes>>unitBits))
}

func (a *arena) allocateSpan(size int) reference {
	bytes := blockSize(size)
	number := a.takeNumber(bytes)
	if number == 0 {
		return 0
	}
	a.pages[number] = page{data: make([]byte, bytes), class: spanClass, live: 1}
	return reference(number << offsetBits)
}

// release gives the block back.
func (a *arena) release(ref reference) {
	number := uint32(ref) >> offsetBits
	p := &a.pages[number]
	if p.live == 0 {
		panic("crdt: block released twice")
	}
	p.live--
	if p.class == spanClass {
		a.bytes -= len(p.data)
		a.pages[number] = page{}
		a.numbers = append(a.numbers, number)
		return
	}
	bytes := int(classSizes[p.class])
	hadRoom := p.free != noBlock || (int(p.fresh)+1)*bytes <= pageSize
	if p.live == 0 {
		if hadRoom {
			a.unlink(number)
		}
		a.spare = append(a.spare, number)
		return
	}
	offset := int(ref&(1<<offsetBits-1)) << unitBits
	p.data[offset], p.data[offset+1] = byte(p.free), byte(p.free>>8)
	p.free = uint16(offset / bytes)
	if !hadRoom {
		a.link(number)
	}
}

// takePage returns an empty page with memory, or 0 at the limit.
func (a *arena) takePage() uint32 {
	if n := len(a.spare); n > 0 {
		number := a.spare[n-1]
		a.spare = a.spare[:n-1]
		return number
	}
	number := a.takeNumber(pageSize)
	if number == 0 {
		return 0
	}
	if len(a.chunk) == 0 {
		a.chunk = make([]byte, a.chunkNext*pageSize)
		a.chunkNext = min(2*a.chunkNext, chunkPages)
	}
	a.pages[number].data = a.chunk[:pageSize:pageSize]
	a.chunk = a.chunk[pageSize:]
	return number
}

func (a *arena) takeNumber(bytes int) uint32 {
	if a.bytes+bytes > a.bytesMax {
		return 0
	}
	if n := len(a.numbers); n > 0 {
		number := a.numbers[n-1]
		a.numbers = a.numbers[:n-1]
		a.bytes += bytes
		return number
	}
	if len(a.pages) == pageCount {
		return 0
	}
	a.bytes += bytes
	a.pages = append(a.pages, page{})
	return uint32(len(a.pages) - 1)
}

func (a *arena) link(number uint32) {
	p := &a.pages[number]
	p.previous, p.next = 0, a.withRoom[p.class]
	if p.next != 0 {
		a.pages[p.next].previous = number
	}
	a.withRoom[p.class] = number
}

func (a *arena) unlink(number uint32) {
	p := &a.pages[number]
	if p.previous != 0 {
		a.pages[p.previous].next = p.next
	} else {
		a.withRoom[p.class] = p.next
	}
	if p.next != 0 {
		a.pages[p.next].previous = p.previous
	}
}
