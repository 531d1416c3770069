package wasm

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// CacheFileMax bounds one compiled module in the cache; a greater one is compiled at each start.
	CacheFileMax = 96 << 20
	// CacheFilesMax bounds the compiled modules of one cache.
	CacheFilesMax = 8
	// CodeSuffix ends the names of their codes.
	CodeSuffix = ".mac"
)

// cache is the worker's private directory of compiled modules. The engine names a file after the module,
// its own version and the features of the processor, and would execute whatever lies there; so before it
// looks, everything without a valid code is removed (F142). The key is known to runnerd and the worker
// of this workload alone.
type cache struct {
	directory string
	key       []byte
}

// errNoCacheFile means that something is no file of the cache, or too large for it.
var errNoCacheFile = errors.New("not a file of the cache")

// files lists everything below the directory that is no directory, relative to it.
func (c *cache) files() ([]string, error) {
	var list []string
	err := filepath.WalkDir(c.directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(c.directory, path)
		list = append(list, name)
		return err
	})
	return list, err
}

// code computes the authentication code of a file: over its name and content.
func (c *cache) code(root *os.Root, name string) ([]byte, error) {
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > CacheFileMax {
		return nil, errNoCacheFile
	}
	code := hmac.New(sha256.New, c.key)
	_, _ = io.WriteString(code, name+"\x00")
	if _, err := io.Copy(code, io.LimitReader(file, CacheFileMax+1)); err != nil {
		return nil, err
	}
	return code.Sum(nil), nil
}

// verify removes everything that this workload's worker did not write. On an error the cache must not be
// used.
func (c *cache) verify() error {
	root, err := os.OpenRoot(c.directory)
	if err != nil {
		return err
	}
	defer root.Close()
	names, err := c.files()
	if err != nil {
		return err
	}
	for _, name := range names {
		base, isCode := strings.CutSuffix(name, CodeSuffix)
		wanted, codeErr := c.code(root, base)
		kept, readErr := root.ReadFile(base + CodeSuffix)
		if codeErr == nil && readErr == nil && hmac.Equal(wanted, kept) && len(names) <= 2*CacheFilesMax {
			continue
		}
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if isCode {
			_ = root.Remove(base)
		}
	}
	return nil
}

// seal writes the codes of new files and removes those that are too large. Failing costs a compilation; the error says
// why a file that is not too large could not be kept.
func (c *cache) seal() (failed error) {
	root, err := os.OpenRoot(c.directory)
	if err != nil {
		return err
	}
	defer root.Close()
	names, err := c.files()
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, CodeSuffix) {
			continue
		}
		if _, err := root.Lstat(name + CodeSuffix); err == nil {
			continue
		}
		code, err := c.code(root, name)
		if err == nil {
			err = root.WriteFile(name+CodeSuffix, code, 0o600)
		}
		if err != nil {
			_ = root.Remove(name)
			_ = root.Remove(name + CodeSuffix) // it may be half written
			if !errors.Is(err, errNoCacheFile) {
				failed = err
			}
		}
	}
	return failed
}
