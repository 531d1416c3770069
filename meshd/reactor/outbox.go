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
type outbox struct {
	family  int
	memory  []byte
	headers []multiHeader
	vectors []unix.Iovec
	slots   []outSlot
	used    int    // slots filled since the last reset
	epoch   uint64 // number of resets
	ready   int    // slots whose pointers were set once
}

// multiHeader is struct mmsghdr.
type multiHeader struct {
	header unix.Msghdr
	length uint32
	_      uint32
}

type outSlot struct {
	name    [32]byte
	control [sendControlSize]byte
	_       [8]byte
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
	}, nil
}

func (o *outbox) full() bool { return o.used == len(o.slots) }

// put fills the next slot and reports false when this socket can never send that. The outbox must
// not be full.
func (o *outbox) put(local netip.Addr, to netip.AddrPort, datagram []byte) bool {
	if len(datagram) > wire.DatagramMax {
		return false
	}
	slot, header := &o.slots[o.used], &o.headers[o.used].header
	if o.used == o.ready {
		header.Name, header.Iov, header.Iovlen = &slot.name[0], &o.vectors[o.used], 1
		o.vectors[o.used].Base = &slot.payload[0]
		o.ready++
	}
	size := putName(slot.name[:], o.family, to)
	if size == 0 {
		return false
	}
	header.Namelen = uint32(size)
	header.Control, header.Controllen = nil, 0
	if local.IsValid() {
		if size := putControl(slot.control[:], o.family, local); size > 0 {
			header.Control = &slot.control[0]
			header.SetControllen(size)
		}
	}
	o.vectors[o.used].SetLen(copy(slot.payload[:], datagram))
	o.used++
	return true
}

// headerAddress is where the kernel finds the message header of slot i.
func (o *outbox) headerAddress(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&o.headers[i]))) }

// destination reads back where slot i is addressed to.
func (o *outbox) destination(i int) netip.AddrPort {
	to, _ := parseName(o.slots[i].name[:o.headers[i].header.Namelen])
	return to
}

func (o *outbox) reset() {
	o.used = 0
	o.epoch++
}

// slotBits leaves room for receiveBuffersMax and as many send slots.
const slotBits = 16

// ticket names slot i of the present epoch.
func (o *outbox) ticket(i int) uint64 { return o.epoch<<slotBits&^kindMask | uint64(i) }

// destinationOf is the destination of a ticket of the epoch before this one, as long as its slot has
// not been filled again; the zero value otherwise.
func (o *outbox) destinationOf(ticket uint64) netip.AddrPort {
	i := int(ticket & (1<<slotBits - 1))
	if ticket>>slotBits != (o.epoch-1)&(^kindMask>>slotBits) || i < o.used || i >= o.ready {
		return netip.AddrPort{}
	}
	return o.destination(i)
}

func (o *outbox) free() { unmapMemory(o.memory) }
