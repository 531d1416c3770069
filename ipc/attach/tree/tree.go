// Package tree writes files and directories as a tar archive and makes them again from one, where whoever
// made the archive, or owns the directory, may be hostile. It runs on both ends of a copy: in the instance,
// as the workload's user, and on the machine of the operator.
//
// Both ends work below an os.Root, which no name and no link leaves. From an archive come regular files,
// directories, and links that stay inside what is copied; anything else ends the copy. Owners are not kept,
// nor are bits beyond the permissions.
//
// Limits: EntriesMax entries, BytesMax bytes, DepthMax levels, names of NameMax bytes.
package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Bounds of one copy.
const (
	EntriesMax = 1 << 20
	BytesMax   = 64 << 30
	DepthMax   = 128
	NameMax    = 4096
	nestedMax  = 1 << 16 // entries of one directory
)

// Result says what Receive made.
type Result struct {
	Entries int
	Bytes   int64
	Skipped int // links that lead out
}

// Receive makes what an archive holds at name below root: inside it, if that is a directory, and under that
// name otherwise. A link at name is followed within root; one that leads to nothing, or out, ends the copy. A
// file replaces what was there under the same name, but is written into a pipe or a device that the caller
// named. Directories, and under names that the archive chose also pipes, devices and sockets, are never
// replaced.
func Receive(from io.Reader, root *os.Root, name string) (Result, error) {
	name, err := follow(root, name)
	if err != nil {
		return Result{}, err
	}
	r := &receiver{root: root, rename: path.Base(name), parent: path.Dir(name)}
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		r.rename, r.parent = "", name
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r.result, fmt.Errorf("%s: %w", name, bare(err))
	}
	return r.receive(from)
}

func (r *receiver) receive(from io.Reader) (Result, error) {
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return r.result, fmt.Errorf("the archive is broken: %w", err)
		}
		if err := r.entry(header, archive); err != nil {
			return r.result, err
		}
	}
	if err := r.leave(""); err != nil {
		return r.result, err
	}
	if r.result.Entries == 0 {
		return r.result, errors.New("the archive is empty")
	}
	return r.result, nil
}

type receiver struct {
	made   []directory // around the last entry: they get modes and times when all that is in them is there
	root   *os.Root
	parent string
	rename string // of the first part of all names; "" = as they are
	top    string // that first part, which all entries share
	// checked is the directory of the last entry, which no link leads to.
	checked string
	into    *os.File // takes the content of the one file, instead of a name
	result  Result
}

// directory is one that was made here. Before it is complete, its mode might let no files in.
type directory struct {
	name string
	mode fs.FileMode
	time time.Time
}

// leave completes the directories that an entry of the given name does not lie in.
func (r *receiver) leave(name string) error {
	for n := len(r.made) - 1; n >= 0 && (name == "" || !within(name, r.made[n].name)); n-- {
		d := r.made[n]
		r.made = r.made[:n]
		if err := r.root.Chmod(d.name, d.mode); err != nil { // whatever the mask of new files
			return fmt.Errorf("%s: %w", d.name, bare(err))
		}
		_ = r.root.Chtimes(d.name, d.time, d.time)
	}
	return nil
}

// place gives the name below root of an entry.
func (r *receiver) place(header *tar.Header) (string, error) {
	name := strings.TrimSuffix(header.Name, "/")
	if name == "" || len(name) > NameMax || strings.ContainsRune(name, 0) || path.Clean(name) != name ||
		!filepath.IsLocal(name) || name == "." || strings.Count(name, "/") > DepthMax {
		return "", fmt.Errorf("the archive names %.100q, which is refused", header.Name)
	}
	first, rest, nested := strings.Cut(name, "/")
	if r.top == "" {
		r.top = first
	}
	if first != r.top {
		return "", fmt.Errorf("the archive holds %.100q beside %.100q, which is refused", first, r.top)
	}
	if r.rename != "" {
		first = r.rename
	}
	if nested {
		first = path.Join(first, rest)
	}
	return path.Join(r.parent, first), nil
}

