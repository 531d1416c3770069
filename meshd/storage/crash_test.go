package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"colloid.net/meshd/wire"
	"golang.org/x/sys/unix"
)

// history is what a cell did and was told, over any number of runs on one disk. It says what the
// next Open has to find.
type history struct {
	t    *testing.T
	dice *rand.Rand

	self        wire.CellID
	incarnation uint32 // the highest that was returned or acknowledged
	writes      int    // how many were ever issued
	acked       map[int]bool
	snapshot    int // the newest acknowledged, 0 = none
	snapshots   []string
	clusterDone byte // newest acknowledged
	clusters    byte // newest issued
	founded     map[byte]bool
	boots       int
	peersDone   byte
	peers       byte
}

func newHistory(t *testing.T, dice *rand.Rand) *history {
	return &history{t: t, dice: dice, acked: map[int]bool{}, founded: map[byte]bool{}, snapshots: []string{""}}
}

func (h *history) record(n int) []byte { return fmt.Appendf(nil, "<write %d>", n) }

// run opens the disk, checks what it finds, works for a while and closes. Any call may fail.
func (h *history) run(disk *memoryDisk, steps int) {
	ended := make(chan error, 64)
	options := Options{Window: -1, Completed: func(_ uint64, err error) { ended <- err }}
	h.boots++
	options.BootID = fmt.Sprint("boot ", h.boots)
	d, loaded, err := openDisk(disk, "/state", "machine", options)
	if err != nil {
		if errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), errCrash.Error()) {
			h.t.Errorf("a crash or an error is taken for damage: %v", err)
		}
		return
	}
	if loaded.Lost != "" || len(loaded.Damaged) > 0 || loaded.Renewed {
		h.t.Errorf("a crash or an error is taken for damage: %q, %q", loaded.Lost, loaded.Damaged)
	}
	h.check(loaded)
	if loaded.Cluster == (Cluster{}) { // as every cell does first
		h.clusters++
		h.founded[h.clusters] = true
		d.SaveCluster(3, Cluster{Key: [32]byte{h.clusters, 31: h.clusters}})
		if <-ended == nil {
			h.clusterDone = h.clusters
		}
	}
	h.self, h.incarnation = loaded.Self, loaded.Incarnation
	for range steps {
		h.step(d, ended)
	}
	d.Close()
}

func (h *history) step(d *Directory, ended chan error) {
	switch h.dice.IntN(8) {
	case 0, 1, 2:
		first, count := h.writes+1, 1+h.dice.IntN(4)
		for range count {
			h.writes++
			d.AppendWrite(1, h.record(h.writes))
		}
		for i := range count {
			// Completions of one kind come in order.
			if err := <-ended; err == nil {
				h.acked[first+i] = true
			}
		}
	case 3, 4:
		var data strings.Builder
		for n := range h.writes {
			data.Write(h.record(n + 1))
		}
		h.snapshots = append(h.snapshots, data.String())
		d.SaveSnapshot(2, []byte(data.String()))
		if <-ended == nil {
			h.snapshot = len(h.snapshots) - 1
		}
	case 5:
		h.clusters++
		d.SaveCluster(3, Cluster{Key: [32]byte{h.clusters, 31: h.clusters}, Joined: true})
		if <-ended == nil {
			h.clusterDone = h.clusters
		}
	case 6:
		h.peers++
		d.SavePeers(4, peersNumbered(h.peers))
		if <-ended == nil {
			h.peersDone = h.peers
		}
	case 7:
		next := h.incarnation + uint32(h.dice.IntN(3))
		d.SaveIncarnation(5, next)
		if <-ended == nil {
			h.incarnation = max(h.incarnation, next)
		}
	}
}

func peersNumbered(n byte) []wire.Contact {
	return []wire.Contact{
		{ID: wire.CellID(n), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 12421), Flags: n},
		{ID: wire.CellID(n) << 8, Address: netip.MustParseAddrPort("[2001:db8::1]:1"), Reach: wire.ReachPublic},
	}
}

