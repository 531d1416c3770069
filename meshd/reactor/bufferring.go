package reactor

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// bufferRing hands receive buffers to the kernel. It starts small and doubles when the kernel ran
// out, so that the memory of an idle cell stays small while a burst finds up to the full number.
type bufferRing struct {
	memory  []byte // buffers
	ring    []byte // entries of 16 bytes
	stride  int    // bytes of one buffer
	size    int    // a power of two: how many there may be
	given   int    // how many the kernel ever got
	tail    uint16
	entries []bufferEntry
}

// bufferEntry is struct io_uring_buf. The last word of the first entry is the ring's tail.
type bufferEntry struct {
	address uint64
	length  uint32
	id      uint16
	tail    uint16
}

// bufferRegistration is struct io_uring_buf_reg.
type bufferRegistration struct {
	address uint64
	entries uint32
	group   uint16
	flags   uint16
	_       [3]uint64
}

// How many buffers the kernel has at first. Large ones take the place of several.
const (
	buffersFirst          = 64
	coalescedBuffersFirst = 16
)

func newBufferRing(r *ring, count, first, stride int) (*bufferRing, error) {
	b := &bufferRing{size: 1 << bits.Len(uint(count-1)), stride: stride}
	var err error
	if b.memory, err = mapMemory(b.size * stride); err != nil {
		return nil, err
	}
	if b.ring, err = mapMemory(b.size * int(unsafe.Sizeof(bufferEntry{}))); err != nil {
		b.free()
		return nil, err
	}
	b.entries = view[bufferEntry](b.ring, 0, b.size)
	registration := bufferRegistration{address: address(&b.ring[0]), entries: uint32(b.size)}
	if err := r.register(registerBufferRing, unsafe.Pointer(&registration), 1); err != nil {
		b.free()
		return nil, fmt.Errorf("provided buffer ring (Linux 5.19): %w", err)
	}
	b.grow(min(first, b.size))
	return b, nil
}

// grow gives the kernel count buffers it never had, as far as there are any.
func (b *bufferRing) grow(count int) {
	for range min(count, b.size-b.given) {
		b.give(uint16(b.given))
		b.given++
	}
	b.publish()
}

// buffer is the memory of one buffer.
func (b *bufferRing) buffer(id uint16) []byte {
	if int(id) >= b.given {
		panic(fmt.Sprintf("reactor: kernel used buffer %d of %d", id, b.given))
	}
	start := int(id) * b.stride
	return b.memory[start : start+b.stride : start+b.stride]
}

// give returns a buffer to the kernel, which sees it after publish.
func (b *bufferRing) give(id uint16) {
	entry := &b.entries[int(b.tail)&(b.size-1)]
	entry.address = address(&b.memory[int(id)*b.stride])
	entry.length = uint32(b.stride)
	entry.id = id
	b.tail++
}

// publish stores the tail with release semantics. Go has no 16-bit atomics, so the tail goes with
// the id beside it, which belongs to entry 0 and is written by this thread only.
func (b *bufferRing) publish() {
	word := (*uint32)(unsafe.Pointer(&b.entries[0].id))
	value := uint32(b.entries[0].id) | uint32(b.tail)<<16
	if bigEndian {
		value = uint32(b.entries[0].id)<<16 | uint32(b.tail)
	}
	atomic.StoreUint32(word, value)
}

var bigEndian = func() bool { x := uint16(1); return *(*byte)(unsafe.Pointer(&x)) == 0 }()

func (b *bufferRing) free() {
	unmapMemory(b.memory)
	unmapMemory(b.ring)
}
