// Package tree writes files and directories as a tar archive and makes them again from one, where whoever made the
// archive, or owns the directory, may be hostile. It runs on both ends of a copy: in the instance, as the
// workload's user, and on the machine of the operator.
//
// Both ends work below an os.Root, which no name and no link leaves. From an archive come regular files,
// directories, and links that stay inside what is copied; anything else ends the copy. Owners are not kept, nor
// are bits beyond the permissions.
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
// name otherwise. What was there under the same names is replaced; a directory is never replaced by something
// else.
func Receive(from io.Reader, root *os.Root, name string) (Result, error) {
	r := &receiver{root: root, rename: path.Base(name), parent: path.Dir(name)}
	if info, err := root.Stat(name); err == nil && info.IsDir() {
		r.rename, r.parent = "", name
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if link, linkErr := root.Lstat(name); linkErr != nil || link.Mode()&fs.ModeSymlink == 0 {
			return r.result, err
		} // a link that leads out is replaced
	}
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
	for i := len(r.modes) - 1; i >= 0; i-- { // those inside first
		if err := r.root.Chmod(r.modes[i].name, r.modes[i].mode); err != nil {
			return r.result, fmt.Errorf("%s: %w", r.modes[i].name, bare(err))
		}
	}
	if r.result.Entries == 0 {
		return r.result, errors.New("the archive is empty")
	}
	return r.result, nil
}

type receiver struct {
	modes  []directoryMode // for the end: of directories that would take no files with them
	root   *os.Root
	parent string
	rename string // of the first part of all names; "" = as they are
	top    string // that first part, which all entries share
	result Result
}

type directoryMode struct {
	name string
	mode fs.FileMode
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
	mode := fs.FileMode(header.Mode) & fs.ModePerm
	switch header.Typeflag {
	case tar.TypeDir:
		err := r.root.Mkdir(name, mode|0o700)
		if err == nil && mode&0o700 != 0o700 {
			r.modes = append(r.modes, directoryMode{name, mode})
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
		return r.file(header, name, mode, content)
	case tar.TypeSymlink:
		inside := path.Join(path.Dir(strings.TrimSuffix(header.Name, "/")), header.Linkname)
		if path.IsAbs(header.Linkname) || !filepath.IsLocal(inside) || r.top != "" && !within(inside, r.top) {
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

// clear removes what is there under a name, unless it is a directory.
func (r *receiver) clear(name string) error {
	info, err := r.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is there and a directory", name)
	}
	return r.root.Remove(name)
}

// file writes beside the name and takes the name when everything is there: a full disk or a connection that ends leaves
// what was there before.
func (r *receiver) file(header *tar.Header, name string, mode fs.FileMode, content io.Reader) error {
	if header.Size < 0 || r.result.Bytes+header.Size > BytesMax {
		return fmt.Errorf("the archive holds more than %d GiB", BytesMax>>30)
	}
	r.result.Bytes += header.Size
	if info, err := r.root.Lstat(name); err == nil && info.IsDir() {
		return fmt.Errorf("%s is there and a directory", name)
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
