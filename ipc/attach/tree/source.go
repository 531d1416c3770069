package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// peek is how much of a file is read before its size is believed: those of /proc and /sys say nothing of
	// what is in them, and are read to their end, up to pseudoMax.
	peek      = 64 << 10
	pseudoMax = 16 << 20
)

// LeftOut counts what a copy does not take along.
type LeftOut struct {
	Special int // sockets, pipes and devices
	Links   int // links that lead out of what is copied
}

// String is for people; it is empty if nothing was left out.
func (l LeftOut) String() string {
	var parts []string
	if l.Special > 0 {
		parts = append(parts, fmt.Sprintf("%d sockets, pipes or devices", l.Special))
	}
	if l.Links > 0 {
		parts = append(parts, fmt.Sprintf("%d links that lead out of what is copied", l.Links))
	}
	if len(parts) == 0 {
		return ""
	}
	return "left out: " + strings.Join(parts, ", ")
}

// Send writes what lies at name below root as an archive; base is the name it has in there. A link at name
// itself is followed, within root. Sockets, pipes, devices, and links that lead out, are left out of a
// directory and counted; to send nothing else is an error.
func Send(to io.Writer, root *os.Root, name, base string) (LeftOut, error) {
	s := &sender{root: root, archive: tar.NewWriter(to), top: base}
	if err := s.entry(name, base, 0); err != nil {
		return s.left, err
	}
	return s.left, s.archive.Close()
}

type sender struct {
	root    *os.Root
	archive *tar.Writer
	top     string // name of the first entry
	entries int
	left    LeftOut
}

func (s *sender) entry(name, as string, depth int) error {
	if s.entries++; s.entries > EntriesMax || depth > DepthMax {
		return fmt.Errorf("%s: more than %d entries or %d levels", name, EntriesMax, DepthMax)
	}
	look := s.root.Lstat
	if depth == 0 {
		look = s.root.Stat
	}
	info, err := look(name)
	if err != nil {
		return s.unreadable(name, depth, err)
	}
	header := &tar.Header{Name: as, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return s.directory(header, name, as, depth)
	case mode.IsRegular():
		return s.file(header, name, depth)
	case mode&fs.ModeSymlink != 0:
		return s.link(header, name, as)
	case depth == 0:
		return fmt.Errorf("%s is a socket, a pipe or a device: only files, directories and links are copied", name)
	}
	s.left.Special++
	return nil
}

// unreadable is the reason in an error about a name; for the link that was named itself, where it leads.
func (s *sender) unreadable(name string, depth int, err error) error {
	if depth == 0 {
		if target, linkErr := s.root.Readlink(name); linkErr == nil && errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is a link to %s, which does not exist", name, target)
		} else if linkErr == nil {
			return fmt.Errorf("%s is a link to %s, which leads out of where files may be copied from", name, target)
		}
	}
	return fmt.Errorf("%s: %w", name, bare(err))
}

func (s *sender) link(header *tar.Header, name, as string) error {
	target, err := s.root.Readlink(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	if leadsOut(as, target, s.top) {
		s.left.Links++
		return nil
	}
	header.Typeflag, header.Linkname = tar.TypeSymlink, target
	return s.archive.WriteHeader(header)
}

// leadsOut reports whether a link, by the name it has in an archive, leads out of what the archive holds, or
// may: behind another link, .. is not what it looks like.
func leadsOut(as, target, top string) bool {
	down := false
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && down {
			return true
		}
		down = down || part != ".." && part != "." && part != ""
	}
	inside := path.Join(path.Dir(as), target)
	return path.IsAbs(target) || !filepath.IsLocal(inside) || top != "" && !within(inside, top)
}

func (s *sender) directory(header *tar.Header, name, as string, depth int) error {
	header.Typeflag, header.Name = tar.TypeDir, as+"/"
	if err := s.archive.WriteHeader(header); err != nil {
		return err
	}
	directory, err := s.root.Open(name)
	if err != nil {
		return s.unreadable(name, depth, err)
	}
	list, err := directory.ReadDir(nestedMax + 1)
	directory.Close()
	if err != nil && err != io.EOF {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	if len(list) > nestedMax {
		return fmt.Errorf("%s has more than %d entries", name, nestedMax)
	}
	for _, inside := range list {
		err := s.entry(path.Join(name, inside.Name()), path.Join(as, inside.Name()), depth+1)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it went away meanwhile
			return err
		}
	}
	return nil
}

// file writes as many bytes as the file had when it was opened, or, of one that says nothing of its size,
// all.
func (s *sender) file(header *tar.Header, name string, depth int) error {
	flags := os.O_RDONLY | unix.O_NONBLOCK
	if depth > 0 {
		flags |= unix.O_NOFOLLOW
	}
	file, err := s.root.OpenFile(name, flags, 0)
	if err != nil {
		return s.unreadable(name, depth, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file any more", name)
	}
	var begin bytes.Buffer
	n, err := io.Copy(&begin, io.LimitReader(file, peek))
	if err == nil && n == peek && info.Size() <= n {
		n, err = io.Copy(&begin, io.LimitReader(file, pseudoMax+1-peek))
		n += peek
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, bare(err))
	}
	header.Typeflag, header.Size = tar.TypeReg, n
	switch {
	case n > pseudoMax:
		return fmt.Errorf("%s says that it has %d bytes and has more than %d: not copied", name, info.Size(), pseudoMax)
	case n == peek:
		header.Size = max(n, info.Size())
	}
	if err := s.archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := begin.WriteTo(s.archive); err != nil {
		return err
	}
	rest := header.Size - n
	if n, err = io.Copy(s.archive, io.LimitReader(file, rest)); err == nil && n < rest {
		err = fmt.Errorf("%s became shorter while it was copied", name)
	}
	return err
}
