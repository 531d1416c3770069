// Package logs reads the output of an instance as its shim keeps it: the last lines, what came since a
// time, and what comes, across the change from one file to the next.
//
// It knows nothing of the shim but its files. A shim that is killed, an instance that ends and starts
// again, a log that is rotated twice between two looks are all only gaps in time. It holds 64 KiB and four
// descriptors.
package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/attach"
	"colloid.net/runnerd/shim"
)

const (
	// Interval is how often a followed log is looked at.
	Interval = 100 * time.Millisecond
	// partialAfter is how long a line without an end is waited for before what is there of it is passed on.
	partialAfter = 300 * time.Millisecond
	// Never is a time, in Unix milliseconds, that no clock has: nothing that is kept is from then on.
	Never     = 1 << 48
	blockSize = 64 << 10
)

// Options of a reading.
type Options struct {
	TailLines             uint32 // the last lines that are kept, 0 = all
	SinceUnixMilliseconds int64  // not before this time, 0 = all
	Follow                bool
}

// Sink takes what is read. An error of it ends the reading and is returned.
type Sink interface {
	Line(line attach.Line) error
	// Present: what was kept has been passed on.
	Present() error
	// Idle is called at every look that found nothing new.
	Idle() error
}

// ErrGone: the instance does not exist any more. What it wrote last was passed on as far as it was still
// there.
var ErrGone = errors.New("the instance does not exist any more")

// Copy passes the output of the instance in directory on to a sink. Without Follow it returns at the end of
// what is kept.
func Copy(ctx context.Context, directory string, options Options, to Sink) error {
	r := &reader{directory: directory, to: to}
	defer r.closeAll()
	if err := r.openKept(options); err != nil {
		return err
	}
	for _, f := range r.kept {
		r.file = f
		for {
			n, err := r.read()
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
	}
	if !options.Follow {
		if len(r.line) == 0 {
			return nil
		}
		return r.flush(false)
	}
	if err := to.Present(); err != nil {
		return err
	}
	return r.follow(ctx)
}

// logFile is one of the two files, read from position on.
type logFile struct {
	file     *os.File
	times    *shim.Times // nil = none were there when it was looked last
	looked   time.Time
	position int64
	end      int64 // size at opening
	// The time of the bytes from position to until.
	milliseconds, until int64
}

func (f *logFile) close() {
	f.file.Close()
	f.times.Close()
}

func (f *logFile) inode() uint64 {
	info, err := f.file.Stat()
	if err != nil {
		return 0
	}
	return inodeOf(info)
}

func inodeOf(info os.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}

type reader struct {
	directory string
	to        Sink
	kept      []*logFile // older first
	file      *logFile   // the one being read
	buffer    [blockSize]byte
	line      []byte // begun and not passed on
	lineTime  int64
	begun     bool      // a part of the line was passed on: what follows has its time
	lineSince time.Time // when its last bytes came
}

func (r *reader) closeAll() {
	for _, f := range r.kept {
		f.close()
	}
}

func (r *reader) open(name string) (*logFile, error) {
	path := filepath.Join(r.directory, name)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := &logFile{file: file, times: shim.OpenTimes(r.directory, file)}
	if info, err := file.Stat(); err == nil {
		f.end = info.Size()
	}
	return f, nil
}

// openKept opens both files and finds where to begin.
func (r *reader) openKept(options Options) error {
	current, err := r.open(shim.FileLog)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written yet
	}
	if err != nil {
		return err
	}
	r.kept = []*logFile{current}
	// If it is rotated right now, the older one is the one that is open already.
	if old, err := r.open(shim.FileLogOld); err == nil {
		if old.inode() == current.inode() {
			old.close()
		} else {
			r.kept = []*logFile{old, current}
		}
	}
	if since := options.SinceUnixMilliseconds; since > 0 {
		for _, f := range r.kept {
			if since >= Never {
				f.position = f.end // also where no times are kept
				continue
			}
			f.position = f.lineStart(f.times.Since(since, f.end))
		}
	}
	if options.TailLines > 0 {
		return r.tail(int(options.TailLines))
	}
	return nil
}

// lineStart gives the first beginning of a line at or after a position.
func (f *logFile) lineStart(position int64) int64 {
	if position == 0 || position >= f.end {
		return position
	}
	var block [4096]byte
	for position--; position < f.end; {
		n, err := f.file.ReadAt(block[:], position)
		if i := bytes.IndexByte(block[:n], '\n'); i >= 0 {
			return position + int64(i) + 1
		}
		position += int64(n)
		if err != nil {
			break
		}
	}
	return min(position, f.end)
}

