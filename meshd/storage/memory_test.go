package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// memoryDisk is a disk with a power switch. It tells what was written from what is durable, counts
// calls, and lets the one with a chosen number fail in a chosen way.
type memoryDisk struct {
	mutex   sync.Mutex
	live    map[string]*inode
	durable map[string]*inode
	// journal holds the directory changes since the last Sync. A crash keeps a beginning of it, as
	// journaling file systems do.
	journal []func(map[string]*inode)

	calls  int
	target int   // number of the call that fails, 0 = none
	last   int   // up to which call it goes on failing
	fault  error // what it fails with; errCrash cuts the power
	off    bool
}

type inode struct {
	data   []byte
	synced []byte
	// lost: a sync failed once. As on Linux, later ones succeed without writing those pages.
	lost bool
	// allocated blocks have a size but no content worth copying.
	allocated int64
}

var errCrash = errors.New("power cut")

func newMemoryDisk() *memoryDisk {
	return &memoryDisk{live: map[string]*inode{}, durable: map[string]*inode{}}
}

// step counts a call and decides whether it fails.
func (d *memoryDisk) step() error {
	if d.off {
		return errCrash
	}
	d.calls++
	if d.target == 0 || d.calls < d.target || d.calls > d.last {
		return nil
	}
	d.off = d.fault == errCrash
	return d.fault
}

// crash returns the disk as the next boot finds it. Whatever was not synced is there or not, in
// parts or replaced by zeros, as the dice say.
func (d *memoryDisk) crash(dice *rand.Rand) *memoryDisk {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	names := maps.Clone(d.durable)
	for _, change := range d.journal[:dice.IntN(len(d.journal)+1)] {
		change(names)
	}
	next := newMemoryDisk()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		data := survivor(names[name], dice)
		next.durable[name] = &inode{data: data, synced: data, allocated: names[name].allocated}
	}
	next.live = maps.Clone(next.durable)
	return next
}

func survivor(i *inode, dice *rand.Rand) []byte {
	switch dice.IntN(4) {
	case 0:
		return append([]byte{}, i.synced...)
	case 1:
		if !i.lost {
			return append([]byte{}, i.data...)
		}
		return append([]byte{}, i.synced...)
	}
	// What was synced stays where it was; behind it comes a part, then zeros.
	common := 0
	for common < min(len(i.synced), len(i.data)) && i.synced[common] == i.data[common] {
		common++
	}
	if common < len(i.synced) {
		return append([]byte{}, i.synced...) // truncated and not synced
	}
	data := append([]byte{}, i.data[:common+dice.IntN(len(i.data)-common+1)]...)
	if dice.IntN(2) == 0 {
		data = append(data, make([]byte, len(i.data)-len(data))...)
	}
	return data
}

func (d *memoryDisk) change(f func(map[string]*inode)) {
	f(d.live)
	d.journal = append(d.journal, f)
}

func (d *memoryDisk) Create(name string) (diskFile, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.step(); err != nil {
		return nil, err
	}
	if i := d.live[name]; i != nil {
		i.data, i.lost = nil, false // O_TRUNC drops the pages that could not be written
		return &memoryFile{d, i}, nil
	}
	i := &inode{}
	d.change(func(m map[string]*inode) { m[name] = i })
	return &memoryFile{d, i}, nil
}

func (d *memoryDisk) Append(name string) (diskFile, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.step(); err != nil {
		return nil, err
	}
	if d.live[name] == nil {
		return nil, fs.ErrNotExist
	}
	return &memoryFile{d, d.live[name]}, nil
}

func (d *memoryDisk) Read(name string, limit int64) ([]byte, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.off {
		return nil, errCrash
	}
	i := d.live[name]
	if i == nil {
		return nil, fs.ErrNotExist
	}
	if int64(len(i.data)) > limit {
		return nil, fmt.Errorf("%s: %w", name, ErrDamaged)
	}
	return append([]byte{}, i.data...), nil
}

func (d *memoryDisk) Size(name string) (int64, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.off {
		return 0, errCrash
	}
	if d.live[name] == nil {
		return 0, fs.ErrNotExist
	}
	return max(d.live[name].allocated, int64(len(d.live[name].data))), nil
}

func (d *memoryDisk) Rename(from, to string) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	if d.live[from] == nil {
		return fs.ErrNotExist
	}
	d.change(func(m map[string]*inode) {
		m[to] = m[from]
		delete(m, from)
	})
	return nil
}

func (d *memoryDisk) Remove(name string) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	if d.live[name] == nil {
		return fs.ErrNotExist
	}
	d.change(func(m map[string]*inode) { delete(m, name) })
	return nil
}

func (d *memoryDisk) Sync() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	d.durable = maps.Clone(d.live)
	d.journal = nil
	return nil
}

type memoryFile struct {
	disk *memoryDisk
	i    *inode
}

func (f *memoryFile) Write(data []byte) (int, error) {
	f.disk.mutex.Lock()
	defer f.disk.mutex.Unlock()
	err := f.disk.step()
	if err != nil {
		data = data[:len(data)/2] // a failed write may have written something
	}
	f.i.data = append(f.i.data, data...)
	return len(data), err
}

func (f *memoryFile) Sync() error {
	f.disk.mutex.Lock()
	defer f.disk.mutex.Unlock()
	if err := f.disk.step(); err != nil {
		f.i.lost = true
		return err
	}
	if !f.i.lost {
		f.i.synced = append([]byte{}, f.i.data...)
	}
	return nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.disk.mutex.Lock()
	defer f.disk.mutex.Unlock()
	if err := f.disk.step(); err != nil {
		return err
	}
	f.i.allocated = min(f.i.allocated, size)
	f.i.data = append([]byte{}, f.i.data[:min(size, int64(len(f.i.data)))]...)
	return nil
}

func (f *memoryFile) Allocate(size int64) error {
	f.disk.mutex.Lock()
	defer f.disk.mutex.Unlock()
	if err := f.disk.step(); err != nil {
		return err
	}
	f.i.allocated = size
	return nil
}

func (f *memoryFile) Close() error {
	f.disk.mutex.Lock()
	defer f.disk.mutex.Unlock()
	return f.disk.step()
}
