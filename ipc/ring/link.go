package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sizes of the rings. They are part of the protocol: the hello repeats them and both sides insist.
const (
	SlotSize  = 1024
	SlotCount = 1024
	// RecordMax is the longest record; it takes 65 of the 1024 slots.
	RecordMax = 64 << 10

	slotHeader = 4
	chunkMax   = SlotSize - slotHeader
	slotsMax   = (RecordMax + chunkMax - 1) / chunkMax
	slotMask   = SlotCount - 1

	headerSize    = 4096
	tailOffset    = 0
	headOffset    = 128
	waitingOffset = 256
	regionSize    = headerSize + SlotSize*SlotCount
	memorySize    = 2 * regionSize

	flagMore = 1
)

// Errors of a link. Each is final: close the link.
var (
	ErrClosed   = errors.New("ring: link is closed")
	ErrIndex    = errors.New("ring: peer published an impossible position")
	ErrSlot     = errors.New("ring: peer published a malformed slot")
	ErrFault    = errors.New("ring: the shared memory cannot be accessed")
	ErrTooShort = errors.New("ring: record is longer than the receive buffer")
)

// direction is one ring as seen by one side.
type direction struct {
	memory []byte // regionSize bytes of the mapping
	// position is this side's own index, authoritative in private memory.
	position uint32
	// peer is the last believed index of the other side; it only moves forward.
	peer uint32
}

func (d *direction) word(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&d.memory[offset])) }

func (d *direction) slot(index uint32) []byte {
	at := headerSize + int(index&slotMask)*SlotSize
	return d.memory[at : at+SlotSize : at+SlotSize]
}

// Link is one end of a connection. The zero value is not usable; see Create and Accept.
type Link struct {
	conn   *net.UnixConn
	memory []byte
	closed atomic.Bool
	broken atomic.Pointer[error]

	sendMutex    sync.Mutex // guards outgoing against Close
	outgoing     direction
	notifyPeer   int       // eventfd the peer sleeps on
	notifier     *notifier // helper side only, see notifier
	receiveMutex sync.Mutex
	incoming     direction
	notifySelf   int // eventfd this side sleeps on
	private      [SlotSize]byte

	interrupt int        // private eventfd: ends Wait
	waitMutex sync.Mutex // held during Wait's poll, so that Close never closes under it

	descriptorMutex sync.Mutex // one SendDescriptor at a time
}

// Send publishes one record of at most RecordMax bytes. It reports false when the ring has no room
// for all of it (nothing is lost or sent in part; try again later) and when the link is broken or
// closed (see Err). It panics on a longer record: that is a bug of the caller. It does not allocate
// and does not block.
func (l *Link) Send(record []byte) bool {
	if len(record) > RecordMax {
		panic(fmt.Sprintf("ring: record of %d bytes, at most %d", len(record), RecordMax))
	}
	l.sendMutex.Lock()
	defer l.sendMutex.Unlock()
	if l.closed.Load() || l.broken.Load() != nil {
		return false
	}
	sent, wake, err := l.outgoing.send(record)
	if err != nil {
		l.fail(err)
		return false
	}
	if wake {
		l.wakePeer()
	}
	return sent
}

func (d *direction) send(record []byte) (sent, wake bool, err error) {
	defer catchFault(debug.SetPanicOnFault(true), &err)
	head := atomic.LoadUint32(d.word(headOffset))
	used := d.position - d.peer
	if head-d.peer > used { // the consumer went back, or past what was published
		return false, false, ErrIndex
	}
	d.peer = head
	used = d.position - head
	need := max(1, (len(record)+chunkMax-1)/chunkMax)
	if int(SlotCount-used) < need {
		return false, false, nil
	}
	for i := range need {
		chunk := record[:min(len(record), chunkMax)]
		record = record[len(chunk):]
		slot := d.slot(d.position + uint32(i))
		var flags uint16
		if i < need-1 {
			flags = flagMore
		}
		binary.LittleEndian.PutUint16(slot[0:], uint16(len(chunk)))
		binary.LittleEndian.PutUint16(slot[2:], flags)
		copy(slot[slotHeader:], chunk)
	}
	d.position += uint32(need)
	atomic.StoreUint32(d.word(tailOffset), d.position)
	wake = atomic.LoadUint32(d.word(waitingOffset)) != 0 && atomic.SwapUint32(d.word(waitingOffset), 0) != 0
	return true, wake, nil
}

// Receive copies the next record into dst and returns its length; ok is false when there is none
// now. After ok was false the peer writes to Notify's eventfd with its next record, so the caller
// drains until ok is false before it sleeps. Any error is final. It does not allocate or block.
func (l *Link) Receive(dst []byte) (n int, ok bool, err error) {
	l.receiveMutex.Lock()
	defer l.receiveMutex.Unlock()
	if l.closed.Load() {
		return 0, false, ErrClosed
	}
	if broken := l.broken.Load(); broken != nil {
		return 0, false, *broken
	}
	n, ok, err = l.incoming.receive(dst, &l.private)
	if err != nil {
		l.fail(err)
	}
	return n, ok, err
}

