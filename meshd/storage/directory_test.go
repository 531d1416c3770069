package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// results collects completions by ticket.
type results struct {
	mutex sync.Mutex
	ended map[uint64][]error
}

func newResults() *results { return &results{ended: map[uint64][]error{}} }

func (r *results) completed(ticket uint64, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.ended[ticket] = append(r.ended[ticket], err)
}

func (r *results) wait(t *testing.T, ticket uint64) error {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		r.mutex.Lock()
		ended := r.ended[ticket]
		r.mutex.Unlock()
		if len(ended) == 1 {
			return ended[0]
		}
		if len(ended) > 1 || time.Now().After(limit) {
			t.Fatalf("ticket %d ended %d times", ticket, len(ended))
		}
	}
}

type fixture struct {
	path, machineID string
	bootID          string
	results         *results
	checkJoining    func([]byte) error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		path: filepath.Join(t.TempDir(), "state"), machineID: filepath.Join(t.TempDir(), "machine-id"), results: newResults(),
	}
	f.setMachine(t, "0123456789abcdef0123456789abcdef")
	return f
}

func (f *fixture) setMachine(t *testing.T, id string) {
	t.Helper()
	if err := os.WriteFile(f.machineID, []byte(id+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) try() (*Directory, Loaded, error) {
	return Open(f.path, Options{MachineIDPath: f.machineID, BootID: f.bootID, Completed: f.results.completed,
		CheckJoining: f.checkJoining})
}

func (f *fixture) open(t *testing.T) (*Directory, Loaded) {
	t.Helper()
	d, loaded, err := f.try()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, loaded
}

func TestEverythingComesBack(t *testing.T) {
	f := newFixture(t)
	d, first := f.open(t)
	if first.Incarnation != 1 || !first.Self.Valid() || first.Snapshot != nil || len(first.Writes) != 0 ||
		first.Cluster.Joined || len(first.Notes) != 0 {
		t.Errorf("fresh directory: %+v", first)
	}
	d.AppendWrite(1, []byte("in the snapshot"))
	d.SaveSnapshot(2, []byte("state"))
	d.AppendWrite(3, []byte("after it"))
	d.SaveCluster(4, Cluster{[32]byte{1, 2, 3}, true})
	d.SavePeers(5, peersNumbered(9))
	d.SaveIncarnation(6, 41)
	d.SaveIncarnation(7, 7) // never lowered
	for ticket := range uint64(7) {
		if err := f.results.wait(t, ticket+1); err != nil {
			t.Errorf("ticket %d: %v", ticket+1, err)
		}
	}
	d.Close()
	_, second := f.open(t)
	if second.Self != first.Self || second.SecretHash != first.SecretHash || second.Incarnation != 42 {
		t.Errorf("identity %+v became %+v", first, second)
	}
	if string(second.Snapshot) != "state" || len(second.Writes) != 1 || string(second.Writes[0]) != "after it" {
		t.Errorf("snapshot %q, writes %q", second.Snapshot, second.Writes)
	}
	if second.Cluster != (Cluster{[32]byte{1, 2, 3}, true}) || !slices.Equal(second.Peers, peersNumbered(9)) {
		t.Errorf("cluster %+v, peers %v", second.Cluster, second.Peers)
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	f := newFixture(t)
	os.Mkdir(f.path, 0o777)
	os.Chmod(f.path, 0o777)
	d, _ := f.open(t)
	d.SaveCluster(1, Cluster{Key: [32]byte{1}})
	d.SavePeers(2, nil)
	d.SaveSnapshot(3, nil)
	for ticket := range uint64(3) {
		f.results.wait(t, ticket+1)
	}
	info, err := os.Stat(f.path)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(f.path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		if info, _ := entry.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", entry.Name(), info.Mode())
		}
	}
	want := []string{nameBallast, nameIdentity, nameCluster, nameIncarnation, nameInventory,
		nameLock, namePeers, nameSnapshot, nameLog}
	if !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	var usage unix.Stat_t
	if unix.Stat(filepath.Join(f.path, nameBallast), &usage); usage.Blocks*512 < BallastSize {
		t.Errorf("F157: the ballast takes up %d bytes", usage.Blocks*512)
	}
}

func TestLockNamesTheHolder(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	_, _, err := f.try()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Errorf("second Open: %v", err)
	}
	d.Close()
	f.open(t)
}

func TestF2_StateOfAnotherMachineGetsANewID(t *testing.T) {
	f := newFixture(t)
	d, first := f.open(t)
	d.SaveCluster(1, Cluster{[32]byte{5}, true})
	f.results.wait(t, 1)
	d.Close()
	f.setMachine(t, "ffffffffffffffffffffffffffffffff")
	d, clone := f.open(t)
	if clone.Self == first.Self || clone.SecretHash == first.SecretHash || len(clone.Notes) != 1 {
		t.Errorf("%+v became %+v", first, clone)
	}
	if !clone.Cluster.Joined {
		t.Error("F4: the clone has forgotten its cluster")
	}
	d.Close()
	if _, again := f.open(t); again.Self != clone.Self || len(again.Notes) != 0 {
		t.Errorf("the new id does not last: %+v, %+v", clone, again)
	}
}

func TestF3_RestartKeepsIdentity(t *testing.T) {
	f := newFixture(t)
	var first Loaded
	for i := range 10 {
		d, loaded := f.open(t)
		if i == 0 {
			first = loaded
		}
		if loaded.Self != first.Self || loaded.SecretHash != first.SecretHash || loaded.Incarnation != uint32(i+1) {
			t.Errorf("start %d: %+v", i, loaded)
		}
		d.Close()
	}
}

func TestF2_DiscardedIdentityIsNotUsedAgain(t *testing.T) {
	f := newFixture(t)
	d, first := f.open(t)
	d.DiscardIdentity(1)
	if err := f.results.wait(t, 1); err != nil {
		t.Fatal(err)
	}
	d.Close()
	if _, second := f.open(t); second.Self == first.Self {
		t.Error("the id came back")
	}
}

// damage changes one file of a closed directory.
func (f *fixture) damage(t *testing.T, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(f.path, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func flipLast(data []byte) []byte { data[len(data)-1] ^= 1; return data }

// F1: without a trustworthy incarnation the old id is not used, since its dots might come twice.
func TestF1_DamagedIncarnationMeansANewID(t *testing.T) {
	for name, break_ := range map[string]func(*fixture){
		"damaged":  func(f *fixture) { f.damage(t, nameIncarnation, flipLast) },
		"empty":    func(f *fixture) { f.damage(t, nameIncarnation, func([]byte) []byte { return nil }) },
		"missing":  func(f *fixture) { os.Remove(filepath.Join(f.path, nameIncarnation)) },
		"identity": func(f *fixture) { f.damage(t, nameIdentity, flipLast) },
	} {
		f := newFixture(t)
		d, first := f.open(t)
		d.Close()
		break_(f)
		_, second := f.open(t)
		if second.Self == first.Self || len(second.Notes) == 0 {
			t.Errorf("%s: cell %v goes on with incarnation %d, notes %q",
				name, second.Self, second.Incarnation, second.Notes)
		}
	}
}

func TestF1_IncarnationsCanBeUsedUp(t *testing.T) {
	f := newFixture(t)
	d, first := f.open(t)
	d.SaveIncarnation(1, IncarnationMax+1)
	if f.results.wait(t, 1) == nil {
		t.Error("an incarnation without room in a dot was taken")
	}
	d.SaveIncarnation(2, IncarnationMax)
	f.results.wait(t, 2)
	d.Close()
	if _, second := f.open(t); second.Self == first.Self || second.Incarnation != 1 {
		t.Errorf("%+v", second)
	}
}

// F4: a cell that cannot read its cluster must not start, or it would found another one.
func TestF4_DamagedClusterStopsTheStart(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	d.SaveCluster(1, Cluster{[32]byte{1}, true})
	f.results.wait(t, 1)
	d.Close()
	f.damage(t, nameCluster, flipLast)
	if _, _, err := f.try(); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "backup") {
		t.Errorf("%v", err)
	}
}

// F159: files of a later version are not touched.
func TestF159_NewerFormatIsRefused(t *testing.T) {
	for _, name := range []string{nameIdentity, nameIncarnation, nameCluster, namePeers, nameSnapshot, nameLog} {
		f := newFixture(t)
		d, _ := f.open(t)
		d.SaveCluster(1, Cluster{})
		d.SavePeers(2, nil)
		d.SaveSnapshot(3, []byte("x"))
		for ticket := range uint64(3) {
			f.results.wait(t, ticket+1)
		}
		d.Close()
		f.damage(t, name, func(data []byte) []byte { data[5] = formatVersion + 1; return data })
		var newer *NewerError
		_, _, err := f.try()
		if !errors.As(err, &newer) || newer.Name != name || newer.Version != formatVersion+1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// F157: when the newest snapshot is damaged the one before and both logs still hold every own write.
func TestF157_PreviousSnapshotAndLogsCoverForADamagedOne(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	ticket := uint64(0)
	do := func(what func(uint64)) {
		ticket++
		what(ticket)
		if err := f.results.wait(t, ticket); err != nil {
			t.Fatal(err)
		}
	}
	do(func(n uint64) { d.SaveCluster(n, Cluster{Key: [32]byte{1}}) })
	state := ""
	for round := range 6 {
		for i := range 3 {
			record := fmt.Sprintf("<%d.%d>", round, i)
			state += record
			do(func(n uint64) { d.AppendWrite(n, []byte(record)) })
		}
		saved := state
		do(func(n uint64) { d.SaveSnapshot(n, []byte(saved)) })
		do(func(n uint64) { d.AppendWrite(n, []byte("<late>")) })
		state += "<late>"

		d.Close()
		f.damage(t, nameSnapshot, flipLast)
		var loaded Loaded
		d, loaded = f.open(t)
		have := string(loaded.Snapshot) + string(bytes.Join(loaded.Writes, nil))
		for _, record := range strings.SplitAfter(state, ">") {
			if !strings.Contains(have, record) {
				t.Errorf("round %d: %s is lost, have %q", round, record, have)
			}
		}
		if len(loaded.Notes) != 1 {
			t.Errorf("round %d: notes %q", round, loaded.Notes)
		}
	}
}

// F157: whatever follows the last whole entry is cut off, and new entries follow that one.
func TestF157_TornTailIsCutOff(t *testing.T) {
	for _, tail := range []string{"x", "torn entry that is longer than a header", strings.Repeat("\x00", 5000)} {
		f := newFixture(t)
		f.bootID = "a boot"
		d, _ := f.open(t)
		f.bootID = "the boot after a power cut"
		d.SaveCluster(9, Cluster{Key: [32]byte{1}})
		d.AppendWrite(1, []byte("one"))
		f.results.wait(t, 1)
		d.Close()
		f.damage(t, nameLog, func(data []byte) []byte { return append(data, tail...) })
		d, loaded := f.open(t)
		if len(loaded.Writes) != 1 || len(loaded.Notes) != 1 {
			t.Errorf("%q, %q", loaded.Writes, loaded.Notes)
		}
		d.AppendWrite(2, []byte("two"))
		f.results.wait(t, 2)
		d.Close()
		_, loaded = f.open(t)
		if string(bytes.Join(loaded.Writes, []byte(","))) != "one,two" || len(loaded.Notes) != 0 {
			t.Errorf("%q, %q", loaded.Writes, loaded.Notes)
		}
	}
}

// The log stays small: snapshots cut it.
func TestLogIsCutBySnapshots(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	ticket := uint64(0)
	for range 20 {
		for range 50 {
			ticket++
			d.AppendWrite(ticket, make([]byte, 1000))
		}
		f.results.wait(t, ticket)
		ticket++
		d.SaveSnapshot(ticket, []byte("s"))
		f.results.wait(t, ticket)
	}
	for _, name := range []string{nameLog, nameLogPrevious} {
		if info, err := os.Stat(filepath.Join(f.path, name)); err != nil || info.Size() > 110_000 {
			t.Errorf("%s: %v", name, info.Size())
		}
	}
}

// What belongs to a cluster that was left is gone with the first snapshot in another one, and not before it,
// also where meshd starts anew between the two.
func TestNothingIsKeptOfAnEarlierCluster(t *testing.T) {
	for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) { nothingIsKept(t, restart) })
	}
}

func nothingIsKept(t *testing.T, restart bool) {
	f := newFixture(t)
	d, _ := f.open(t)
	first, second := Cluster{Joined: true}, Cluster{}
	first.Key[0], second.Key[0] = 1, 2
	secret := []byte("configuration of the first cluster")
	holders := func() (names []string) {
		entries, err := os.ReadDir(f.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			raw, err := os.ReadFile(filepath.Join(f.path, entry.Name()))
			if err == nil && (bytes.Contains(raw, secret) || bytes.Contains(raw, first.Key[:])) {
				names = append(names, entry.Name())
			}
		}
		return names
	}
	d.SaveCluster(1, first)
	d.AppendWrite(2, secret)
	f.results.wait(t, 2)
	d.SaveSnapshot(3, secret)
	f.results.wait(t, 3)
	d.AppendWrite(4, secret)
	f.results.wait(t, 4)
	if found := holders(); len(found) < 3 {
		t.Fatalf("only %v hold the first cluster before it is left", found)
	}
	d.SaveCluster(5, second)
	if restart {
		f.results.wait(t, 5)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d, _ = f.open(t)
	}
	d.SaveSnapshot(6, []byte("state of the second"))
	f.results.wait(t, 6)
	if found := holders(); len(found) > 0 {
		t.Errorf("%v still hold the first cluster", found)
	}
	d.AppendWrite(7, []byte("later"))
	f.results.wait(t, 7)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	_, loaded := f.open(t)
	if loaded.Cluster.Key != second.Key || string(loaded.Snapshot) != "state of the second" ||
		len(loaded.Writes) != 1 || string(loaded.Writes[0]) != "later" {
		t.Errorf("%+v", loaded)
	}
}
