package wasm

import (
	"sync"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// memoryPool gives instances their memory: one mapping of the greatest size, of which the kernel provides
// what is touched. Growing never copies and, up to the limit, never fails, so it does not depend on the
// host (F143). A freed mapping serves the next instance, emptied.
type memoryPool struct {
	mutex sync.Mutex
	free  [][]byte // at most one
}

func (p *memoryPool) Allocate(_, maximum uint64) experimental.LinearMemory {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if n := len(p.free); n > 0 && uint64(len(p.free[n-1])) >= maximum {
		region := p.free[n-1]
		p.free = p.free[:n-1]
		return &linearMemory{pool: p, region: region, maximum: maximum}
	}
	region, err := unix.Mmap(-1, 0, int(max(maximum, 1)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return &linearMemory{} // the instance fails with a sentence of the engine
	}
	return &linearMemory{pool: p, region: region, maximum: maximum}
}

type linearMemory struct {
	pool    *memoryPool
	region  []byte
	maximum uint64
	used    uint64
}

// Reallocate gives the first size bytes, nil beyond the maximum.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size > m.maximum || size > uint64(len(m.region)) {
		return nil
	}
	m.used = max(m.used, size)
	return m.region[:size:size]
}

// Free empties the mapping and keeps it for the next instance.
func (m *linearMemory) Free() {
	region := m.region
	if region == nil {
		return
	}
	m.region = nil
	m.pool.mutex.Lock()
	defer m.pool.mutex.Unlock()
	if len(m.pool.free) > 0 || unix.Madvise(region, unix.MADV_DONTNEED) != nil {
		_ = unix.Munmap(region)
		return
	}
	m.pool.free = append(m.pool.free, region)
}