func (d *direction) receive(dst []byte, private *[SlotSize]byte) (n int, ok bool, err error) {
	defer catchFault(debug.SetPanicOnFault(true), &err)
	available, err := d.available()
	if available == 0 && err == nil {
		// Announce the sleep, then look again: whoever publishes after the second look sees the
		// announcement, whoever published before it is seen by it.
		atomic.StoreUint32(d.word(waitingOffset), 1)
		available, err = d.available()
	}
	if err != nil || available == 0 {
		return 0, false, err
	}
	for i := uint32(0); ; i++ {
		if i == available || i == slotsMax {
			return 0, false, ErrSlot
		}
		copy(private[:], d.slot(d.position+i)) // the only read of the slot
		length := int(binary.LittleEndian.Uint16(private[0:]))
		flags := binary.LittleEndian.Uint16(private[2:])
		more := flags&flagMore != 0
		if length > chunkMax || flags&^flagMore != 0 || more && length != chunkMax || i > 0 && length == 0 {
			return 0, false, ErrSlot
		}
		if n+length > RecordMax {
			return 0, false, ErrSlot
		}
		if n+length > len(dst) {
			return 0, false, ErrTooShort
		}
		n += copy(dst[n:], private[slotHeader:slotHeader+length])
		if !more {
			d.position += i + 1
			atomic.StoreUint32(d.word(headOffset), d.position)
			return n, true, nil
		}
	}
}

// available is how many slots the producer has published and this side has not consumed.
func (d *direction) available() (uint32, error) {
	tail := atomic.LoadUint32(d.word(tailOffset))
	known := d.peer - d.position // slots known to be published
	if tail-d.position > SlotCount || tail-d.position < known {
		return 0, ErrIndex
	}
	d.peer = tail
	return tail - d.position, nil
}

// catchFault turns a fault in the mapping into ErrFault. Other panics are bugs and go on.
func catchFault(previous bool, err *error) {
	debug.SetPanicOnFault(previous)
	if cause := recover(); cause != nil {
		if _, fault := cause.(interface{ Addr() uintptr }); !fault {
			panic(cause)
		}
		*err = ErrFault
	}
}

func (l *Link) fail(err error) {
	l.broken.CompareAndSwap(nil, &err)
}

// Err is why the link is broken, nil while it is not.
func (l *Link) Err() error {
	if broken := l.broken.Load(); broken != nil {
		return *broken
	}
	if l.closed.Load() {
		return ErrClosed
	}
	return nil
}

// Notify is the eventfd that becomes readable when records came in after Receive had none. It stays
// owned by the link.
func (l *Link) Notify() int { return l.notifySelf }

// Wait sleeps until Notify's eventfd is written, the time is over (negative: never), Interrupt or
// Close. It is for a helper's goroutine that has nothing else to do; a reactor watches Notify.
func (l *Link) Wait(timeout time.Duration) {
	milliseconds := -1
	if timeout >= 0 {
		milliseconds = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	l.waitMutex.Lock()
	defer l.waitMutex.Unlock()
	if l.closed.Load() {
		return
	}
	fds := [2]unix.PollFd{
		{Fd: int32(l.notifySelf), Events: unix.POLLIN},
		{Fd: int32(l.interrupt), Events: unix.POLLIN},
	}
	if _, err := unix.Poll(fds[:], milliseconds); err != nil || l.closed.Load() {
		return // EINTR: the caller loops anyway
	}
	if fds[0].Revents != 0 {
		drainEventfd(l.notifySelf)
	}
	if fds[1].Revents != 0 {
		drainEventfd(l.interrupt)
	}
}

// Interrupt ends a Wait at once, from any goroutine.
func (l *Link) Interrupt() {
	l.sendMutex.Lock() // Close closes the descriptor under this lock
	defer l.sendMutex.Unlock()
	if !l.closed.Load() {
		writeEventfd(l.interrupt)
	}
}

// WaitHangup blocks until the peer closes its end of the socket, or sends anything over it, which
// meshd may not. Descriptors sent along are discarded by the kernel, because a plain read takes none.
// It also returns after Close. It is for helpers; meshd calls ReceiveDescriptor instead.
func (l *Link) WaitHangup() {
	var stray [1]byte
	_, _ = l.conn.Read(stray[:])
}

// Close ends the link and the connection under it. It may be called twice and from any goroutine.
func (l *Link) Close() error {
	if !l.closed.CompareAndSwap(false, true) {
		return nil
	}
	err := l.conn.Close()
	writeEventfd(l.interrupt) // private, its counter cannot be full
	l.waitMutex.Lock()
	defer l.waitMutex.Unlock()
	l.sendMutex.Lock()
	defer l.sendMutex.Unlock()
	l.receiveMutex.Lock()
	defer l.receiveMutex.Unlock()
	if unmap := unix.Munmap(l.memory); err == nil {
		err = unmap
	}
	if l.notifier != nil {
		l.notifier.stop() // closes notifyPeer when its last write has ended
	} else {
		unix.Close(l.notifyPeer)
	}
	unix.Close(l.notifySelf)
	unix.Close(l.interrupt)
	return err
}

func (l *Link) wakePeer() {
	if l.notifier != nil {
		l.notifier.wake()
		return
	}
	writeEventfd(l.notifyPeer)
}
