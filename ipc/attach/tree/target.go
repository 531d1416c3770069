package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	linksMax = 40 // that lead from one name to the next, as in the kernel
	// pipePatience is how long somebody may take to open a pipe for reading that a file is to be written
	// into.
	pipePatience = 5 * time.Second
	pipeRetry    = 20 * time.Millisecond
)

// ReceiveInto writes the one file that an archive holds into what is open already: a pipe, a device.
func ReceiveInto(from io.Reader, file *os.File) (Result, error) {
	r := &receiver{into: file, rename: path.Base(file.Name()), parent: "."}
	return r.receive(from)
}

// OpenPipe opens a pipe for writing, by a function that opens it with flags, and waits for somebody who reads
// it.
func OpenPipe(open func(flags int) (*os.File, error)) (*os.File, error) {
	for end := time.Now().Add(pipePatience); ; time.Sleep(pipeRetry) {
		file, err := open(os.O_WRONLY | unix.O_NONBLOCK)
		if !errors.Is(err, unix.ENXIO) {
			return file, err
		}
		if time.Now().After(end) {
			return nil, errors.New("is a pipe that nobody reads")
		}
	}
}

// special opens the pipe or the device that the caller named as the target. It is nil where there is none.
func (r *receiver) special(name string) (*os.File, error) {
	if r.into != nil {
		if r.result.Entries > 1 {
			return nil, fmt.Errorf("the archive holds more than one file for %s", name)
		}
		return r.into, nil
	}
	info, err := r.root.Lstat(name)
	if err != nil || r.rename == "" || name != path.Join(r.parent, r.rename) {
		return nil, nil // below a directory the archive chose the name
	}
	open := func(flags int) (*os.File, error) {
		return r.root.OpenFile(name, flags|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	}
	var file *os.File
	switch mode := info.Mode(); {
	case mode&fs.ModeNamedPipe != 0:
		file, err = OpenPipe(open)
	case mode&fs.ModeDevice != 0:
		file, err = open(os.O_WRONLY)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, bare(err))
	}
	if now, err := file.Stat(); err != nil || !os.SameFile(info, now) {
		file.Close()
		return nil, fmt.Errorf("%s became something else", name)
	}
	return file, nil
}

// writeInto writes the content of a file into a pipe or a device, which keeps its mode and times.
func writeInto(special *os.File, name string, content io.Reader) error {
	if _, err := io.Copy(special, content); err != nil {
		return fmt.Errorf("write %s: %w", name, bare(err))
	}
	return nil
}

// kindOf names what is no regular file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// follow gives the name below root that a name means when its links are followed. What does not exist has its
// own name; a link to it is refused, as is one that leads out of root: replacing it would lose the link.
func follow(root *os.Root, name string) (string, error) {
	done, rest, links := ".", strings.Split(path.Clean(name), "/"), 0
	own := len(rest) + 1 // so many parts at the end of rest are not of a link
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch {
		case part == "." || part == "":
			continue
		case part == ".." && done == ".":
			return "", fmt.Errorf("%s leads out of where the copy may go", name)
		case part == "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && len(rest) >= own:
			return "", fmt.Errorf("%s is a link to %s, which does not exist: remove the link or make that file first", name,
				path.Join(append([]string{next}, rest...)...))
		case errors.Is(err, fs.ErrNotExist):
			return path.Join(append([]string{next}, rest...)...), nil
		case err != nil:
			return "", fmt.Errorf("%s: %w", name, bare(err))
		case info.Mode()&fs.ModeSymlink == 0:
			done = next
			continue
		}
		target, err := root.Readlink(next)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, bare(err))
		}
		if path.IsAbs(target) {
			return "", fmt.Errorf("%s is a link to %s, which leads out of where the copy may go", name, target)
		}
		if links++; links > linksMax {
			return "", fmt.Errorf("%s leads through more than %d links", name, linksMax)
		}
		own = min(own, len(rest))
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}