// tail moves the positions so that at most count lines are left.
func (r *reader) tail(count int) error {
	for i := len(r.kept) - 1; i >= 0; i-- {
		f := r.kept[i]
		if count == 0 {
			f.position = f.end
			continue
		}
		position, left, err := f.back(count, r.buffer[:])
		if err != nil {
			return err
		}
		f.position, count = max(f.position, position), left
	}
	return nil
}

// back finds where the last count lines of a file begin, and how many are missing. A newline at the very end
// belongs to the last line.
func (f *logFile) back(count int, block []byte) (position int64, missing int, err error) {
	for end := f.end; end > f.position; {
		start := max(f.position, end-int64(len(block)))
		n, err := f.file.ReadAt(block[:end-start], start)
		if err != nil && err != io.EOF || n == 0 {
			return 0, 0, err
		}
		for i := n - 1; i >= 0; i-- {
			at := start + int64(i)
			if block[i] != '\n' || at == f.end-1 {
				continue
			}
			if count--; count == 0 {
				return at + 1, 0, nil
			}
		}
		end = start
	}
	if f.end > f.position {
		count-- // the first line has no newline before it
	}
	return f.position, max(0, count), nil
}

// read passes on one block of the file, and reports how much there was.
func (r *reader) read() (int, error) {
	f := r.file
	n, err := f.file.ReadAt(r.buffer[:], f.position)
	if err != nil && err != io.EOF {
		return 0, err
	}
	rest := r.buffer[:n]
	for len(rest) > 0 {
		if len(r.line) == 0 && !r.begun {
			r.lineTime = r.timeOf(f.position)
		}
		i := bytes.IndexByte(rest, '\n')
		piece := rest[:min(len(rest), attach.LineMax-len(r.line))]
		if i >= 0 && i <= len(piece) {
			piece = rest[:i]
		} else {
			i = -1
		}
		r.line = append(r.line, piece...)
		taken := len(piece)
		switch {
		case i >= 0:
			taken++
			err = r.flush(false)
		case len(r.line) == attach.LineMax:
			err = r.flush(true)
		default:
			err = nil
		}
		if err != nil {
			return n, err
		}
		rest = rest[taken:]
		f.position += int64(taken)
		r.lineSince = time.Now()
	}
	return n, nil
}

func (r *reader) timeOf(position int64) int64 {
	f := r.file
	if f.times == nil && time.Since(f.looked) >= Interval {
		// A shim makes the log first and then its stamps, and renames one after the other: they may be there by now.
		f.looked, f.times = time.Now(), shim.OpenTimes(r.directory, f.file)
	}
	if position >= f.until || f.milliseconds == 0 {
		f.milliseconds, f.until = f.times.At(position)
		if f.until == 1<<63-1 { // the last stamp so far: ask again
			f.until = position + 1
		}
	}
	return f.milliseconds
}

// flush passes the line on. A whole line may be empty; part of one may not.
func (r *reader) flush(partial bool) error {
	if len(r.line) == 0 && partial {
		return nil
	}
	r.begun = partial
	err := r.to.Line(attach.Line{UnixMilliseconds: r.lineTime, Partial: partial, Text: r.line})
	r.line = r.line[:0]
	return err
}

// follow passes on what comes, from file to file.
func (r *reader) follow(ctx context.Context) error {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		n, err := r.advance()
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if len(r.line) > 0 && time.Since(r.lineSince) >= partialAfter {
			if err := r.flush(true); err != nil {
				return err
			}
		}
		if err := r.to.Idle(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// advance reads on, in the next file if this one is at its end and another has its name.
func (r *reader) advance() (int, error) {
	if r.file != nil {
		if info, err := r.file.file.Stat(); err == nil && info.Size() < r.file.position {
			r.file.position = 0 // it could not be renamed and was emptied
		}
		if n, err := r.read(); n > 0 || err != nil {
			return n, err
		}
	}
	info, err := os.Lstat(filepath.Join(r.directory, shim.FileLog))
	if err != nil {
		if _, err := os.Lstat(r.directory); errors.Is(err, fs.ErrNotExist) {
			return 0, errors.Join(r.flush(true), ErrGone)
		}
		return 0, nil // between two names, or nothing yet
	}
	if r.file != nil && inodeOf(info) == r.file.inode() {
		return 0, nil
	}
	if r.file != nil { // what came between the last look and the new name
		if n, err := r.read(); n > 0 || err != nil {
			return n, err
		}
	}
	next, err := r.open(shim.FileLog)
	if err != nil {
		return 0, nil
	}
	if old, err := r.open(shim.FileLogOld); err == nil { // rotated twice since: that one was never seen
		if r.file == nil || old.inode() != r.file.inode() && old.inode() != next.inode() {
			next.close()
			next = old
		} else {
			old.close()
		}
	}
	if r.file != nil {
		r.file.close()
	}
	r.kept, r.file = []*logFile{next}, next
	return 1, nil
}
