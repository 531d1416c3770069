package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

// Appends that come together share a sync; a single one does not wait for others.
func TestAppendsAreBatched(t *testing.T) {
	disk := newMemoryDisk()
	r := newResults()
	d, _, err := openDisk(disk, "/state", "m", Options{Completed: r.completed, Window: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	start := time.Now()
	d.AppendWrite(1, []byte("alone"))
	r.wait(t, 1)
	if took := time.Since(start); took > 40*time.Millisecond {
		t.Errorf("a single append took %v", took)
	}
	before := disk.count()
	for i := range uint64(200) {
		d.AppendWrite(2+i, []byte("together"))
	}
	for i := range uint64(200) {
		if err := r.wait(t, 2+i); err != nil {
			t.Fatal(err)
		}
	}
	if calls := disk.count() - before; calls > 8 { // write and sync, twice at most, and chance
		t.Errorf("%d calls for 200 appends", calls)
	}
}

func (d *memoryDisk) count() int {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.calls
}

// Every call ends in exactly one completion, at the bounds of the queue and after Close too.
func TestEveryTicketEndsOnce(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	const many = 5000
	for i := range uint64(many) {
		switch i % 4 {
		case 0:
			d.SavePeers(i, peersNumbered(1))
		case 1:
			d.SaveSnapshot(i, []byte("s"))
		default:
			d.AppendWrite(i, []byte("x"))
		}
	}
	d.Close()
	d.AppendWrite(many, []byte("late"))
	full := 0
	for i := range uint64(many) {
		if err := f.results.wait(t, i); errors.Is(err, ErrQueueFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.results.wait(t, many); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	t.Logf("%d of %d found the queue full", full, many)
	for name, data := range map[string][]byte{"empty": nil, "large": make([]byte, RecordMax+1)} {
		many := many + 1 + uint64(len(data))
		d.AppendWrite(many, data)
		if f.results.wait(t, many) == nil {
			t.Errorf("an %s record was taken", name)
		}
	}
}

func TestPeersAreBounded(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	var peers []wire.Contact
	for i := range 100 {
		peers = append(peers, peersNumbered(byte(i))[0])
	}
	d.SaveCluster(2, Cluster{Key: [32]byte{1}})
	d.SavePeers(1, peers)
	f.results.wait(t, 1)
	d.Close()
	if _, loaded := f.open(t); !slices.Equal(loaded.Peers, peers[:PeersMax]) {
		t.Errorf("%d peers", len(loaded.Peers))
	}
}

// F157: on a file system that is really full, writes are refused as such, the small files still go
// through at the price of the ballast, and all is well when space returns.
func TestF157_FullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small tmpfs")
	}
	f := newFixture(t)
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=3m,mode=0700"); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	f.path = filepath.Join(mount, "state")
	d, first := f.open(t)
	d.AppendWrite(1, []byte("before"))
	f.results.wait(t, 1)

	filler := filepath.Join(mount, "filler")
	fill(t, filler)
	big := bytes.Repeat([]byte("x"), 20000)
	d.AppendWrite(2, big)
	if err := f.results.wait(t, 2); !IsNoSpace(err) || !strings.Contains(err.Error(), f.path) {
		t.Errorf("append on a full disk: %v", err)
	}
	d.SaveSnapshot(3, big)
	if err := f.results.wait(t, 3); !IsNoSpace(err) {
		t.Errorf("snapshot on a full disk: %v", err)
	}
	d.SaveCluster(4, Cluster{[32]byte{4}, true})
	d.SaveIncarnation(5, 50)
	d.SavePeers(6, peersNumbered(3))
	for ticket := uint64(4); ticket <= 6; ticket++ {
		if err := f.results.wait(t, ticket); err != nil {
			t.Errorf("small file %d on a full disk: %v", ticket, err)
		}
	}
	d.Close()
	fill(t, filler+"2")
	d, second := f.open(t) // the incarnation can be raised
	if second.Self != first.Self || second.Incarnation != 51 || len(second.Writes) != 1 {
		t.Errorf("reopened on a full disk: %+v", second)
	}
	os.Remove(filler)
	os.Remove(filler + "2")
	d.AppendWrite(7, big)
	if err := f.results.wait(t, 7); err != nil {
		t.Errorf("with space again: %v", err)
	}
	d.SavePeers(8, nil)
	f.results.wait(t, 8)
	d.Close()
	if info, err := os.Stat(filepath.Join(f.path, nameBallast)); err != nil || info.Size() != BallastSize {
		t.Errorf("the ballast was not taken again: %v", err)
	}
}

// fill leaves no free block.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 64 << 10; size >= 1; size /= 2 {
		for {
			if _, err := file.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
}
