package ring

import (
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/passed"
)

// TestF133_MutatingPeerNeverCrashes scribbles over the whole shared memory, indices included, while
// the helper sends and receives. Anything may come out, within the bounds, or an error.
func TestF133_MutatingPeerNeverCrashes(t *testing.T) {
	deadline := time.Now().Add(2 * time.Second)
	for round := 0; time.Now().Before(deadline); round++ {
		helper, meshd := links(t)
		var stop atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			random := rand.New(rand.NewPCG(uint64(round), 5))
			hot := []int{tailOffset, headOffset, waitingOffset, headerSize, headerSize + 2}
			for !stop.Load() {
				at := random.IntN(memorySize)
				if random.IntN(4) > 0 {
					at = hot[random.IntN(len(hot))] + regionSize*random.IntN(2) + random.IntN(2)
				}
				if random.IntN(2) == 0 {
					meshd.memory[at] = byte(random.IntN(8))
				} else {
					meshd.memory[at] = byte(random.Uint32())
				}
			}
		}()
		dst := make([]byte, RecordMax)
		for range 2000 {
			helper.Send(dst[:rand.IntN(3*SlotSize)])
			n, _, err := helper.Receive(dst)
			if n > RecordMax {
				t.Fatalf("%d bytes", n)
			}
			if err != nil && helper.Err() == nil {
				t.Fatalf("error %v did not break the link", err)
			}
		}
		stop.Store(true)
		<-done
		helper.Close()
		meshd.Close()
	}
}

// TestF133_ImpossibleIndicesDisconnect sets each index to values that no honest peer publishes.
func TestF133_ImpossibleIndicesDisconnect(t *testing.T) {
	dst := make([]byte, RecordMax)
	for _, c := range []struct {
		name string
		tail uint32
	}{{"too far", SlotCount + 1}, {"back", ^uint32(0)}, {"half the range", 1 << 31}} {
		helper, meshd := links(t)
		atomic.StoreUint32(meshd.outgoing.word(tailOffset), c.tail)
		if _, _, err := helper.Receive(dst); err != ErrIndex {
			t.Errorf("tail %s: %v", c.name, err)
		}
	}
	for _, head := range []uint32{2, ^uint32(0), 1 << 31} {
		helper, meshd := links(t)
		helper.Send([]byte("x"))
		atomic.StoreUint32(meshd.incoming.word(headOffset), head)
		if helper.Send([]byte("y")) || helper.Err() != ErrIndex {
			t.Errorf("head %d: %v", head, helper.Err())
		}
	}
	helper, meshd := links(t) // forwards, then backwards
	for range 3 {
		meshd.Send([]byte("x"))
	}
	helper.Receive(dst)
	atomic.StoreUint32(meshd.outgoing.word(tailOffset), 2)
	if _, _, err := helper.Receive(dst); err != ErrIndex {
		t.Errorf("tail went back: %v", err)
	}
}

