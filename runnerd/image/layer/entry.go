package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"path"
	"strings"
	"time"
)

// kind of what a layer has at a path.
type kind uint8

const (
	kindNone kind = iota
	kindDirectory
	kindFile
	kindLink     // symbolic
	kindWhiteout // at the path of the mark itself
)

// tree remembers what stands at each path of the layer so far, by a keyed hash of the path: whoever
// writes a layer does not know the key, so collisions are as rare as chance makes them.
type tree struct {
	seed  maphash.Seed
	kinds map[uint64]kind
}

func newTree() *tree { return &tree{maphash.MakeSeed(), map[uint64]kind{}} }

func (t *tree) get(path string) kind    { return t.kinds[maphash.String(t.seed, path)] }
func (t *tree) set(path string, k kind) { t.kinds[maphash.String(t.seed, path)] = k }

const (
	attributePrefix     = "SCHILY.xattr."
	attributeCapability = attributePrefix + "security.capability"
	capabilitySizeMax   = 64
	identifierMax       = math.MaxUint32 - 1 // the last one means "unchanged" to the kernel
	timeMax             = 1 << 33            // seconds; ext4 ends in 2446
)

type filter struct {
	limits Limits
	tree   *tree
	out    *tar.Writer
	result Result
	seen   int
	marks  marks
}

func (f *filter) copy(in *tar.Reader) error {
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return f.writeMarks()
		}
		if err != nil {
			return fmt.Errorf("layer is no valid tar: %w", err)
		}
		if err := f.count(); err != nil {
			return err
		}
		if err := f.entry(header, in); err != nil {
			return err
		}
	}
}

// count bounds what the layer makes, with the directories that it names on the way to something else only.
func (f *filter) count() error {
	if f.seen++; f.seen > f.limits.EntriesMax {
		return fmt.Errorf("layer has more than %d entries", f.limits.EntriesMax)
	}
	return nil
}

// entry checks one entry and writes it.
func (f *filter) entry(header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // comments of the archive, not an entry
	case tar.TypeChar, tar.TypeBlock:
		// No container gets devices from its image. A character device 0/0 would also be a whiteout.
		f.result.Skipped++
		return nil
	}
	name, err := f.cleanPath(header.Name, "entry")
	if err != nil {
		return err
	}
	clean, what, err := f.clean(name, header)
	if err != nil || clean == nil {
		return err
	}
	if err := f.out.WriteHeader(clean); err != nil {
		return fmt.Errorf("entry %.200q: %w", name, err)
	}
	if clean.Typeflag == tar.TypeReg {
		written, err := io.Copy(f.out, content)
		if err != nil {
			return fmt.Errorf("entry %.200q: %w", name, err)
		}
		f.result.Bytes += written
	}
	if before := f.tree.get(name); what == kindDirectory && (before == kindFile || before == kindLink) {
		// What was here replaced what is below, so this one begins empty.
		directory, base := path.Split(name)
		if err := f.hold(directory + whiteoutPrefix + base); err != nil {
			return err
		}
	}
	f.tree.set(name, what)
	f.result.Entries++
	return f.implyParents(name)
}

// implyParents notes the directories that whoever unpacks makes on the way to a name.
func (f *filter) implyParents(name string) error {
	for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
		if f.tree.get(name[:i]) != kindNone {
			return nil // and so are those above
		}
		f.tree.set(name[:i], kindDirectory)
		if err := f.count(); err != nil {
			return err
		}
	}
	return nil
}

