package ring

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// sockets makes one connected pair, as the launcher does.
func sockets(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn.(*net.UnixConn)
		t.Cleanup(func() { conn.Close() })
	}
	return conns[0], conns[1]
}

// links makes both ends of a connection.
func links(t testing.TB) (helper, meshd *Link) {
	t.Helper()
	a, b := sockets(t)
	helper, err := Create(a)
	if err != nil {
		t.Fatal(err)
	}
	if meshd, err = Accept(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { helper.Close(); meshd.Close() })
	return helper, meshd
}

func receiveOne(t testing.TB, l *Link, dst []byte) []byte {
	t.Helper()
	for range 1000 {
		n, ok, err := l.Receive(dst)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return dst[:n]
		}
		l.Wait(time.Second)
	}
	t.Fatal("nothing came")
	return nil
}

func TestRecordsOfEveryLengthArriveInBothDirections(t *testing.T) {
	helper, meshd := links(t)
	dst := make([]byte, RecordMax)
	random := rand.New(rand.NewPCG(1, 2))
	lengths := []int{0, 1, chunkMax - 1, chunkMax, chunkMax + 1, 2 * chunkMax, RecordMax - 1, RecordMax}
	for i := range 5000 {
		length := random.IntN(3 * chunkMax)
		if i < len(lengths) {
			length = lengths[i]
		}
		record := bytes.Repeat([]byte{byte(i)}, length)
		from, to := helper, meshd
		if i%2 == 1 {
			from, to = meshd, helper
		}
		if !from.Send(record) {
			t.Fatalf("record %d of %d bytes: not sent: %v", i, length, from.Err())
		}
		if got := receiveOne(t, to, dst); !bytes.Equal(got, record) {
			t.Fatalf("record %d: %d bytes came, %d sent", i, len(got), length)
		}
	}
}

// TestFullRingReportsFalseAndLosesNothing compares the ring with a plain queue.
func TestFullRingReportsFalseAndLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		helper, meshd := links(t)
		defer helper.Close()
		defer meshd.Close()
		dst := make([]byte, RecordMax)
		var queue [][]byte
		slots := func(length int) int { return max(1, (length+chunkMax-1)/chunkMax) }
		used := 0
		for step := range rapid.IntRange(1, 200).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "send") {
				record := bytes.Repeat([]byte{byte(step)}, rapid.IntRange(0, RecordMax).Draw(rt, "length"))
				fits := used+slots(len(record)) <= SlotCount
				if sent := helper.Send(record); sent != fits {
					rt.Fatalf("sent %v with %d of %d slots used, record takes %d", sent, used, SlotCount, slots(len(record)))
				}
				if fits {
					queue = append(queue, record)
					used += slots(len(record))
				}
				continue
			}
			n, ok, err := meshd.Receive(dst)
			if err != nil || ok != (len(queue) > 0) {
				rt.Fatalf("receive: ok %v, err %v, queue of %d", ok, err, len(queue))
			}
			if ok {
				if !bytes.Equal(dst[:n], queue[0]) {
					rt.Fatal("another record came than was sent")
				}
				used -= slots(n)
				queue = queue[1:]
			}
		}
	})
}

func TestSendAndReceiveDoNotAllocate(t *testing.T) {
	helper, meshd := links(t)
	record, dst := make([]byte, 200), make([]byte, RecordMax)
	allocations := testing.AllocsPerRun(1000, func() {
		if !meshd.Send(record) {
			t.Fatal("full")
		}
		if _, ok, err := helper.Receive(dst); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, ok, _ := helper.Receive(dst); ok {
			t.Fatal("a second record")
		}
		if !helper.Send(record) {
			t.Fatal("full")
		}
		if _, ok, err := meshd.Receive(dst); !ok || err != nil {
			t.Fatal(ok, err)
		}
	})
	if allocations != 0 {
		t.Fatalf("%v allocations per record", allocations)
	}
}

// TestNoWakeUpIsLost has a sleeping reader and a writer that pauses at random.
func TestNoWakeUpIsLost(t *testing.T) {
	helper, meshd := links(t)
	const records = 20000
	go func() {
		random := rand.New(rand.NewPCG(3, 4))
		var record [8]byte
		for i := range uint64(records) {
			binary.LittleEndian.PutUint64(record[:], i)
			for !helper.Send(record[:]) {
				runtime.Gosched()
			}
			if random.IntN(50) == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	}()
	dst := make([]byte, RecordMax)
	for want := range uint64(records) {
		began := time.Now()
		got := binary.LittleEndian.Uint64(receiveOne(t, meshd, dst))
		if got != want {
			t.Fatalf("record %d came when %d was due", got, want)
		}
		if time.Since(began) > 900*time.Millisecond {
			t.Fatalf("record %d waited for the timeout: its wake-up was lost", want)
		}
	}
}

func TestHangupAndCloseEndEverything(t *testing.T) {
	helper, meshd := links(t)
	hangup, wait := make(chan struct{}), make(chan struct{})
	go func() { helper.WaitHangup(); close(hangup) }()
	go func() {
		for meshd.Err() == nil {
			meshd.Wait(-1)
		}
		close(wait)
	}()
	time.Sleep(10 * time.Millisecond)
	meshd.Close()
	for name, c := range map[string]chan struct{}{"hangup": hangup, "wait": wait} {
		select {
		case <-c:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s did not end", name)
		}
	}
	if meshd.Send(nil) {
		t.Fatal("sent on a closed link")
	}
	if _, _, err := meshd.Receive(nil); err != ErrClosed {
		t.Fatalf("receive on a closed link: %v", err)
	}
	helper.Interrupt()
	helper.Close()
	helper.Close()
	helper.Interrupt()
}

func TestPeerCredentialsNameThisProcess(t *testing.T) {
	a, _ := sockets(t)
	credentials, err := PeerCredentials(a)
	if err != nil || credentials.PID != os.Getpid() || int(credentials.UID) != os.Getuid() {
		t.Fatalf("%+v, %v", credentials, err)
	}
}

func BenchmarkOneWay200Bytes(b *testing.B) {
	helper, meshd := links(b)
	record, dst := make([]byte, 200), make([]byte, RecordMax)
	var done atomic.Bool
	go func() {
		for range b.N {
			for !helper.Send(record) {
				runtime.Gosched()
			}
		}
		done.Store(true)
	}()
	b.ResetTimer()
	for i := 0; i < b.N; {
		_, ok, err := meshd.Receive(dst)
		if err != nil {
			b.Fatal(err)
		}
		if ok {
			i++
		} else {
			meshd.Wait(10 * time.Millisecond)
		}
	}
}