// throughDirectories refuses what lies behind a link, one of the archive's own above all: it would come to be
// elsewhere in root.
func (r *receiver) throughDirectories(name string) error {
	if r.into != nil || path.Dir(name) == r.checked {
		return nil
	}
	for at := path.Dir(name); at != r.parent && at != "."; at = path.Dir(at) {
		info, err := r.root.Lstat(at)
		if err != nil {
			return fmt.Errorf("%s: %w", at, bare(err))
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is there and no directory", at)
		}
	}
	r.checked = path.Dir(name) // directories stay
	return nil
}

func (r *receiver) entry(header *tar.Header, content io.Reader) error {
	if r.result.Entries++; r.result.Entries > EntriesMax {
		return fmt.Errorf("the archive has more than %d entries", EntriesMax)
	}
	for record := range header.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") { // a few bytes of archive would fill a disk with zeros
			return fmt.Errorf("the archive holds %.100q with holes, which is refused", header.Name)
		}
	}
	name, err := r.place(header)
	if err != nil {
		return err
	}
	if err := r.throughDirectories(name); err != nil {
		return err
	}
	if err := r.leave(name); err != nil {
		return err
	}
	mode := fs.FileMode(header.Mode) & fs.ModePerm
	if r.into != nil && header.Typeflag != tar.TypeReg {
		return errors.New("what is copied is no file, so it cannot be written there")
	}
	switch header.Typeflag {
	case tar.TypeDir:
		err := r.root.Mkdir(name, mode|0o700)
		if err == nil {
			r.made = append(r.made, directory{name, mode, header.ModTime})
		}
		if errors.Is(err, fs.ErrExist) {
			info, statErr := r.root.Lstat(name)
			if statErr == nil && !info.IsDir() {
				return fmt.Errorf("%s is there and no directory", name)
			}
			err = statErr
		}
		return err
	case tar.TypeReg:
		if header.Size < 0 || header.Size > BytesMax-r.result.Bytes {
			return fmt.Errorf("the archive holds more than %d GiB", BytesMax>>30)
		}
		r.result.Bytes += header.Size
		special, err := r.special(name)
		if err != nil {
			return err
		}
		if special != nil {
			defer special.Close()
			return writeInto(special, name, content)
		}
		return r.file(header, name, mode, content)
	case tar.TypeSymlink:
		if leadsOut(strings.TrimSuffix(header.Name, "/"), header.Linkname, r.top) {
			r.result.Skipped++
			return nil
		}
		if err := r.clear(name); err != nil {
			return err
		}
		return r.root.Symlink(header.Linkname, name)
	}
	return fmt.Errorf("the archive holds %.100q of kind %q, which is refused", header.Name, header.Typeflag)
}

func within(name, top string) bool { return name == top || strings.HasPrefix(name, top+"/") }

// replaceable reports why what is there under a name stays.
func (r *receiver) replaceable(name string) error {
	info, err := r.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", name, bare(err))
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("%s is there and %s", name, kindOf(info.Mode()))
	}
	return nil
}

// clear removes what is there under a name, if it may be replaced.
func (r *receiver) clear(name string) error {
	if err := r.replaceable(name); err != nil {
		return err
	}
	if err := r.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// file writes beside the name and takes the name when everything is there: a full disk or a connection that
// ends leaves what was there before.
func (r *receiver) file(header *tar.Header, name string, mode fs.FileMode, content io.Reader) error {
	if err := r.replaceable(name); err != nil {
		return err
	}
	beside := path.Join(path.Dir(name), partPrefix+strconv.FormatUint(rand.Uint64(), 36))
	file, err := r.root.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, bare(err))
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Chmod(mode)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		_ = r.root.Chtimes(beside, header.ModTime, header.ModTime)
		err = r.root.Rename(beside, name)
	}
	if err != nil {
		_ = r.root.Remove(beside)
		return fmt.Errorf("write %s: %w", name, bare(err))
	}
	return nil
}

// partPrefix begins the names of files that are not complete.
const partPrefix = ".colloid-cp-"

// bare takes the name that nobody gave out of an error.
func bare(err error) error {
	var of *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &of):
		return of.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