func TestF133_MalformedSlotsDisconnect(t *testing.T) {
	for _, c := range []struct {
		name   string
		header [4]byte
		count  uint32
		want   error
	}{
		{"length past the slot", [4]byte{0xFD, 0x03, 0, 0}, 1, ErrSlot},
		{"unknown flag", [4]byte{1, 0, 2, 0}, 1, ErrSlot},
		{"short chunk that goes on", [4]byte{1, 0, 1, 0}, 2, ErrSlot},
		{"record without end", [4]byte{0xFC, 0x03, 1, 0}, 1, ErrSlot},
		{"record past the maximum", [4]byte{0xFC, 0x03, 1, 0}, SlotCount, ErrSlot},
	} {
		helper, meshd := links(t)
		for i := range c.count {
			copy(meshd.outgoing.slot(i), c.header[:])
		}
		atomic.StoreUint32(meshd.outgoing.word(tailOffset), c.count)
		if _, _, err := helper.Receive(make([]byte, 2*RecordMax)); err != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	helper, meshd := links(t)
	meshd.Send(make([]byte, 100))
	if _, _, err := helper.Receive(make([]byte, 99)); err != ErrTooShort {
		t.Errorf("short buffer: %v", err)
	}
}

// TestF133_TruncatedMemoryIsAnErrorNotACrash uses memory without seals, as a kernel or peer that
// breaks its promise would.
func TestF133_TruncatedMemoryIsAnErrorNotACrash(t *testing.T) {
	a, _ := sockets(t)
	memory, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(memory, memorySize); err != nil {
		t.Fatal(err)
	}
	again, err := unix.Dup(memory)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(again)
	var events [2]int
	for i := range events {
		if events[i], err = unix.Eventfd(0, eventfdFlags); err != nil {
			t.Fatal(err)
		}
	}
	link, err := newLink(a, [3]int{memory, events[0], events[1]}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	if err := unix.Ftruncate(again, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := link.incoming.receive(make([]byte, RecordMax), &link.private); err != ErrFault {
		t.Errorf("receive: %v", err)
	}
	if _, _, err := link.outgoing.send([]byte("x")); err != ErrFault {
		t.Errorf("send: %v", err)
	}
	if link.Send([]byte("x")) || link.Err() != ErrFault {
		t.Errorf("link: %v", link.Err())
	}
}

// TestF133_SealsHold tries to resize what Create made.
func TestF133_SealsHold(t *testing.T) {
	descriptors, err := createDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close(descriptors[:])
	for _, size := range []int64{0, memorySize - 1, memorySize + 1} {
		if err := unix.Ftruncate(descriptors[0], size); err != unix.EPERM {
			t.Errorf("resize to %d: %v", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(descriptors[0]), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("more seals: %v", err)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestF133_HostileHellosAreRefusedAndLeakNothing sends every wrong hello there is.
func TestF133_HostileHellosAreRefusedAndLeakNothing(t *testing.T) {
	unsealed := func() int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	good, err := createDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close(good[:])
	bare := unsealed()
	defer unix.Close(bare)
	sized := unsealed()
	defer unix.Close(sized)
	if err := unix.Ftruncate(sized, memorySize); err != nil {
		t.Fatal(err)
	}
	small := unsealed()
	defer unix.Close(small)
	if _, err := unix.FcntlInt(uintptr(small), unix.F_ADD_SEALS, requiredSeals); err != nil {
		t.Fatal(err)
	}
	flood := make([]int, 200)
	for i := range flood {
		flood[i] = good[1]
	}
	hello := appendHello(nil)
	wrong := append([]byte(nil), hello...)
	wrong[8]++
	for _, c := range []struct {
		name  string
		hello []byte
		fds   []int
		want  error
	}{
		{"no descriptors", hello, nil, ErrDescriptors},
		{"two descriptors", hello, good[:2], ErrDescriptors},
		{"four descriptors", hello, []int{good[0], good[1], good[2], good[2]}, ErrDescriptors},
		{"two hundred descriptors", hello, flood, ErrDescriptors},
		{"wrong version", wrong, good[:], ErrHello},
		{"short hello", hello[:31], good[:], ErrHello},
		{"empty file", hello, []int{bare, good[1], good[2]}, ErrSeals},
		{"unsealed file", hello, []int{sized, good[1], good[2]}, ErrSeals},
		{"sealed small file", hello, []int{small, good[1], good[2]}, ErrSeals},
		{"file for eventfd", hello, []int{good[0], good[1], bare}, ErrEventfd},
		{"eventfd for file", hello, []int{good[1], good[1], good[2]}, ErrSeals},
	} {
		a, b := sockets(t)
		before := openDescriptors(t)
		var rights []byte
		if c.fds != nil {
			rights = unix.UnixRights(c.fds...)
		}
		if _, _, err := a.WriteMsgUnix(c.hello, rights, nil); err != nil {
			t.Fatal(err)
		}
		if link, err := Accept(b); err != c.want {
			t.Errorf("%s: link %v, %v", c.name, link != nil, err)
		}
		if after := openDescriptors(t); after != before {
			t.Errorf("%s: %d descriptors open, %d before", c.name, after, before)
		}
	}
}

// TestF133_DescriptorFloodAfterTheHandshakeHangsUp sends descriptors on the established socket.
func TestF133_DescriptorFloodAfterTheHandshakeHangsUp(t *testing.T) {
	a, b := sockets(t)
	helper, err := Create(a)
	if err != nil {
		t.Fatal(err)
	}
	defer helper.Close()
	meshd, err := Accept(b)
	if err != nil {
		t.Fatal(err)
	}
	defer meshd.Close()
	before := openDescriptors(t)
	hangup := make(chan struct{})
	go func() { helper.WaitHangup(); close(hangup) }()
	flood := make([]int, 100)
	if _, _, err := b.WriteMsgUnix([]byte("x"), unix.UnixRights(flood...), nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hangup:
	case <-time.After(5 * time.Second):
		t.Fatal("a stray byte did not hang up")
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

// TestHostileEventfdNeverBlocksTheHelper clears O_NONBLOCK and fills the counter the helper writes.
func TestHostileEventfdNeverBlocksTheHelper(t *testing.T) {
	for range 3 {
		helper, meshd := links(t)
		if err := unix.SetNonblock(meshd.notifySelf, false); err != nil {
			t.Fatal(err)
		}
		full := []byte{0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
		if _, err := unix.Write(meshd.notifySelf, full); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 10 {
			helper.Send([]byte("x"))
			atomic.StoreUint32(meshd.incoming.word(waitingOffset), 1)
		}
		helper.Close()
		if took := time.Since(began); took > time.Second {
			t.Fatalf("took %v", took)
		}
		meshd.Close()
	}
	for range 100 {
		if admit() == nil && len(stuck.list) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%d notifiers stay stuck", len(stuck.list))
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 'x'}, uint32(1), uint32(0))
	f.Add([]byte{0xFC, 3, 1, 0}, uint32(2), uint32(7))
	f.Fuzz(func(t *testing.T, slots []byte, tail, position uint32) {
		d := direction{memory: make([]byte, regionSize), position: position, peer: position}
		for at := 0; at < len(slots); at += SlotSize {
			copy(d.slot(position+uint32(at/SlotSize)), slots[at:])
		}
		atomic.StoreUint32(d.word(tailOffset), tail)
		var private [SlotSize]byte
		dst := make([]byte, RecordMax)
		for range SlotCount + 1 {
			n, ok, err := d.receive(dst, &private)
			if n < 0 || n > RecordMax || ok && err != nil {
				t.Fatalf("n %d, ok %v, err %v", n, ok, err)
			}
			if !ok {
				return
			}
		}
		t.Fatal("more records than slots")
	})
}
