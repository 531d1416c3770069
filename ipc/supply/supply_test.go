package supply

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newPair(t *testing.T) (*os.File, *Receiver) {
	t.Helper()
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := unix.Dup(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	receiver, err := NewReceiver(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); receiver.Close() })
	return ours, receiver
}

func TestF134_ConnectionArrivesWithItsName(t *testing.T) {
	ours, receiver := newPair(t)
	a, b, err := Connection()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := Send(ours, "runnerd", a); err != nil {
		t.Fatal(err)
	}
	a.Close()
	name, connection, err := receiver.Next()
	if err != nil || name != "runnerd" {
		t.Fatalf("Next() = %q, %v", name, err)
	}
	defer connection.Close()
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var got [1]byte
	connection.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := connection.Read(got[:]); err != nil || got[0] != 'x' {
		t.Fatalf("read %q, %v over the supplied connection", got, err)
	}
}

func TestF134_LauncherDeathIsEndOfFile(t *testing.T) {
	ours, receiver := newPair(t)
	ours.Close()
	if _, _, err := receiver.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("Next() after the launcher died: %v, want EOF", err)
	}
}

func TestF133_SurplusDescriptorsAreClosed(t *testing.T) {
	ours, receiver := newPair(t)
	for _, count := range []int{0, 2, 4, 9} {
		var descriptors []int
		var keep []*os.File
		for range count {
			a, b, err := Connection()
			if err != nil {
				t.Fatal(err)
			}
			descriptors = append(descriptors, int(a.Fd()))
			keep = append(keep, a, b)
		}
		before := openDescriptors(t)
		var rights []byte
		if count > 0 {
			rights = unix.UnixRights(descriptors...)
		}
		if err := unix.Sendmsg(int(ours.Fd()), []byte("runnerd"), rights, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := receiver.Next(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d descriptors: %v, want ErrMalformed", count, err)
		}
		if after := openDescriptors(t); after != before {
			t.Errorf("%d descriptors: %d descriptors leaked", count, after-before)
		}
		for _, f := range keep {
			f.Close()
		}
	}
}

func TestMalformedNamesAreRefusedOnBothSides(t *testing.T) {
	ours, receiver := newPair(t)
	a, b, err := Connection()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	for _, name := range []string{"", "Runnerd", "../x", "a b", "abcdefghijklmnopqrstuvwxyz0123456"} {
		if err := Send(ours, name, a); err == nil {
			t.Errorf("Send accepted the name %q", name)
		}
		if name == "" {
			continue // the kernel's end-of-file mark
		}
		if err := unix.Sendmsg(int(ours.Fd()), []byte(name), unix.UnixRights(int(a.Fd())), nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := receiver.Next(); !errors.Is(err, ErrMalformed) {
			t.Errorf("Next accepted the name %q: %v", name, err)
		}
	}
}

func TestSendNeverBlocksOnAChildThatDoesNotRead(t *testing.T) {
	ours, _ := newPair(t)
	a, b, err := Connection()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	for range 100_000 {
		if err = Send(ours, "runnerd", a); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("the supply socket has no bound")
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
