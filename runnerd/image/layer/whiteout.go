package layer

import (
	"archive/tar"
	"fmt"
	"path"
	"strings"
)

// Names with which a layer removes what is below it. They are the convention of AUFS, which OCI took over.
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	whiteoutOpaque = ".wh..wh..opq"
)

// marksBytesMax bounds the names of the marks of a layer: they are kept until its end.
const marksBytesMax = 64 << 20

// marks are the whiteouts of a layer, in the order in which they came, each once. They remove what layers below have and
// nothing of their own layer, wherever in the archive they stand (OCI image specification, layer.md, "Whiteouts"). An
// overlay has a device node in the place of a removed name, so what a layer removes and has as well cannot be a mark
// there; which of the two it is, is known when all entries have been seen.
type marks struct {
	names []string // paths of the marks, not of what they remove
	bytes int
}

// holdMark reports whether an entry is a whiteout, and keeps it.
func (f *filter) holdMark(name string, header *tar.Header) (mark bool, err error) {
	directory, base := path.Split(name)
	for component := range strings.SplitSeq(directory, "/") {
		if strings.HasPrefix(component, whiteoutPrefix) {
			return false, fmt.Errorf("entry %.200q is below a whiteout", name)
		}
	}
	hidden, is := strings.CutPrefix(base, whiteoutPrefix)
	switch {
	case !is:
		return false, nil
	case base == whiteoutOpaque:
	case strings.HasPrefix(base, whiteoutMeta):
		f.result.Skipped++
		return true, nil // bookkeeping of AUFS
	case hidden == "" || hidden == "." || hidden == "..":
		return false, fmt.Errorf("whiteout %.200q removes no name", name)
	}
	if header.Typeflag != tar.TypeReg || header.Size != 0 {
		return false, fmt.Errorf("whiteout %.200q is no empty file", name)
	}
	return true, f.hold(name)
}

// hold keeps a mark until the end of the layer.
func (f *filter) hold(name string) error {
	if f.tree.get(name) == kindWhiteout {
		return nil
	}
	if f.marks.bytes += len(name); f.marks.bytes > marksBytesMax {
		return fmt.Errorf("layer has whiteouts with more than %d bytes of names", marksBytesMax)
	}
	f.tree.set(name, kindWhiteout)
	f.marks.names = append(f.marks.names, name)
	return nil
}

// writeMarks writes the whiteouts behind everything else.
func (f *filter) writeMarks() error {
	for _, name := range f.marks.names {
		if err := f.checkParents(name); err != nil { // of entries behind it
			return err
		}
		if f.removedAbove(name) {
			continue
		}
		directory, base := path.Split(name)
		if base != whiteoutOpaque {
			hidden := directory + strings.TrimPrefix(base, whiteoutPrefix)
			switch f.tree.get(hidden) {
			case kindFile, kindLink:
				continue // it replaces what is below as it is
			case kindDirectory:
				name = hidden + "/" + whiteoutOpaque // it begins empty
			default:
				f.result.Whiteouts++
			}
		}
		if err := f.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatPAX}); err != nil {
			return fmt.Errorf("entry %.200q: %w", name, err)
		}
		f.result.Entries++
	}
	return nil
}

// removedAbove reports whether a directory on the way to a mark is removed itself, alone or with all beside it, and not in
// this layer: then the mark has nothing to remove any more, and would bring the directory back.
func (f *filter) removedAbove(name string) bool {
	emptied := false
	for i := range name {
		if name[i] != '/' {
			continue
		}
		directory, base := path.Split(name[:i])
		emptied = emptied || f.tree.get(directory+whiteoutOpaque) == kindWhiteout ||
			f.tree.get(directory+whiteoutPrefix+base) == kindWhiteout
		if emptied && f.tree.get(name[:i]) == kindNone {
			return true
		}
	}
	return false
}
