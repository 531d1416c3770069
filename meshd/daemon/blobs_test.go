package daemon

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reactor"
	"colloid.net/meshd/wire"
)

// blobCells are two cells with a runnerd that the test plays beside each: a pulls, and b has it.
type blobCells struct {
	t            *testing.T
	a, b         *running
	linkA, linkB *ring.Link
	number       uint64
}

func newBlobCells(t *testing.T) *blobCells {
	t.Helper()
	p := &blobCells{t: t, a: launch(t, reactor.DriverAuto), b: launch(t, reactor.DriverAuto)}
	p.b.join(p.a)
	eventually(t, "two cells see each other", allSee([]*running{p.a, p.b}, 2))
	p.linkA, p.linkB = helperPair(t, p.a), helperPair(t, p.b)
	for _, r := range []*running{p.a, p.b} {
		eventually(t, "a runnerd", func() (there bool) {
			r.inspect(func(*cell.Cell) { there = r.daemon.helper.link != nil })
			return there
		})
	}
	p.holders(wire.CellID(selfOf(p.b)))
	return p
}

// holders says which cells a believes to have everything.
func (p *blobCells) holders(list ...wire.CellID) {
	p.a.inspect(func(*cell.Cell) {
		p.a.daemon.blobs.holders = func(_ [32]byte, avoid func(wire.CellID) bool, most int) (found []wire.CellID) {
			for _, id := range list {
				if !avoid(id) && len(found) < most {
					found = append(found, id)
				}
			}
			return found
		}
	})
}

var blobDigest = bytes.Repeat([]byte{7}, 32)

// want is runnerd of a asking for a blob.
func (p *blobCells) want(change func(*message.Wanted)) {
	p.t.Helper()
	p.number++
	w := &message.Wanted{Number: p.number, Image: make([]byte, 32), Digest: blobDigest}
	if change != nil {
		change(w)
	}
	event, err := proto.Marshal(&message.Event{Body: &message.Event_Wanted{Wanted: w}})
	if err != nil || !p.linkA.Send(event) {
		p.t.Fatal(err)
	}
}

// none waits until a says that there is none, and gives what it says.
func (p *blobCells) none() *message.NoBlob {
	p.t.Helper()
	buffer := make([]byte, ring.RecordMax)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		n, ok, err := p.linkA.Receive(buffer)
		if err != nil {
			p.t.Fatal(err)
		}
		if !ok {
			p.linkA.Wait(100 * time.Millisecond)
			continue
		}
		var command message.Command
		if err := proto.Unmarshal(buffer[:n], &command); err != nil {
			p.t.Fatal(err)
		}
		if m := command.GetNoBlob(); m != nil {
			if m.Wanted != p.number {
				p.t.Fatalf("an answer to %d, want %d", m.Wanted, p.number)
			}
			return m
		}
	}
	p.t.Fatal("no answer came")
	return nil
}

