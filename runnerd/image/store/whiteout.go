package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An overlay hides the marks of whiteouts only in directories that it merges out of several layers. In one that a layer
// has alone, or that it says replaces those below (opaque), a mark shows as a name that cannot be opened. There it hides
// nothing either, so it is taken away.

const (
	opaqueAttribute = "trusted.overlay.opaque"
	opaqueYes       = "y"
)

// removeIdleWhiteouts takes away the marks of a layer that hide nothing of those below, highest first.
func removeIdleWhiteouts(layer string, below []string) error {
	merged := map[string]bool{} // by directory
	return filepath.WalkDir(layer, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Type()&fs.ModeCharDevice == 0 {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !isWhiteout(info) {
			return nil
		}
		directory, err := filepath.Rel(layer, filepath.Dir(path))
		if err != nil {
			return err
		}
		is, known := merged[directory]
		if !known {
			if is, err = mergedBelow(directory, layer, below); err != nil {
				return err
			}
			merged[directory] = is
		}
		if is {
			return nil
		}
		return os.Remove(path)
	})
}

// mergedBelow reports whether one of the layers below has a directory that becomes one with that of a layer.
func mergedBelow(directory, layer string, below []string) (bool, error) {
	if _, opaque, err := standing(layer, directory); opaque || err != nil {
		return false, err
	}
	for _, lower := range below {
		what, opaque, err := standing(lower, directory)
		if err != nil || what == standsDirectory {
			return err == nil, err
		}
		if what == standsOther || opaque {
			return false, nil
		}
	}
	return false, nil
}

// What a layer has at a path.
type stands int

const (
	standsNothing stands = iota
	standsDirectory
	standsOther // something that hides what is below, or a mark that does
)

// standing looks at a directory of a layer, and whether it or one on the way replaces those below.
func standing(layer, directory string) (what stands, opaque bool, err error) {
	path := layer
	for part := range strings.SplitSeq(directory, "/") {
		path = filepath.Join(path, part) // "." for the layer itself
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return standsNothing, opaque, nil
		case err != nil:
			return standsNothing, opaque, err
		case !info.IsDir():
			return standsOther, opaque, nil
		}
		value := make([]byte, len(opaqueYes))
		n, err := unix.Lgetxattr(path, opaqueAttribute, value)
		opaque = opaque || err == nil && string(value[:n]) == opaqueYes
	}
	return standsDirectory, opaque, nil
}

// isWhiteout tells the mark: a character device 0/0. Filter lets no device of an image through.
func isWhiteout(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == 0
}
