package shim

import (
	"encoding/binary"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Beside each log file lies one that says when what of it was written, so that the log itself is the output
// and nothing else. It is a header, the magic and the inode of the log that it belongs to, then stamps: offset
// in the log and Unix milliseconds, eight bytes each, big endian, both never falling.
const (
	// StampInterval is the least time between two stamps: what comes sooner has the time of the last.
	StampInterval = 100 * time.Millisecond
	// TimesFileMax bounds the file; the log is rotated when it is full (F147).
	TimesFileMax = 2 << 20
	StampSize    = 16
	timesMagic   = "cltimes1"
)

// timesFile is the one being written. Every failure leaves a log without times, never one without output.
type timesFile struct {
	file *os.File
	size int64
	last int64 // Unix milliseconds of the last stamp
}

func inodeOf(file *os.File) uint64 {
	info, err := file.Stat()
	if err != nil {
		return 0
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}

// open goes on with the file if it belongs to log, and begins it otherwise.
func (t *timesFile) open(path string, log *os.File) {
	*t = timesFile{}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	times, size, err := openTimes(file, log)
	if err == nil {
		t.file, t.size = file, size
		if n := times.count; n > 0 {
			_, t.last, _ = times.stamp(n - 1)
		}
		return
	}
	head := binary.BigEndian.AppendUint64([]byte(timesMagic), inodeOf(log))
	if file.Truncate(0) == nil {
		if _, err := file.WriteAt(head, 0); err == nil {
			t.file, t.size = file, StampSize
			return
		}
	}
	file.Close()
}

func (t *timesFile) full() bool { return t.file != nil && t.size+StampSize > TimesFileMax }

// stamp notes that what is written to the log at offset is written now.
func (t *timesFile) stamp(now time.Time, offset int64) {
	milliseconds := now.UnixMilli()
	if t.file == nil || t.full() || t.size > StampSize && milliseconds < t.last+StampInterval.Milliseconds() {
		return
	}
	stamp := binary.BigEndian.AppendUint64(nil, uint64(offset))
	stamp = binary.BigEndian.AppendUint64(stamp, uint64(milliseconds))
	if _, err := t.file.WriteAt(stamp, t.size); err != nil {
		t.close()
		return
	}
	t.size += StampSize
	t.last = milliseconds
}

func (t *timesFile) close() {
	if t.file != nil {
		t.file.Close()
	}
	*t = timesFile{}
}

// Times reads the stamps of a log while they are written. It is for one goroutine.
type Times struct {
	file  *os.File
	count int64 // stamps known to be there
}

// OpenTimes opens the stamps of an open log file, nil where there are none that belong to it: they have just
// been renamed, or were never written.
func OpenTimes(directory string, log *os.File) *Times {
	for _, name := range []string{FileTimes, FileTimesOld} {
		file, err := os.OpenFile(directory+"/"+name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if times, _, err := openTimes(file, log); err == nil {
			return times
		}
		file.Close()
	}
	return nil
}

func openTimes(file, log *os.File) (times *Times, size int64, err error) {
	var head [StampSize]byte
	if _, err := file.ReadAt(head[:], 0); err != nil {
		return nil, 0, err
	}
	if string(head[:8]) != timesMagic || binary.BigEndian.Uint64(head[8:]) != inodeOf(log) {
		return nil, 0, io.ErrUnexpectedEOF
	}
	t := &Times{file: file}
	t.grow()
	return t, (t.count + 1) * StampSize, nil
}

func (t *Times) grow() {
	if info, err := t.file.Stat(); err == nil {
		t.count = max(t.count, min(info.Size(), TimesFileMax)/StampSize-1)
	}
}

func (t *Times) stamp(n int64) (offset, milliseconds int64, ok bool) {
	var stamp [StampSize]byte
	if _, err := t.file.ReadAt(stamp[:], (n+1)*StampSize); err != nil {
		return 0, 0, false
	}
	return int64(binary.BigEndian.Uint64(stamp[:])), int64(binary.BigEndian.Uint64(stamp[8:])), true
}

// search finds the first stamp for which found says yes, by halving.
func (t *Times) search(found func(offset, milliseconds int64) bool) int64 {
	t.grow()
	low, high := int64(0), t.count
	for low < high {
		middle := (low + high) / 2
		offset, milliseconds, ok := t.stamp(middle)
		if !ok || found(offset, milliseconds) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// At gives the Unix milliseconds at which the byte at offset was written, 0 if that is not known, and the
// offset up to which the answer holds.
func (t *Times) At(offset int64) (milliseconds, until int64) {
	const farthest = 1<<63 - 1
	if t == nil {
		return 0, farthest
	}
	next := t.search(func(at, _ int64) bool { return at > offset })
	until = farthest
	if at, _, ok := t.stamp(next); ok && next < t.count {
		until = at
	}
	if next > 0 {
		_, milliseconds, _ = t.stamp(next - 1)
	}
	return max(0, milliseconds), until
}

// Since gives the offset of the first byte that may have been written at a time or later; end if there is
// none.
func (t *Times) Since(milliseconds, end int64) int64 {
	if t == nil {
		return 0
	}
	next := t.search(func(_, at int64) bool { return at+StampInterval.Milliseconds() > milliseconds })
	if offset, _, ok := t.stamp(next); ok && next < t.count {
		return min(max(0, offset), end)
	}
	return end
}

// Close closes the file.
func (t *Times) Close() {
	if t != nil {
		t.file.Close()
	}
}