func (h *history) check(loaded Loaded) {
	t := h.t
	t.Helper()
	if h.self != 0 && loaded.Self != h.self {
		t.Errorf("F1: cell %v became %v", h.self, loaded.Self)
	}
	if loaded.Incarnation <= h.incarnation {
		t.Errorf("F1: incarnation %d was used before, now %d", h.incarnation, loaded.Incarnation)
	}
	newest := slices.Index(h.snapshots, string(loaded.Snapshot))
	for i, s := range h.snapshots { // equal ones: the last counts
		if s == string(loaded.Snapshot) {
			newest = i
		}
	}
	if newest < 0 {
		t.Errorf("F157: garbage for a snapshot: %q", loaded.Snapshot)
	} else if newest < h.snapshot {
		t.Errorf("F157: snapshot %d, but %d was acknowledged", newest, h.snapshot)
	}
	have := string(loaded.Snapshot) + string(bytes.Join(loaded.Writes, nil))
	for n := range h.writes {
		if h.acked[n+1] && !strings.Contains(have, string(h.record(n+1))) {
			t.Errorf("F157: write %d was acknowledged and is lost", n+1)
		}
	}
	for _, w := range loaded.Writes {
		var n int
		if _, err := fmt.Sscanf(string(w), "<write %d>", &n); err != nil || n < 1 || n > h.writes {
			t.Errorf("F157: garbage for a write: %q", w)
		}
	}
	for n := h.clusterDone; ; n++ {
		if n > h.clusters {
			t.Errorf("F4: cluster %v, acknowledged %d, issued %d", loaded.Cluster.Key, h.clusterDone, h.clusters)
			break
		}
		if loaded.Cluster.Key == [32]byte{n, 31: n} && loaded.Cluster.Joined == (n > 0 && !h.founded[n]) {
			break
		}
	}
	h.checkPeers(loaded.Peers)
}

func (h *history) checkPeers(peers []wire.Contact) {
	for n := h.peersDone; n <= h.peers; n++ {
		if n == 0 && len(peers) == 0 || slices.Equal(peers, peersNumbered(n)) {
			return
		}
	}
	h.t.Errorf("F4: peers %v, acknowledged %d, issued %d", peers, h.peersDone, h.peers)
}

// F1, F157: the power goes at each call of the file system in turn. The next start finds the old or
// the new state of everything, never a mixture, no acknowledged write is missing, and no incarnation
// comes twice. The start after a crash is cut off at random too.
func TestF157_PowerCutAtEachCall(t *testing.T) {
	for seed := range uint64(16) {
		for target := 1; ; target++ {
			dice := rand.New(rand.NewPCG(seed, 1))
			h := newHistory(t, dice)
			disk := newMemoryDisk()
			disk.target, disk.last, disk.fault = target, target, errCrash
			h.run(disk, 12)
			reached := disk.off
			chance := rand.New(rand.NewPCG(seed, uint64(target)))
			for range 2 {
				disk = disk.crash(chance)
				disk.target = 1 + chance.IntN(60)
				disk.last, disk.fault = disk.target, errCrash
				h.run(disk, 6)
			}
			h.run(disk.crash(chance), 0)
			if t.Failed() {
				t.Fatalf("seed %d, call %d", seed, target)
			}
			if !reached {
				break
			}
		}
	}
}

// F157: each call in turn fails, alone or with those after it. What was acknowledged is there after
// a restart, and after a power cut.
func TestF157_ErrorAtEachCall(t *testing.T) {
	for _, fault := range []error{unix.ENOSPC, unix.EIO} {
		for _, length := range []int{1, 2, 7} {
			for seed := range uint64(8) {
				for target := 1; ; target++ {
					h := newHistory(t, rand.New(rand.NewPCG(seed, 2)))
					disk := newMemoryDisk()
					disk.target, disk.last, disk.fault = target, target+length-1, fault
					h.run(disk, 12)
					reached := disk.calls >= target
					disk = disk.crash(rand.New(rand.NewPCG(seed, uint64(target))))
					h.run(disk, 4)
					h.run(disk, 0)
					if t.Failed() {
						t.Fatalf("%v, seed %d, call %d", fault, seed, target)
					}
					if !reached {
						break
					}
				}
			}
		}
	}
}

// F1: a kill between the write of the incarnation and its sync never leads to the same number again.
func TestF1_IncarnationIsNeverReused(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 3))
	used := map[string]bool{}
	disk := newMemoryDisk()
	for range 2000 {
		disk.calls, disk.target, disk.fault = 0, 1+dice.IntN(40), errCrash
		disk.last = disk.target
		d, loaded, err := openDisk(disk, "/state", "machine", Options{Window: -1})
		if err == nil {
			dot := fmt.Sprint(loaded.Self, loaded.Incarnation)
			if used[dot] {
				t.Fatalf("cell %v incarnation %d came twice", loaded.Self, loaded.Incarnation)
			}
			used[dot] = true
			d.Close()
		}
		disk = disk.crash(dice)
	}
	if len(used) < 100 {
		t.Fatalf("only %d starts succeeded", len(used))
	}
}

