package reactor

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface of io_uring, as far as it is used here (include/uapi/linux/io_uring.h).
const (
	opPollAdd       = 6
	opSendmsg       = 9
	opRecvmsg       = 10
	opTimeout       = 11
	opTimeoutRemove = 12
	opAsyncCancel   = 14
	opRead          = 22
	opSendZC        = 47 // never used (F129): it came with 6.0, as multishot receive did

	entryBufferSelect = 1 << 5
	entrySkipSuccess  = 1 << 6
	receiveMultishot  = 1 << 1 // in ioprio
	timeoutAbsolute   = 1 << 0
	timeoutUpdate     = 1 << 1
	timeoutBoottime   = 1 << 2
	cancelAll         = 1 << 0
	cancelAny         = 1 << 2

	completionBuffer = 1 << 0
	completionMore   = 1 << 1
	bufferShift      = 16

	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupDisabled     = 1 << 6
	setupCoopTaskrun  = 1 << 8
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featureSingleMap   = 1 << 0
	featureNoDrop      = 1 << 1
	featureSkipSuccess = 1 << 11

	enterGetEvents = 1 << 0

	registerProbe       = 8
	registerEnableRings = 12
	registerBufferRing  = 22

	offsetSubmission  = 0
	offsetCompletion  = 0x8000000
	offsetSubmissions = 0x10000000
)

type ringOffsets struct {
	head, tail, mask, entries, a, b, c, d uint32
	_                                     uint64
}

// ringParameters is struct io_uring_params.
type ringParameters struct {
	submissionEntries, completionEntries, flags, _, _, features, _ uint32
	_                                                              [3]uint32
	submission, completion                                         ringOffsets
}

// submission is struct io_uring_sqe.
type submission struct {
	opcode      uint8
	flags       uint8
	priority    uint16
	fd          int32
	offset      uint64
	address     uint64
	length      uint32
	operation   uint32 // flags of the operation
	userData    uint64
	bufferGroup uint16
	_           uint16
	_           uint32
	_           [2]uint64
}

// completion is struct io_uring_cqe.
type completion struct {
	userData uint64
	result   int32
	flags    uint32
}

const (
	_ = uint(unsafe.Sizeof(ringParameters{})-120) + uint(120-unsafe.Sizeof(ringParameters{}))
	_ = uint(unsafe.Sizeof(submission{})-64) + uint(64-unsafe.Sizeof(submission{}))
)

// ring is one io_uring instance. Everything but its creation belongs to one thread.
type ring struct {
	fd       int
	mode     string
	features uint32

	rings, completionRing, entries []byte

	submissionHead, submissionTail *uint32
	submissions                    []submission
	tail                           uint32 // as filled here; published by enter

	completionHead, completionTail *uint32
	completions                    []completion
}

// ringMode is one rung of the ladder of F124.
type ringMode struct {
	flags uint32
	name  string
}

var ringModes = []ringMode{
	{setupSingleIssuer | setupDeferTaskrun, "io_uring (defer-taskrun)"}, // Linux 6.1
	{setupSingleIssuer | setupCoopTaskrun, "io_uring (single-issuer)"},  // Linux 6.0
	{setupCoopTaskrun, "io_uring (coop-taskrun)"},                       // Linux 5.19
	{0, "io_uring (plain)"}, // 5.10, for setupDisabled
}

func ringSetup(entries uint32, p *ringParameters) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// openRing climbs down the ladder until the kernel agrees. The ring is created disabled: with
// SINGLE_ISSUER the thread that enables it becomes its only user, so a refusal shows in Open while
// the ring belongs to the thread of Run (F127 b).
func openRing(entries uint32, setup func(uint32, *ringParameters) (int, error)) (*ring, error) {
	var err error
	for _, mode := range ringModes {
		p := ringParameters{
			flags:             mode.flags | setupDisabled | setupCQSize | setupClamp,
			completionEntries: 2 * entries, // F126
		}
		var fd int
		if fd, err = setup(entries, &p); err == unix.EINVAL {
			continue
		} else if err != nil {
			return nil, err
		}
		r := &ring{fd: fd, mode: mode.name, features: p.features}
		if err = r.mapRings(&p); err != nil {
			r.free()
			return nil, err
		}
		return r, nil
	}
	return nil, fmt.Errorf("no set of setup flags is accepted: %w", err)
}

