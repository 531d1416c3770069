package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

const (
	descriptorFrameSize = 8
	// descriptorPatience is how long a peer may leave the socket full before the link fails.
	descriptorPatience = time.Second
	// UnclaimedMax bounds the descriptors that came and that nobody has claimed.
	UnclaimedMax = 64
)

// Errors of descriptors beside the rings. Each is final: close the link.
var (
	ErrDescriptorFrame = errors.New("ring: peer sent something else than 8 bytes with one descriptor")
	ErrDescriptorFlood = fmt.Errorf("ring: peer passed more than %d descriptors that nobody asked for", UnclaimedMax)
	ErrDescriptorTag   = errors.New("ring: peer passed two descriptors with the same tag")
)

// SendDescriptor passes one descriptor to the peer over the socket of the handshake; only helpers do.
// tag is what the peer chose for it. The caller still owns file and may close it at once. It waits up
// to one second for room in the socket, so it must not run on a goroutine that others wait for; any
// error fails the link.
func (l *Link) SendDescriptor(tag uint64, file *os.File) error {
	l.descriptorMutex.Lock()
	defer l.descriptorMutex.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	var frame [descriptorFrameSize]byte
	binary.BigEndian.PutUint64(frame[:], tag)
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("ring: descriptor to pass: %w", err)
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) { // Fd would make the file blocking
		rights := unix.UnixRights(int(fd))
		_ = l.conn.SetWriteDeadline(time.Now().Add(descriptorPatience))
		n, control, err := l.conn.WriteMsgUnix(frame[:], rights, nil)
		if err == nil && (n != len(frame) || control != len(rights)) {
			err = io.ErrShortWrite
		}
		sendErr = err
	})
	if err != nil {
		return fmt.Errorf("ring: descriptor to pass: %w", err) // of the file: nothing was sent
	}
	if sendErr != nil {
		sendErr = fmt.Errorf("ring: pass descriptor: %w", sendErr)
		l.fail(sendErr)
		l.Interrupt()
	}
	return sendErr
}

// ReceiveDescriptor waits for the next descriptor of the peer, who may take as long as it likes. Any
// error ends the link: io.EOF is a hang-up, others are a breach. It runs on a goroutine of its own and
// returns after Close. The caller owns the file.
func (l *Link) ReceiveDescriptor() (tag uint64, file *os.File, err error) {
	var frame [descriptorFrameSize]byte
	control := make([]byte, unix.CmsgSpace(4*2)) // room for one too many, so that it is noticed
	n, controlLength, flags, _, err := l.conn.ReadMsgUnix(frame[:], control)
	if err != nil || n == 0 {
		if err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || l.closed.Load() {
			err = io.EOF
		}
		l.fail(ErrClosed)
		return 0, nil, err
	}
	descriptors, err := passed.Descriptors(control[:controlLength])
	if err != nil || n != descriptorFrameSize || len(descriptors) != 1 || flags&unix.MSG_CTRUNC != 0 {
		passed.Close(descriptors)
		l.fail(ErrDescriptorFrame)
		return 0, nil, ErrDescriptorFrame
	}
	return binary.BigEndian.Uint64(frame[:]), os.NewFile(uintptr(descriptors[0]), "passed"), nil
}

// Descriptors brings descriptors together with those who asked for them, in whichever order they
// come. It is safe for several goroutines.
type Descriptors struct {
	mutex  sync.Mutex
	closed bool
	came   map[uint64]*os.File
	wanted map[uint64]func(*os.File)
	// abandoned are tags whose descriptor may be on its way still; the oldest of too many is forgotten.
	abandoned []uint64
}

// abandonedMax bounds the tags that are remembered: more than a cell ever asks for at a time.
const abandonedMax = 512

// Put files a descriptor that came, or hands it to who waits for it. On an error the file is closed and
// the link must be: the peer sends what nobody asked for.
func (d *Descriptors) Put(tag uint64, file *os.File) error {
	claim, err := d.put(tag, file)
	if err != nil {
		file.Close()
		return err
	}
	if claim != nil {
		claim(file)
	}
	return nil
}

func (d *Descriptors) put(tag uint64, file *os.File) (func(*os.File), error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if claim, waits := d.wanted[tag]; waits {
		delete(d.wanted, tag)
		return claim, nil
	}
	if i := slices.Index(d.abandoned, tag); i >= 0 {
		d.abandoned = slices.Delete(d.abandoned, i, i+1)
		return func(file *os.File) { file.Close() }, nil
	}
	if _, twice := d.came[tag]; twice {
		return nil, ErrDescriptorTag
	}
	if len(d.came) >= UnclaimedMax {
		return nil, ErrDescriptorFlood
	}
	if d.came == nil {
		d.came = map[uint64]*os.File{}
	}
	d.came[tag] = file
	return nil, nil
}

// Claim calls take with the descriptor of that tag: at once if it is here, else on the goroutine of Put
// when it comes, or never. take owns the file. A second claim of a tag replaces the first.
func (d *Descriptors) Claim(tag uint64, take func(*os.File)) {
	d.mutex.Lock()
	file := d.came[tag]
	delete(d.came, tag)
	if file == nil && !d.closed {
		if d.wanted == nil {
			d.wanted = map[uint64]func(*os.File){}
		}
		d.wanted[tag] = take
	}
	d.mutex.Unlock()
	if file != nil {
		take(file)
	}
}

// Abandon forgets a claim, and closes the descriptor if it is here, or when it comes.
func (d *Descriptors) Abandon(tag uint64) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if _, waits := d.wanted[tag]; waits {
		delete(d.wanted, tag)
		if len(d.abandoned) >= abandonedMax {
			d.abandoned = slices.Delete(d.abandoned, 0, 1)
		}
		d.abandoned = append(d.abandoned, tag)
	}
	if file := d.came[tag]; file != nil {
		delete(d.came, tag)
		file.Close()
	}
}

// Close closes what nobody claimed. Claims that wait are forgotten.
func (d *Descriptors) Close() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.closed = true
	for _, file := range d.came {
		file.Close()
	}
	d.came, d.wanted = nil, nil
}
