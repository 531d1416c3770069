package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk is the file system below the directory, so that tests can make each call fail or be the last
// one before a power cut. Names have no path.
type disk interface {
	// Create opens an empty file for writing, in the place of an old one of this name.
	Create(name string) (diskFile, error)
	// Append opens an existing file for writing at its end.
	Append(name string) (diskFile, error)
	// Read returns a file's content, which must be at most limit bytes.
	Read(name string, limit int64) ([]byte, error)
	// Size returns the size of a file.
	Size(name string) (int64, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes creations, renames and removals durable.
	Sync() error
}

// diskFile is an open file of a disk.
type diskFile interface {
	io.Writer
	// Sync makes content and size durable.
	Sync() error
	Truncate(size int64) error
	// Allocate reserves blocks, so that the file really takes up that space.
	Allocate(size int64) error
	Close() error
}

// systemDisk is a directory of the operating system.
type systemDisk struct{ path string }

type systemFile struct{ *os.File }

func (d systemDisk) Create(name string) (diskFile, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (d systemDisk) Append(name string) (diskFile, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}

func (d systemDisk) Read(name string, limit int64) ([]byte, error) {
	// Neither waits for the other end of a FIFO nor follows a link: nothing but files belongs here.
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s: %w: %v of %d bytes, at most %d are possible",
			name, ErrDamaged, info.Mode().Type(), info.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

func (d systemDisk) Size(name string) (int64, error) {
	info, err := os.Lstat(filepath.Join(d.path, name))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (d systemDisk) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

func (d systemDisk) Remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

func (d systemDisk) Sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (f systemFile) Sync() error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// Allocate falls back to writing where the file system cannot reserve.
func (f systemFile) Allocate(size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err != unix.EOPNOTSUPP && err != unix.ENOSYS {
		return err
	}
	filler := make([]byte, 64<<10)
	for i := range filler {
		filler[i] = byte(i*7 + 1) // not to be taken for a hole
	}
	for written := int64(0); written < size; written += int64(len(filler)) {
		if _, err := f.Write(filler); err != nil {
			return err
		}
	}
	return nil
}

// missing reports that a file does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// IsNoSpace reports that a write failed because the disk or the quota is full.
func IsNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
