package invoke

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// channel gives both ends of a channel, and the client's as meshd keeps it.
func channel(t testing.TB) (client, worker *Channel, kept *os.File) {
	t.Helper()
	kept, other, err := ChannelPair()
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.FcntlInt(kept.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = OpenChannel(os.NewFile(uintptr(copied), "client")); err != nil {
		t.Fatal(err)
	}
	if worker, err = OpenChannel(other); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); worker.Close(); kept.Close() })
	return client, worker, kept
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestAChannelEndsWithoutItsEnds: whoever has sent gets its answer, who has not is told that it was not.
func TestAChannelEndsWithoutItsEnds(t *testing.T) {
	for name, end := range map[string]func(client, worker *Channel, kept *os.File){
		"by meshd":      func(_, _ *Channel, kept *os.File) { EndChannel(kept) },
		"by the worker": func(_, worker *Channel, _ *os.File) { worker.Finish() },
	} {
		client, worker, kept := channel(t)
		buffer := make([]byte, FrameMax+1)
		for id := range uint64(2) {
			if err := client.Send(&Invocation{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		end(client, worker, kept)
		if err := client.Send(&Invocation{ID: 3}); err != ErrNotSent {
			t.Errorf("ended %s: sent with %v", name, err)
		}
		for id := range uint64(2) {
			body, err := worker.Receive(buffer)
			if call, is := body.(*Invocation); !is || call.ID != id {
				t.Fatalf("ended %s: %v, %v", name, body, err)
			}
			if err := worker.Send(&Result{ID: id}); err != nil {
				t.Fatalf("ended %s: %v", name, err)
			}
		}
		if body, err := worker.Receive(buffer); err != io.EOF {
			t.Errorf("ended %s: %v, %v", name, body, err)
		}
		worker.Close()
		for id := range uint64(2) {
			body, err := client.Receive(buffer)
			if result, is := body.(*Result); !is || result.ID != id {
				t.Fatalf("ended %s: %v, %v", name, body, err)
			}
		}
		if body, err := client.Receive(buffer); err != io.EOF {
			t.Errorf("ended %s: %v, %v", name, body, err)
		}
	}
}

func TestAChannelWaitsNoLongerThanItIsTold(t *testing.T) {
	client, worker, _ := channel(t)
	buffer := make([]byte, FrameMax+1)
	if err := client.SetPatience(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if body, err := client.Receive(buffer); err != os.ErrDeadlineExceeded {
		t.Errorf("%v, %v", body, err)
	}
	done := make(chan error, 1)
	go func() { // who does not read holds up the sender for a second
		for {
			if err := worker.Send(&Result{Output: make([]byte, OutputMax)}); err != nil {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if err != os.ErrDeadlineExceeded {
			t.Error(err)
		}
	case <-time.After(10 * writePatience):
		t.Fatal("the sender waits for ever")
	}
	go func() {
		_, err := worker.Receive(make([]byte, FrameMax+1))
		done <- err
	}()
	time.Sleep(10 * time.Millisecond)
	worker.Interrupt()
	if err := <-done; err != io.EOF {
		t.Error(err)
	}
	worker.Close()
	worker.Close()
	worker.Interrupt() // harmless: another socket may have its number
}

func TestF142_AForeignFrameOnAChannelIsAnError(t *testing.T) {
	client, worker, _ := channel(t)
	whole := (&Invocation{ID: 1, Function: "f", Arguments: [][]byte{[]byte("x")}}).Append(nil)
	for n := 1; n < len(whole); n++ { // half messages
		if err := client.SendRaw(whole[:n]); err != nil {
			t.Fatal(err)
		}
		if body, err := worker.Receive(make([]byte, FrameMax+1)); err != ErrFrame {
			t.Fatalf("%d bytes: %v, %v", n, body, err)
		}
	}
	if _, err := unix.Write(client.fd, make([]byte, FrameMax+100)); err != nil {
		t.Fatal(err)
	}
	if body, err := worker.Receive(make([]byte, FrameMax+1)); err != ErrFrame {
		t.Fatalf("%v, %v", body, err)
	}
}

// TestOnlyASocketIsTakenForAChannel, and what is not is closed.
func TestOnlyASocketIsTakenForAChannel(t *testing.T) {
	before := openDescriptors(t)
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	streams, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(streams[1])
	datagram, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []*os.File{pipe, file, os.NewFile(uintptr(streams[0]), "stream"), os.NewFile(uintptr(datagram), "udp")} {
		if _, err := OpenChannel(wrong); err == nil {
			t.Errorf("%s was taken", wrong.Name())
		}
	}
	closed, _, _ := ChannelPair()
	closed.Close()
	if _, err := OpenChannel(closed); err == nil {
		t.Error("a closed one was taken")
	}
	if after := openDescriptors(t); after > before+1 { // the other end of closed
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestF142_DescriptorsComeWithAChannelOnly: one with a ChannelOpen, none with anything else, and none is left
// open.
func TestF142_DescriptorsComeWithAChannelOnly(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	rights := func(n int) []byte {
		list := make([]int, n)
		for i := range list {
			list[i] = int(null.Fd())
		}
		return unix.UnixRights(list...)
	}
	open, answer := (&ChannelOpen{ID: 9}).Append(nil), (&Answer{ID: 1}).Append(nil)
	for name, c := range map[string]struct {
		frame  []byte
		rights []byte
		good   bool
	}{
		"a channel":                 {open, rights(1), true},
		"a channel without one":     {open, nil, false},
		"a channel with two":        {open, rights(2), false},
		"a channel with a hundred":  {open, rights(100), false},
		"an answer":                 {answer, nil, true},
		"an answer with one":        {answer, rights(1), false},
		"half a channel with one":   {open[:5], rights(1), false},
		"nothing with one":          {[]byte{0}, rights(1), false},
		"a channel and another one": {append(bytes.Clone(open), open...), rights(1), false},
	} {
		a, b := ends(t)
		before := openDescriptors(t)
		if _, _, err := a.socket.WriteMsgUnix(c.frame, c.rights, nil); err != nil {
			t.Fatal(err)
		}
		body, file, err := b.ReceiveFile(make([]byte, FrameMax+1))
		if (err == nil) != c.good || (body != nil) != c.good || (file != nil) != (c.good && c.rights != nil) {
			t.Errorf("%s: %v, %v, %v", name, body, file, err)
		}
		if file != nil {
			file.Close()
		}
		b.Close()
		if after := openDescriptors(t); after >= before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
		if _, _, err := b.ReceiveFile(make([]byte, FrameMax+1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a, b := ends(t)
	if err := a.SendFile(&ChannelOpen{ID: 9}, null); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if body, file, err := b.ReceiveFile(make([]byte, FrameMax+1)); err != nil || body.(*ChannelOpen).ID != 9 || file.Close() != nil {
		t.Errorf("%v, %v", body, err)
	}
	if _, _, err := b.ReceiveFile(make([]byte, FrameMax+1)); err != io.EOF {
		t.Error(err)
	}
}

// TestACallOnAChannelAllocatesLittle: what is made is what the receiver keeps.
func TestACallOnAChannelAllocatesLittle(t *testing.T) {
	client, worker, _ := channel(t)
	buffer, call := make([]byte, FrameMax+1), &Invocation{Function: "f", Milliseconds: 1000}
	allocations := testing.AllocsPerRun(100, func() {
		if err := client.Send(call); err != nil {
			t.Fatal(err)
		}
		if _, err := worker.Receive(buffer); err != nil {
			t.Fatal(err)
		}
	})
	if allocations > 3 { // the invocation, its function, the reader
		t.Errorf("%v allocations", allocations)
	}
}

// TestSignalsDoNotProlongAPatience: the kernel gives up a wait with a timeout at a signal; the rest is waited
// for.
func TestSignalsDoNotProlongAPatience(t *testing.T) {
	client, _, _ := channel(t)
	const patience = time.Second
	if err := client.SetPatience(patience); err != nil {
		t.Fatal(err)
	}
	thread, done := make(chan int, 1), make(chan time.Duration, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		began := time.Now()
		if body, err := client.Receive(make([]byte, FrameMax+1)); err != os.ErrDeadlineExceeded {
			t.Errorf("%v, %v", body, err)
		}
		done <- time.Since(began)
	}()
	id := <-thread
	for {
		select {
		case took := <-done:
			if took < patience*9/10 || took > 10*patience {
				t.Errorf("waited %v", took)
			}
			if left := kernelPatience(t, client); left >= patience {
				t.Errorf("after a signal it would have waited %v", left)
			}
			if err := client.SetPatience(patience); err != nil || kernelPatience(t, client) != patience {
				t.Errorf("the next one waits %v, %v", kernelPatience(t, client), err)
			}
			return
		case <-time.After(30 * time.Millisecond):
			_ = unix.Tgkill(os.Getpid(), id, unix.SIGURG)
		}
	}
}

func kernelPatience(t *testing.T, c *Channel) time.Duration {
	t.Helper()
	value, err := unix.GetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(value.Nano())
}
