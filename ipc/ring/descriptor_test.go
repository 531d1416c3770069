package ring

import (
	"encoding/binary"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipeToPass makes a pipe whose reading end is to be passed; what is written to the other shows that the
// right one came.
func pipeToPass(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	return read, write
}

func TestDescriptorsArriveWithTheirTags(t *testing.T) {
	helper, meshd := links(t)
	for tag := range uint64(200) {
		read, write := pipeToPass(t)
		if err := helper.SendDescriptor(tag, read); err != nil {
			t.Fatal(err)
		}
		read.Close()
		got, file, err := meshd.ReceiveDescriptor()
		if err != nil || got != tag {
			t.Fatalf("tag %d, %v, expected %d", got, err, tag)
		}
		write.WriteString("x")
		var one [1]byte
		if _, err := file.Read(one[:]); err != nil || one[0] != 'x' {
			t.Fatal("another descriptor came")
		}
		file.Close()
		write.Close()
	}
	helper.Close()
	if _, _, err := meshd.ReceiveDescriptor(); err != io.EOF {
		t.Fatalf("after the hang-up: %v", err)
	}
}

// TestF133_HostileDescriptorFramesFailTheLink plays a helper that passes several descriptors, none, or
// frames of a wrong length. Nothing of it may stay open here.
func TestF133_HostileDescriptorFramesFailTheLink(t *testing.T) {
	for _, c := range []struct {
		name        string
		length      int
		descriptors int
	}{
		{"no descriptor", 8, 0}, {"two", 8, 2}, {"as many as the kernel takes", 8, 253},
		{"too short", 7, 1}, {"one byte", 1, 1}, {"too long", 9, 1}, {"much too long", 4000, 1},
	} {
		helper, meshd := links(t)
		before := openDescriptors(t)
		read, _ := pipeToPass(t)
		rights := make([]int, c.descriptors)
		for i := range rights {
			rights[i] = int(read.Fd())
		}
		var control []byte
		if c.descriptors > 0 {
			control = unix.UnixRights(rights...)
		}
		if _, _, err := helper.conn.WriteMsgUnix(make([]byte, c.length), control, nil); err != nil {
			t.Fatal(c.name, err)
		}
		_, file, err := meshd.ReceiveDescriptor()
		if c.length > 8 && err == nil { // the frame is good, what follows is not
			file.Close()
			_, _, err = meshd.ReceiveDescriptor()
		}
		if err != ErrDescriptorFrame || meshd.Err() != ErrDescriptorFrame {
			t.Errorf("%s: %v, link %v", c.name, err, meshd.Err())
		}
		if after := openDescriptors(t); after != before+2 { // the pipe
			t.Errorf("%s: %d descriptors were open, now %d", c.name, before, after)
		}
	}
}

// TestF133_DescriptorsOfMeshdAreNeverTaken: to runnerd any byte on the socket is the end.
func TestF133_DescriptorsOfMeshdAreNeverTaken(t *testing.T) {
	helper, meshd := links(t)
	read, write := pipeToPass(t)
	if err := meshd.SendDescriptor(1, read); err != nil {
		t.Fatal(err)
	}
	read.Close()
	helper.WaitHangup()
	helper.Close()
	meshd.Close()
	if _, err := write.Write([]byte("x")); err == nil {
		t.Fatal("somebody still holds the reading end")
	}
}

// TestF133_DescriptorFloodFailsTheLink passes more than anybody asked for.
func TestF133_DescriptorFloodFailsTheLink(t *testing.T) {
	helper, meshd := links(t)
	read, _ := pipeToPass(t)
	before := openDescriptors(t)
	go func() {
		for tag := range uint64(UnclaimedMax + 1) {
			if helper.SendDescriptor(tag, read) != nil {
				return
			}
		}
	}()
	var table Descriptors
	for n := 0; ; n++ {
		tag, file, err := meshd.ReceiveDescriptor()
		if err != nil {
			t.Fatal(err)
		}
		if err = table.Put(tag, file); err == ErrDescriptorFlood && n == UnclaimedMax {
			break
		} else if err != nil || n > UnclaimedMax {
			t.Fatalf("descriptor %d: %v", n, err)
		}
	}
	table.Close()
	if after := openDescriptors(t); after != before {
		t.Fatalf("%d descriptors were open, now %d", before, after)
	}
}

// TestSendDescriptorNeverBlocksForLong has a peer that does not read.
func TestSendDescriptorNeverBlocksForLong(t *testing.T) {
	helper, _ := links(t)
	read, _ := pipeToPass(t)
	began := time.Now()
	for range 1 << 20 {
		if helper.SendDescriptor(1, read) != nil {
			break
		}
	}
	if took := time.Since(began); took > 5*descriptorPatience || helper.Err() == nil {
		t.Fatalf("%v, link %v", took, helper.Err())
	}
	if err := helper.SendDescriptor(1, read); err == nil {
		t.Fatal("sent on a failed link")
	}
}

func TestClaimsMeetDescriptorsInEitherOrder(t *testing.T) {
	var table Descriptors
	file := func() *os.File { read, _ := pipeToPass(t); return read }
	var got []*os.File
	take := func(f *os.File) { got = append(got, f) }
	first, second, third := file(), file(), file()
	table.Claim(1, take)
	if err := table.Put(1, first); err != nil {
		t.Fatal(err)
	}
	if err := table.Put(2, second); err != nil {
		t.Fatal(err)
	}
	if err := table.Put(2, third); err != ErrDescriptorTag {
		t.Fatalf("the same tag twice: %v", err)
	}
	table.Claim(2, take)
	if len(got) != 2 || got[0] != first || got[1] != second {
		t.Fatalf("%d were handed out", len(got))
	}
	table.Claim(3, take)
	table.Abandon(3)
	late := file()
	if err := table.Put(3, late); err != nil || len(got) != 2 {
		t.Fatal("an abandoned claim was served", err)
	}
	if _, err := late.Stat(); err == nil {
		t.Fatal("a descriptor that came too late is still open")
	}
	here := file()
	if err := table.Put(3, here); err != nil {
		t.Fatal(err)
	}
	table.Abandon(3)
	if _, err := here.Stat(); err == nil {
		t.Fatal("an abandoned descriptor is still open")
	}
	for tag := range uint64(2 * abandonedMax) {
		table.Claim(100+tag, take)
		table.Abandon(100 + tag)
	}
	if n := len(table.abandoned); n != abandonedMax || len(table.wanted) != 0 {
		t.Fatalf("%d abandoned claims are remembered", n)
	}
	table.Close()
	if err := table.Put(4, file()); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestDescriptorTagIsBigEndian(t *testing.T) {
	helper, meshd := links(t)
	read, _ := pipeToPass(t)
	const tag = 0x0102030405060708
	if err := helper.SendDescriptor(tag, read); err != nil {
		t.Fatal(err)
	}
	var frame [8]byte
	if _, err := io.ReadFull(meshd.conn, frame[:]); err != nil || binary.BigEndian.Uint64(frame[:]) != tag {
		t.Fatalf("%x, %v", frame, err)
	}
}