// F157: a full disk refuses writes with an error that can be told from others, and when there is
// space again the log goes on without a gap.
func TestF157_NoSpaceIsRecognisable(t *testing.T) {
	disk := newMemoryDisk()
	ended := make(chan error, 8)
	options := Options{Window: -1, Completed: func(_ uint64, err error) { ended <- err }}
	d, _, err := openDisk(disk, "/state", "m", options)
	if err != nil {
		t.Fatal(err)
	}
	d.SaveCluster(1, Cluster{Key: [32]byte{1}})
	d.AppendWrite(1, []byte("before"))
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	disk.mutex.Lock()
	disk.target, disk.last, disk.fault = disk.calls+1, 1<<30, unix.ENOSPC
	disk.mutex.Unlock()
	d.AppendWrite(1, []byte("during"))
	err = <-ended
	if !IsNoSpace(err) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/state") {
		t.Errorf("full disk: %v", err)
	}
	disk.mutex.Lock()
	disk.target = 0
	disk.mutex.Unlock()
	d.AppendWrite(1, []byte("after"))
	if err := <-ended; err != nil {
		t.Errorf("space again: %v", err)
	}
	d.Close()
	d, loaded, err := openDisk(disk.crash(rand.New(rand.NewPCG(1, 1))), "/state", "m", options)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if got := string(bytes.Join(loaded.Writes, []byte(","))); got != "before,after" {
		t.Errorf("writes %q", got)
	}
}

// F1: when the id has to be given up because its incarnation cannot be trusted, a power cut in the
// middle of that does not bring it back together with a low incarnation.
func TestF1_GivenUpIdentityStaysGivenUp(t *testing.T) {
	for name, break_ := range map[string]func(*memoryDisk){
		"missing": func(disk *memoryDisk) { disk.Remove(nameIncarnation) },
		"used up": func(disk *memoryDisk) {
			w := newWriter(disk)
			w.replace(nameIncarnation, kindIncarnation, marshalIncarnation(IncarnationMax))
		},
	} {
		for target := 1; ; target++ {
			disk := newMemoryDisk()
			d, first, err := openDisk(disk, "/state", "m", Options{Window: -1})
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			break_(disk)
			disk.Sync()
			disk.target = disk.calls + target
			disk.last, disk.fault = disk.target, errCrash
			if d, _, err := openDisk(disk, "/state", "m", Options{Window: -1}); err == nil {
				d.Close()
			}
			reached := disk.off
			for seed := range uint64(8) {
				d, second, err := openDisk(disk.crash(rand.New(rand.NewPCG(seed, 1))), "/state", "m", Options{Window: -1})
				if err != nil {
					t.Fatal(err)
				}
				d.Close()
				if second.Self == first.Self {
					t.Fatalf("%s, call %d: cell %v came back with incarnation %d",
						name, target, second.Self, second.Incarnation)
				}
			}
			if !reached {
				break
			}
		}
	}
}

// F157: an entry that was appended while a snapshot without it was under way stays in a log until
// both snapshots contain it.
func TestF157_LateEntriesOutliveARotation(t *testing.T) {
	disk := newMemoryDisk()
	r := newResults()
	options := Options{Window: -1, Completed: r.completed}
	d, _, err := openDisk(disk, "/state", "m", options)
	if err != nil {
		t.Fatal(err)
	}
	d.SaveCluster(9, Cluster{Key: [32]byte{1}})
	r.wait(t, 9)
	disk.mutex.Lock() // holds the writer, so that the next two are taken in one round
	d.AppendWrite(1, []byte("<1>"))
	d.SaveSnapshot(2, []byte("<1>"))
	d.AppendWrite(3, []byte("<2>"))
	disk.mutex.Unlock()
	r.wait(t, 2)
	r.wait(t, 3)
	d.AppendWrite(4, []byte("<3>"))
	r.wait(t, 4)
	d.SaveSnapshot(5, []byte("<1><2><3>"))
	r.wait(t, 5)
	d.Close()
	flipLast(disk.live[nameSnapshot].data)
	d, loaded, err := openDisk(disk, "/state", "m", options)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if have := string(loaded.Snapshot) + string(bytes.Join(loaded.Writes, nil)); have != "<1><2><3>" {
		t.Errorf("have %s", have)
	}
}
