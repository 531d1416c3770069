package evil

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/runnerdtest"
)

func TestF133_MutatingSharedMemory(t *testing.T) {
	v := newVictim(t)
	v.run(v.listed("args any")).Close()
	for round := range 8 {
		rings := v.takeRings()
		deadline := time.Now().Add(250 * time.Millisecond)
		one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
		seed := uint32(round + 1)
		for time.Now().Before(deadline) {
			for range 1000 {
				seed = seed*1664525 + 1013904223
				at := int(seed>>8) % len(rings.Memory)
				if seed&7 < 4 {
					at = int(seed>>8)%2*(len(rings.Memory)/2) + int(seed>>16)%3*128 + int(seed>>20)%4
				}
				rings.Memory[at] = byte(seed >> 24)
			}
			for _, fd := range rings.Events {
				_, _ = unix.Write(fd, one)
			}
		}
		rings.Close()
	}
	v.stillServes()
}

func (v *victim) takeRings() *Rings {
	v.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		v.t.Fatal(err)
	}
	if err := v.Supply(pair[1]); err != nil {
		v.t.Fatal(err)
	}
	unix.Close(pair[1])
	conn := runnerdtest.FileConn(v.t, pair[0])
	v.t.Cleanup(func() { conn.Close() })
	rings, err := Take(conn)
	if err != nil {
		v.t.Fatal(err)
	}
	return rings
}

func TestF133_TruncationAndHostileEventfds(t *testing.T) {
	v := newVictim(t)
	v.run(v.listed("args any")).Close()
	full := []byte{0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	for range 40 { // more than the number of stuck links that are put up with
		rings := v.takeRings()
		for _, size := range []int64{0, 4096, 1 << 30} {
			if err := unix.Ftruncate(rings.File, size); err != unix.EPERM {
				t.Fatalf("the memory was resized to %d: %v", size, err)
			}
		}
		_ = unix.Fallocate(rings.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(rings.Memory)))
		for _, fd := range rings.Events {
			_, _ = unix.Write(fd, full)
			_ = unix.SetNonblock(fd, false)
		}
		rings.Memory[256] = 1 // "asleep": runnerd will try to wake this side
		rings.Close()
	}
	v.stillServes()
}

func TestF133_DescriptorFloods(t *testing.T) {
	v := newVictim(t)
	v.run(v.listed("args any")).Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	flood := make([]int, 250)
	for i := range flood {
		flood[i] = int(null.Fd())
	}
	for range 20 { // through the socket of meshd
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_ = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(flood...), nil, unix.MSG_DONTWAIT)
		}
		if err := v.Supply(pair[1]); err != nil {
			t.Fatal(err)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	for range 20 { // through the launcher's socket, which only the launcher has
		_ = v.Supply(flood[:10]...)
		_ = v.Supply(flood[0])
		_ = v.Supply()
	}
	v.stillServes()
}
