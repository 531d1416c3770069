package reactor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory returns zeroed memory that the Go runtime neither moves nor scans. Pages come into being
// when touched; huge pages are declined, since one of them would undo that.
func mapMemory(size int) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	// Kernels without transparent huge pages answer EINVAL: nothing to decline then.
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
	return memory, nil
}

func unmapMemory(memory []byte) {
	if memory == nil {
		return
	}
	if err := unix.Munmap(memory); err != nil {
		panic(fmt.Sprintf("reactor: munmap of %d bytes: %v", len(memory), err))
	}
}

// view is a slice of count values of T that starts at offset of mapped memory.
func view[T any](memory []byte, offset, count int) []T {
	var zero T
	if end := offset + count*int(unsafe.Sizeof(zero)); offset < 0 || end > len(memory) {
		panic(fmt.Sprintf("reactor: view [%d:%d] of %d mapped bytes", offset, end, len(memory)))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&memory[offset])), count)
}

// address is what a kernel structure calls a pointer. Only for mapped memory.
func address(p *byte) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
