package storage

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lived is a directory in which a cell has lived: two snapshots, both logs, and three writes after the last
// snapshot.
func lived(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	d, _ := f.open(t)
	ticket := uint64(0)
	do := func(what func(ticket uint64)) {
		t.Helper()
		ticket++
		what(ticket)
		if err := f.results.wait(t, ticket); err != nil {
			t.Fatal(err)
		}
	}
	do(func(n uint64) { d.SaveCluster(n, Cluster{Key: [32]byte{1}}) })
	for i := range 9 {
		do(func(n uint64) { d.AppendWrite(n, fmt.Appendf(nil, "<write %d>", i+1)) })
		if i == 2 || i == 5 {
			do(func(n uint64) { d.SaveSnapshot(n, fmt.Appendf(nil, "state up to %d", i+1)) })
		}
	}
	d.Close()
	f.results = newResults()
	return f
}

func (f *fixture) file(name string) string { return filepath.Join(f.path, name) }

// F157: what a crash cannot have done to the files is never taken for a crash. The file is kept under another
// name, every entry of it that is whole is used, and each start says that something is missing until somebody
// ends that.
func TestF157_DamageIsNotACrash(t *testing.T) {
	flip := func(f *fixture, name string, at func(size int) int) func(*testing.T) {
		return func(t *testing.T) {
			f.damage(t, name, func(data []byte) []byte {
				data[at(len(data))] ^= 4
				return data
			})
		}
	}
	truncate := func(f *fixture, size int64, names ...string) func(*testing.T) {
		return func(t *testing.T) {
			for _, name := range names {
				if err := os.Truncate(f.file(name), size); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	remove := func(f *fixture, names ...string) func(*testing.T) {
		return func(t *testing.T) {
			for _, name := range names {
				if err := os.Remove(f.file(name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	entry := entryHeaderSize + len("<write 1>")
	for name, c := range map[string]struct {
		damage func(f *fixture) func(*testing.T)
		file   string // is named and, unless removed, kept
		writes string // what is loaded all the same
		gone   bool
	}{
		"log emptied": {func(f *fixture) func(*testing.T) { return truncate(f, 0, nameLog) }, nameLog, "", false},
		"log deleted": {func(f *fixture) func(*testing.T) { return remove(f, nameLog) }, nameLog, "", true},
		"log cut between entries": {func(f *fixture) func(*testing.T) {
			return truncate(f, int64(envelopeSize+entry), nameLog)
		}, nameLog, "<write 7>", false},
		"log cut within an entry": {func(f *fixture) func(*testing.T) {
			return truncate(f, int64(envelopeSize+entry+20), nameLog)
		}, nameLog, "<write 7>", false},
		"bit of the first entry": {func(f *fixture) func(*testing.T) {
			return flip(f, nameLog, func(size int) int { return size / 3 })
		}, nameLog, "<write 8><write 9>", false},
		"bit of the first length": {func(f *fixture) func(*testing.T) {
			return flip(f, nameLog, func(int) int { return envelopeSize + 2 })
		}, nameLog, "<write 8><write 9>", false},
		"bit of the last entry": {func(f *fixture) func(*testing.T) {
			return flip(f, nameLog, func(size int) int { return size - 1 })
		}, nameLog, "<write 7><write 8>", false},
		"bit of the header": {func(f *fixture) func(*testing.T) {
			return flip(f, nameLog, func(int) int { return 1 })
		}, nameLog, "<write 7><write 8><write 9>", false},
		"both snapshots emptied": {func(f *fixture) func(*testing.T) {
			return truncate(f, 0, nameSnapshot, nameSnapshotPrevious)
		}, nameSnapshot, "<write 4><write 5><write 6><write 7><write 8><write 9>", false},
		"both snapshots deleted": {func(f *fixture) func(*testing.T) {
			return remove(f, nameSnapshot, nameSnapshotPrevious)
		}, nameSnapshot, "<write 4><write 5><write 6><write 7><write 8><write 9>", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := lived(t)
			c.damage(f)(t)
			before, _ := os.ReadFile(f.file(c.file))
			for start := range 3 {
				d, loaded := f.open(t)
				if !strings.Contains(loaded.Lost, c.file) {
					t.Fatalf("start %d: lost %q, want it to name %s", start, loaded.Lost, c.file)
				}
				if got := string(bytes.Join(loaded.Writes, nil)); got != c.writes {
					t.Errorf("start %d: writes %q, want %q", start, got, c.writes)
				}
				if after, err := os.ReadFile(f.file(c.file + suffixDamaged)); !c.gone && (err != nil || !bytes.Equal(before, after)) {
					t.Errorf("start %d: the damaged file is not kept: %v", start, err)
				}
				d.Close()
			}
			d, _ := f.open(t)
			d.SaveRecovered(1)
			if err := f.results.wait(t, 1); err != nil {
				t.Fatal(err)
			}
			d.Close()
			if _, loaded := f.open(t); loaded.Lost != "" {
				t.Errorf("recovered, but lost %q", loaded.Lost)
			}
		})
	}
}

// F157: what a killed process leaves behind is no damage: the beginning of what it was writing.
func TestF157_KilledWhileWritingIsNoDamage(t *testing.T) {
	whole := appendEntry(nil, 10, []byte("<write 10>"))
	for size := range len(whole) {
		f := lived(t)
		f.damage(t, nameLog, func(data []byte) []byte { return append(data, whole[:size]...) })
		_, loaded := f.open(t)
		if loaded.Lost != "" || len(loaded.Damaged) > 0 || len(loaded.Writes) != 3 {
			t.Fatalf("%d bytes of an entry: lost %q, damaged %q, writes %q", size, loaded.Lost, loaded.Damaged, loaded.Writes)
		}
	}
}

// A directory of a version that kept no inventory is taken as it is, also in the moment in which that one had
// no log.
func TestDirectoryWithoutInventory(t *testing.T) {
	for _, without := range [][]string{{nameInventory}, {nameInventory, nameLog}} {
		f := lived(t)
		if len(without) > 1 { // the earlier version renamed the log before it made a new one
			if err := os.Rename(f.file(nameLog), f.file(nameLogPrevious)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(f.file(nameInventory)); err != nil {
			t.Fatal(err)
		}
		_, loaded := f.open(t)
		if loaded.Lost != "" || len(loaded.Damaged) > 0 || len(loaded.Writes) != 3 {
			t.Errorf("%v: lost %q, damaged %q, writes %q", without, loaded.Lost, loaded.Damaged, loaded.Writes)
		}
	}
}

// F4: a directory that has been in a cluster and does not say in which is refused, and nothing in it is
// touched.
func TestF4_MissingClusterStopsTheStart(t *testing.T) {
	for _, keep := range []string{nameSnapshot, nameSnapshotPrevious, nameLog, nameLogPrevious} {
		f := lived(t)
		for _, name := range []string{nameCluster, nameSnapshot, nameSnapshotPrevious, nameLog, nameLogPrevious, nameInventory} {
			if name != keep {
				os.Remove(f.file(name))
			}
		}
		before, _ := os.ReadFile(f.file(nameIncarnation))
		_, _, err := f.try()
		if !errors.Is(err, ErrDamaged) || !Permanent(err) || !strings.Contains(err.Error(), "backup") ||
			!strings.Contains(err.Error(), keep) {
			t.Errorf("%s: %v", keep, err)
		}
		if after, _ := os.ReadFile(f.file(nameIncarnation)); !bytes.Equal(before, after) {
			t.Errorf("%s: the refused start has changed the directory", keep)
		}
	}
}

// A new id because files of the old one are damaged is told apart from that of a copied directory.
func TestF1_RenewedIdentityIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(f *fixture)
		renewed bool
	}{
		"cell_id damaged":     {func(f *fixture) { f.damage(t, nameIdentity, flipLast) }, true},
		"cell_id missing":     {func(f *fixture) { os.Remove(f.file(nameIdentity)) }, true},
		"incarnation damaged": {func(f *fixture) { f.damage(t, nameIncarnation, flipLast) }, true},
		"incarnation missing": {func(f *fixture) { os.Remove(f.file(nameIncarnation)) }, true},
		"another machine":     {func(f *fixture) { f.setMachine(t, "another") }, false},
	} {
		f := lived(t)
		c.change(f)
		if _, loaded := f.open(t); loaded.Renewed != c.renewed {
			t.Errorf("%s: renewed %t", name, loaded.Renewed)
		}
	}
}

// What a cell took along, but cannot understand, is put aside once like a damaged file. It is not there at
// the next start.
func TestF157_JoiningThatIsNotUnderstoodIsPutAside(t *testing.T) {
	f := newFixture(t)
	d, _ := f.open(t)
	d.SaveJoining(1, []byte("strange"))
	f.results.wait(t, 1)
	d.Close()
	checks := 0
	f.checkJoining = func([]byte) error {
		checks++
		return errors.New("unexpected form")
	}
	d, loaded := f.open(t)
	if loaded.Joining != nil || !strings.Contains(loaded.Lost, nameJoining+suffixDamaged) {
		t.Errorf("joining %q, lost %q", loaded.Joining, loaded.Lost)
	}
	if _, err := os.Stat(f.file(nameJoining + suffixDamaged)); err != nil {
		t.Error(err)
	}
	d.SaveRecovered(2)
	f.results.wait(t, 2)
	d.Close()
	if _, loaded = f.open(t); loaded.Lost != "" || loaded.Joining != nil || checks != 1 {
		t.Errorf("the next start: lost %q, joining %q, looked at %d times", loaded.Lost, loaded.Joining, checks)
	}
}

// What a cell takes along into another cluster is there until it says that it is not needed any more.
func TestJoiningIsKept(t *testing.T) {
	f := lived(t)
	d, loaded := f.open(t)
	if loaded.Joining != nil {
		t.Errorf("joining %q", loaded.Joining)
	}
	d.SaveJoining(1, []byte("spread.a"))
	f.results.wait(t, 1)
	d.Close()
	d, loaded = f.open(t)
	if string(loaded.Joining) != "spread.a" {
		t.Errorf("joining %q", loaded.Joining)
	}
	d.SaveJoining(2, nil)
	f.results.wait(t, 2)
	d.Close()
	f.damage(t, nameInventory, func(data []byte) []byte { return data })
	d, loaded = f.open(t)
	if loaded.Joining != nil || loaded.Lost != "" {
		t.Errorf("joining %q, lost %q", loaded.Joining, loaded.Lost)
	}
	d.SaveJoining(3, []byte("spread.a"))
	f.results.wait(t, 3)
	d.Close()
	f.damage(t, nameJoining, flipLast)
	if _, loaded = f.open(t); !strings.Contains(loaded.Lost, nameJoining) || loaded.Joining != nil {
		t.Errorf("joining %q, lost %q", loaded.Joining, loaded.Lost)
	}
}

func FuzzParseInventory(f *testing.F) {
	whole := inventory{snapshot: true, log: true, moved: true, sequence: 7, previousLog: 5, bootID: "boot", lost: "writes.log"}
	f.Add(whole.marshal())
	f.Add((&inventory{}).marshal())
	f.Fuzz(func(t *testing.T, raw []byte) {
		i, err := parseInventory(raw)
		if err == nil && !bytes.Equal(i.marshal(), raw) {
			t.Errorf("%x became %x", raw, i.marshal())
		}
	})
}

// Garbage in a log never stops a start with anything but an error, and what is found behind it is whole.
func FuzzDamagedLog(f *testing.F) {
	log := append([]byte{}, logHeader...)
	for n := range uint64(3) {
		log = appendEntry(log, n+1, []byte("<write>"))
	}
	f.Add(log, 20, byte(1))
	f.Add(log, 3, byte(255))
	f.Fuzz(func(t *testing.T, data []byte, at int, mask byte) {
		data = bytes.Clone(data)
		if len(data) > 0 {
			data[uint(at)%uint(len(data))] ^= mask
		}
		l := loader{writer: &writer{bootID: "x"}, expected: inventory{bootID: "x"}}
		content, err := l.parseLog(data, nameLog, 3)
		last := uint64(0)
		for _, entry := range content.entries {
			sequence, _, rest, ok := nextEntry(entry)
			if !ok || sequence <= last || len(rest) > 0 {
				t.Fatalf("%x is no entry after %d", entry, last)
			}
			last = sequence
		}
		if err == nil && content.damaged == "" && content.whole+int64(content.torn) != int64(len(data)) {
			t.Errorf("%d and %d of %d bytes", content.whole, content.torn, len(data))
		}
	})
}
