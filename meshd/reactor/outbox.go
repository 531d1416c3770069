package reactor

import (
	"net/netip"
	"unsafe"

	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

// outbox collects datagrams with everything the kernel needs to send them, in mapped memory: a
// header array in the form of sendmmsg, an array of iovecs, and a slot per datagram for address,
// control message and bytes. Both drivers fill it from the front and empty it as a whole, so an
// idle cell touches only its first page.
//
// Datagrams of one size that go the same way one after the other share a header: a run. The kernel
// takes it as one and cuts it up as late as it can (UDP segmentation offload, F129), which is what
// makes streams fast. The last datagram of a run may be shorter.
type outbox struct {
	family   int
	memory   []byte
	headers  []multiHeader
	vectors  []unix.Iovec
	slots    []outSlot
	first    []int32 // slot with which each run begins
	used     int     // slots filled since the last reset
	runs     int     // headers filled since then
	epoch    uint64  // number of resets
	ready    int     // slots whose pointers were set once
	segments bool    // the kernel knows UDP_SEGMENT

	// The run that may still grow.
	to    netip.AddrPort
	local netip.Addr
	size  int // of its datagrams, 0 = none may follow
	total int
}

// Bounds of a run: the kernel's own are 64 (128 since 6.9) segments and one IP packet.
const (
	runSegmentsMax = 64
	runBytesMax    = 64000
	// runSizeMin keeps small datagrams apart: nothing is gained, and more is lost with one.
	runSizeMin = 512
)

// multiHeader is struct mmsghdr.
type multiHeader struct {
	header unix.Msghdr
	length uint32
	_      uint32
}

type outSlot struct {
	name    [32]byte
	control [sendControlSize]byte
	payload [wire.DatagramMax]byte
}

func newOutbox(family, count int) (*outbox, error) {
	headers := count * int(unsafe.Sizeof(multiHeader{}))
	vectors := count * int(unsafe.Sizeof(unix.Iovec{}))
	memory, err := mapMemory(headers + vectors + count*int(unsafe.Sizeof(outSlot{})))
	if err != nil {
		return nil, err
	}
	return &outbox{
		family:  family,
		memory:  memory,
		headers: view[multiHeader](memory, 0, count),
		vectors: view[unix.Iovec](memory, headers, count),
		slots:   view[outSlot](memory, headers+vectors, count),
		first:   make([]int32, count),
	}, nil
}

func (o *outbox) full() bool { return o.used == len(o.slots) }

// put fills the next slot and reports false when this socket can never send that. The outbox must
// not be full. fresh says that the datagram begins a run, so that there is one more header to send.
func (o *outbox) put(local netip.Addr, to netip.AddrPort, datagram []byte) (fresh, ok bool) {
	if len(datagram) > wire.DatagramMax {
		return false, false
	}
	slot := &o.slots[o.used]
	if o.used == o.ready {
		o.vectors[o.used].Base = &slot.payload[0]
		o.ready++
	}
	if o.extends(local, to, len(datagram)) {
		o.extend(slot, datagram)
		return false, true
	}
	size := putName(slot.name[:], o.family, to)
	if size == 0 {
		return false, false
	}
	header := &o.headers[o.runs].header
	header.Name, header.Iov, header.Iovlen = &slot.name[0], &o.vectors[o.used], 1
	header.Namelen = uint32(size)
	header.Control, header.Controllen = nil, 0
	if local.IsValid() {
		if size := putControl(slot.control[:], o.family, local); size > 0 {
			header.Control = &slot.control[0]
			header.SetControllen(size)
		}
	}
	o.vectors[o.used].SetLen(copy(slot.payload[:], datagram))
	o.first[o.runs] = int32(o.used)
	o.to, o.local, o.size, o.total = to, local, len(datagram), len(datagram)
	o.used++
	o.runs++
	return true, true
}

// extends reports whether a datagram may join the last run.
func (o *outbox) extends(local netip.Addr, to netip.AddrPort, size int) bool {
	return o.segments && size <= o.size && o.size >= runSizeMin && o.total+size <= runBytesMax &&
		o.headers[o.runs-1].header.Iovlen < runSegmentsMax && to == o.to && local == o.local
}

func (o *outbox) extend(slot *outSlot, datagram []byte) {
	header := &o.headers[o.runs-1].header
	if header.Iovlen == 1 {
		begin := &o.slots[o.first[o.runs-1]]
		used := int(header.Controllen)
		used += putSegment(begin.control[used:], o.size)
		header.Control = &begin.control[0]
		header.SetControllen(used)
	}
	header.Iovlen++
	o.vectors[o.used].SetLen(copy(slot.payload[:], datagram))
	o.total += len(datagram)
	if len(datagram) < o.size {
		o.size = 0
	}
	o.used++
}

// close ends the last run: the kernel may have its header already.
func (o *outbox) close() { o.size = 0 }

// headerAddress is where the kernel finds the message header of a run.
func (o *outbox) headerAddress(run int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&o.headers[run])))
}

// destination reads back where a run is addressed to.
func (o *outbox) destination(run int) netip.AddrPort {
	to, _ := parseName(o.slots[o.first[run]].name[:o.headers[run].header.Namelen])
	return to
}

func (o *outbox) reset() {
	o.used, o.runs, o.size = 0, 0, 0
	o.epoch++
}

// slotBits leaves room for receiveBuffersMax and as many send slots.
const slotBits = 16

// ticket names a run of the present epoch.
func (o *outbox) ticket(run int) uint64 { return o.epoch<<slotBits&^kindMask | uint64(run) }

// runOf finds the run of a ticket of the epoch before this one, as long as neither its header nor its
// first slot has been filled again; -1 otherwise.
func (o *outbox) runOf(ticket uint64) int {
	run := int(ticket & (1<<slotBits - 1))
	if ticket>>slotBits != (o.epoch-1)&(^kindMask>>slotBits) || run < o.runs || run >= o.ready ||
		int(o.first[run]) < o.used {
		return -1
	}
	return run
}

func (o *outbox) free() { unmapMemory(o.memory) }