// give is runnerd of b answering with a file that holds content.
func (p *blobCells) give(content []byte, offset int64) {
	p.t.Helper()
	asked := nextAttach(p.t, p.linkB)
	if blob := asked.GetBlob(); blob == nil || !bytes.Equal(blob.Digest, blobDigest) || blob.Offset != uint64(offset) {
		p.t.Fatalf("runnerd is asked for %v", asked)
	}
	path := filepath.Join(p.t.TempDir(), "blob")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		p.t.Fatal(err)
	}
	file, err := os.Open(path)
	if err == nil {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err == nil {
		err = p.linkB.SendDescriptor(asked.Channel, file)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	file.Close()
}

// sink is runnerd of a giving a socket; the end of the fetcher comes back.
func (p *blobCells) sink() *os.File {
	p.t.Helper()
	asked := nextAttach(p.t, p.linkA)
	sink := asked.GetBlobSink()
	if sink == nil || sink.Wanted != p.number || sink.Cell != selfOf(p.b) {
		p.t.Fatalf("runnerd is asked for %v", asked)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	if err := p.linkA.SendDescriptor(asked.Channel, theirs); err != nil {
		p.t.Fatal(err)
	}
	theirs.Close()
	p.t.Cleanup(func() { ours.Close() })
	_ = ours.SetReadDeadline(time.Now().Add(20 * time.Second))
	return ours
}

// nothingLeft waits until neither cell has anything to do with blobs.
func (p *blobCells) nothingLeft() {
	p.t.Helper()
	noAttachments(p.t, p.b)
	eventually(p.t, "no pull is left", func() (none bool) {
		p.a.inspect(func(*cell.Cell) { none = len(p.a.daemon.blobs.pulls) == 0 })
		p.b.inspect(func(*cell.Cell) { none = none && p.b.daemon.attachments.blobs == 0 })
		return none
	})
}

// A blob passes from the file of one runnerd to the fetcher of the other as it is, from the byte that was asked for
// on, and then ends; a fetcher that has enough ends it at once (F76).
func TestF76_BlobsPassFromCellToCell(t *testing.T) {
	p := newBlobCells(t)
	content := make([]byte, 3<<20)
	rand.Read(content)
	for _, offset := range []int64{0, 1 << 20} {
		p.want(func(w *message.Wanted) { w.Offset = uint64(offset) })
		p.give(content, offset)
		file := p.sink()
		got, err := io.ReadAll(file)
		if err != nil || !bytes.Equal(got, content[offset:]) {
			t.Fatalf("%d bytes came, %v", len(got), err)
		}
		file.Close()
		p.nothingLeft()
	}
	p.want(nil)
	p.give(content, 0)
	file := p.sink()
	if _, err := io.ReadFull(file, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	file.Close()
	p.nothingLeft()
}

// Whoever has nothing, does not answer or is busy is left, with the reason; a silent cell is not asked again for a
// while (F76).
func TestF76_BlobsThatNobodyGives(t *testing.T) {
	p := newBlobCells(t)
	refuse := func() {
		asked := nextAttach(t, p.linkB)
		answer, _ := proto.Marshal(&message.Event{Body: &message.Event_Attached{
			Attached: &message.Attached{Channel: asked.Channel, Error: "it is not shared"},
		}})
		p.linkB.Send(answer)
	}
	p.want(nil)
	refuse()
	if m := p.none(); m.Alone || !strings.Contains(m.Reason, "it is not shared") {
		t.Errorf("%v", m)
	}
	p.want(func(w *message.Wanted) { w.Avoid = []uint64{selfOf(p.b)} })
	if m := p.none(); !m.Alone {
		t.Errorf("%v", m)
	}
	p.b.inspect(func(*cell.Cell) { p.b.daemon.attachments.blobs = blobsServedMax })
	p.want(nil)
	if m := p.none(); m.Alone || !strings.Contains(m.Reason, "busy") {
		t.Errorf("%v", m)
	}
	p.b.inspect(func(*cell.Cell) { p.b.daemon.attachments.blobs = 0 })
	p.want(nil) // its runnerd says nothing
	if m := p.none(); !strings.Contains(m.Reason, "does not answer") {
		t.Errorf("%v", m)
	}
	p.want(nil)
	if m := p.none(); !m.Alone {
		t.Errorf("%v", m)
	}
	p.a.inspect(func(*cell.Cell) { clear(p.a.daemon.blobs.silent) })
	nextAttach(t, p.linkB) // of before
	p.holders(wire.CellID(0x7777), wire.CellID(selfOf(p.b)))
	p.want(nil) // a cell that does not exist comes first
	refuse()
	if m := p.none(); !strings.Contains(m.Reason, "it is not shared") {
		t.Errorf("%v", m)
	}
	p.linkA.Close()
	p.nothingLeft()
}

// More pulls at a time than a runnerd makes are refused, and what makes no sense ends the connection.
func TestF76_BlobsWantedAreBounded(t *testing.T) {
	p := newBlobCells(t)
	p.a.inspect(func(*cell.Cell) {
		for range blobPullsMax {
			p.a.daemon.blobs.pulls[&blobPull{owner: &p.a.daemon.blobs}] = struct{}{}
		}
	})
	p.want(nil)
	if m := p.none(); !strings.Contains(m.Reason, "already") {
		t.Errorf("%v", m)
	}
	p.want(func(w *message.Wanted) { w.Digest = nil })
	eventually(t, "the end of the connection", func() (gone bool) {
		p.a.inspect(func(*cell.Cell) { gone = p.a.daemon.helper.link == nil })
		return gone
	})
	p.nothingLeft()
}