func (r *ring) mapRings(p *ringParameters) (err error) {
	if p.features&featureSingleMap == 0 || p.features&featureNoDrop == 0 {
		return fmt.Errorf("features %#x of this kernel do not suffice, Linux 6.0 is needed", p.features)
	}
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	size := max(int(p.submission.c+p.submissionEntries*4), int(p.completion.b+p.completionEntries*16))
	if r.rings, err = unix.Mmap(r.fd, offsetSubmission, size, protection, flags); err != nil {
		return fmt.Errorf("mmap of the rings: %w", err)
	}
	r.entries, err = unix.Mmap(r.fd, offsetSubmissions, int(p.submissionEntries)*64, protection, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap of the submission entries: %w", err)
	}
	word := func(offset uint32) *uint32 { return &view[uint32](r.rings, int(offset), 1)[0] }
	r.submissionHead, r.submissionTail = word(p.submission.head), word(p.submission.tail)
	r.submissions = view[submission](r.entries, 0, int(p.submissionEntries))
	for i := range p.submissionEntries {
		*word(p.submission.c + 4*i) = i // the index array never changes
	}
	r.completionHead, r.completionTail = word(p.completion.head), word(p.completion.tail)
	r.completions = view[completion](r.rings, int(p.completion.b), int(p.completionEntries))
	return nil
}

func (r *ring) free() {
	if r.entries != nil {
		_ = unix.Munmap(r.entries)
	}
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	unix.Close(r.fd)
}

func (r *ring) register(operation uint32, argument unsafe.Pointer, count uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), uintptr(operation),
		uintptr(argument), uintptr(count), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// supports asks whether the kernel knows an operation.
func (r *ring) supports(operation int) bool {
	const probeMax = 64
	var probe struct {
		last, count uint8
		_           [14]byte
		operations  [probeMax]struct {
			operation, _ uint8
			flags        uint16
			_            uint32
		}
	}
	if r.register(registerProbe, unsafe.Pointer(&probe), probeMax) != nil {
		return false
	}
	return operation < int(probe.count) && probe.operations[operation].flags&1 != 0
}

// room is how many entries can still be filled before enter.
func (r *ring) room() int {
	return len(r.submissions) - int(r.tail-atomic.LoadUint32(r.submissionHead))
}

// next returns a cleared entry. The caller keeps within room.
func (r *ring) next() *submission {
	if r.room() == 0 {
		panic("reactor: submission queue overrun")
	}
	entry := &r.submissions[r.tail&uint32(len(r.submissions)-1)]
	r.tail++
	*entry = submission{}
	return entry
}

// enter submits what was filled and, with wait, sleeps until there is a completion. It goes through
// Syscall6, never RawSyscall: a raw call that blocks stops the garbage collector and with it the
// whole process (F127 a).
func (r *ring) enter(wait bool) unix.Errno {
	atomic.StoreUint32(r.submissionTail, r.tail)
	submit := r.tail - atomic.LoadUint32(r.submissionHead)
	var least uintptr
	if wait {
		least = 1
	}
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), least,
		enterGetEvents, 0, 0)
	return errno
}

// submitted reports whether the kernel has taken every entry.
func (r *ring) submitted() bool { return atomic.LoadUint32(r.submissionHead) == r.tail }

// ready reports whether completions wait.
func (r *ring) ready() bool {
	return atomic.LoadUint32(r.completionTail) != atomic.LoadUint32(r.completionHead)
}

// take returns the oldest completion.
func (r *ring) take() (completion, bool) {
	head := atomic.LoadUint32(r.completionHead)
	if head == atomic.LoadUint32(r.completionTail) {
		return completion{}, false
	}
	c := r.completions[head&uint32(len(r.completions)-1)]
	atomic.StoreUint32(r.completionHead, head+1)
	return c, true
}