// cleanPath makes a path relative to the root of the image. The root itself is ".".
func (f *filter) cleanPath(name, what string) (string, error) {
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", fmt.Errorf("%s has the path %.100q", what, name)
	case len(name) > f.limits.PathLengthMax:
		return "", fmt.Errorf("%s %.60q... has a path of %d bytes, expected at most %d", what, name, len(name),
			f.limits.PathLengthMax)
	}
	for component := range strings.SplitSeq(name, "/") {
		if component == ".." {
			return "", fmt.Errorf("%s %.200q leads out of the image", what, name)
		}
		if len(component) > componentMax {
			return "", fmt.Errorf("%s %.60q... has a name of %d bytes, expected at most %d", what, name, len(component),
				componentMax)
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// clean gives the header to write, nil for an entry to leave out, and what stands at its path then.
func (f *filter) clean(name string, header *tar.Header) (*tar.Header, kind, error) {
	if err := f.checkParents(name); err != nil {
		return nil, kindNone, err
	}
	if mark, err := f.holdMark(name, header); mark || err != nil {
		return nil, kindNone, err
	}
	clean := &tar.Header{
		Typeflag: header.Typeflag, Name: name, Mode: header.Mode & 0o7777, Uid: header.Uid, Gid: header.Gid,
		ModTime: header.ModTime, Format: tar.FormatPAX,
	}
	if header.Uid < 0 || header.Gid < 0 || int64(header.Uid) > identifierMax || int64(header.Gid) > identifierMax {
		return nil, kindNone, fmt.Errorf("entry %.200q belongs to %d:%d", name, header.Uid, header.Gid)
	}
	if seconds := header.ModTime.Unix(); seconds < 0 || seconds > timeMax {
		clean.ModTime = time.Unix(0, 0) // what a file system might not take
	}
	what, err := f.cleanType(name, header, clean)
	if err != nil {
		return nil, what, err
	}
	if value := header.PAXRecords[attributeCapability]; value != "" && what == kindFile {
		if len(value) > capabilitySizeMax {
			return nil, what, fmt.Errorf("entry %.200q has file capabilities of %d bytes", name, len(value))
		}
		clean.PAXRecords = map[string]string{attributeCapability: value}
	}
	return clean, what, nil
}

func (f *filter) cleanType(name string, header, clean *tar.Header) (kind, error) {
	if name == "" {
		clean.Name = "./"
		if header.Typeflag != tar.TypeDir {
			return kindNone, fmt.Errorf("the root of the image is of type %q, expected a directory", header.Typeflag)
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		clean.Name = strings.TrimSuffix(clean.Name, "/") + "/"
		return kindDirectory, nil
	case tar.TypeReg, tar.TypeGNUSparse:
		clean.Typeflag, clean.Size = tar.TypeReg, header.Size
		if header.Size < 0 || header.Size > f.limits.BytesMax-f.result.Bytes {
			return kindNone, fmt.Errorf("entry %.200q has %d bytes: a layer holds at most %d", name, header.Size,
				f.limits.BytesMax)
		}
		return kindFile, nil
	case tar.TypeSymlink:
		// It may point anywhere: only what the container itself resolves follows it.
		if len(header.Linkname) > f.limits.PathLengthMax || header.Linkname == "" {
			return kindNone, fmt.Errorf("symbolic link %.200q has a target of %d bytes", name, len(header.Linkname))
		}
		clean.Linkname = header.Linkname
		return kindLink, nil
	case tar.TypeLink:
		target, err := f.cleanPath(header.Linkname, "hard link "+fmt.Sprintf("%.200q", name)+" to")
		if err != nil {
			return kindNone, err
		}
		if err := f.checkParents(target); err != nil {
			return kindNone, err
		}
		clean.Linkname = target
		what := f.tree.get(target)
		if what != kindFile && what != kindLink {
			return kindNone, fmt.Errorf("hard link %.200q to %.200q: there is no such file before it in its layer",
				name, header.Linkname)
		}
		return what, nil
	case tar.TypeFifo:
		return kindFile, nil
	}
	return kindNone, fmt.Errorf("entry %.200q is of type %q, which is not known here", name, header.Typeflag)
}

// checkParents refuses a path that leads through a symbolic link or a file of the same layer. Those
// that tools make never do; whoever unpacks such a one would follow the link.
func (f *filter) checkParents(name string) error {
	for i, r := range name {
		if r != '/' {
			continue
		}
		switch f.tree.get(name[:i]) {
		case kindLink:
			return fmt.Errorf("entry %.200q leads through %.200q, which is a symbolic link", name, name[:i])
		case kindFile:
			return fmt.Errorf("entry %.200q leads through %.200q, which is a file", name, name[:i])
		}
	}
	return nil
}
