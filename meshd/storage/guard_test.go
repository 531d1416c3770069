package storage

import (
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

// watched is a directory under attack, with a stand-in for the cell that saves a snapshot when asked.
type watched struct {
	*fixture
	directory *Directory
	first     Loaded
	mutex     sync.Mutex
	said      []string
	repaired  bool
	during    func() // called on the writer's goroutine when the save with ticketDuring ends
}

const ticketDuring = 77

func newWatched(t *testing.T) *watched { return newWatchedEvery(t, 5*time.Millisecond) }

func newWatchedEvery(t *testing.T, interval time.Duration) *watched {
	t.Helper()
	w := &watched{fixture: newFixture(t)}
	var err error
	w.directory, w.first, err = Open(w.path, Options{
		MachineIDPath: w.machineID, WatchInterval: interval,
		Completed: func(ticket uint64, err error) {
			if ticket == ticketDuring {
				w.during()
			}
			w.results.completed(ticket, err)
		},
		Trouble: func(text, hint string, repaired bool) {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			w.said, w.repaired = append(w.said, text+": "+hint), repaired
		},
		Rewrite: func() { go w.directory.SaveSnapshot(1000, []byte("state again")) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.directory.Close() })
	w.directory.SaveCluster(1, Cluster{[32]byte{1, 2, 3}, true})
	w.directory.SavePeers(2, peersNumbered(9))
	w.directory.SaveSnapshot(3, []byte("state"))
	w.directory.AppendWrite(4, []byte("a write"))
	for ticket := range uint64(4) {
		if err := w.results.wait(t, ticket+1); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *watched) hears(t *testing.T, repaired bool, texts ...string) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		w.mutex.Lock()
		last, ok := "", w.repaired
		if len(w.said) > 0 {
			last = w.said[len(w.said)-1]
		}
		w.mutex.Unlock()
		heard := last != "" && ok == repaired
		for _, text := range texts {
			heard = heard && strings.Contains(last, text)
		}
		if heard {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("heard %q, repaired %v; want %q", last, ok, texts)
		}
	}
}

// check opens the directory again as it is on the disk and looks for everything that was stored.
func (w *watched) check(t *testing.T, writes ...string) {
	t.Helper()
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(w.path, nameSnapshot)); err == nil {
			break // the stand-in for the cell needs a moment
		}
	}
	w.directory.Close()
	d, loaded, err := w.try()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var got []string
	for _, write := range loaded.Writes {
		got = append(got, string(write))
	}
	if loaded.Self != w.first.Self || loaded.Incarnation != w.first.Incarnation+1 || !loaded.Cluster.Joined ||
		!slices.Equal(loaded.Peers, peersNumbered(9)) || !strings.HasPrefix(string(loaded.Snapshot), "state") {
		t.Errorf("lost something: %+v", loaded)
	}
	if string(loaded.Snapshot) == "state" && !slices.Equal(got, writes) {
		t.Errorf("writes %q, want %q", got, writes)
	}
}

// holds reports whether one of the logs holds a text, now or within a second.
func (w *watched) holds(text string) bool {
	for limit := time.Now().Add(time.Second); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		for _, name := range []string{nameLog, nameLogPrevious} {
			data, err := os.ReadFile(filepath.Join(w.path, name))
			if err == nil && strings.Contains(string(data), text) {
				return true
			}
		}
	}
	return false
}

// Whatever file is deleted, replaced, cut or edited under a running daemon is there again, and somebody is
// told.
func TestF157_FilesTakenFromARunningDaemonComeBack(t *testing.T) {
	attacks := map[string]func(path string) error{
		"deleted": os.Remove,
		"cut":     func(path string) error { return os.Truncate(path, 1) },
		"closed":  func(path string) error { return os.Chmod(path, 0) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".x", []byte("x"), 0o644), os.Rename(path+".x", path))
		},
		"linked": func(path string) error {
			return errors.Join(os.Symlink("/dev/null", path+".x"), os.Rename(path+".x", path))
		},
		"a FIFO": func(path string) error {
			return errors.Join(unix.Mkfifo(path+".x", 0o600), os.Rename(path+".x", path))
		},
	}
	for how, attack := range attacks {
		for i, name := range guarded {
			if name == nameJoining {
				continue // there is none here
			}
			if how != "deleted" && i < 3 {
				continue // small files are all treated alike
			}
			t.Run(how+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWatched(t)
				if err := attack(filepath.Join(w.path, name)); err != nil {
					t.Fatal(err)
				}
				w.hears(t, true, name, "written again")
				w.check(t, "a write")
			})
		}
	}
}

// All files at once, and then the directory with them: nothing is lost, and the directory is locked again.
func TestF157_TheDirectoryItselfComesBack(t *testing.T) {
	for how, attack := range map[string]func(path string) error{
		"emptied": func(path string) error {
			entries, err := os.ReadDir(path)
			for _, entry := range entries {
				err = errors.Join(err, os.Remove(filepath.Join(path, entry.Name())))
			}
			return err
		},
		"deleted":   os.RemoveAll,
		"moved":     func(path string) error { return os.Rename(path, path+".away") },
		"exchanged": func(path string) error { os.Rename(path, path+".away"); return os.Mkdir(path, 0o755) },
	} {
		t.Run(how, func(t *testing.T) {
			w := newWatched(t)
			if err := attack(w.path); err != nil && how != "deleted" { // it is filled again meanwhile
				t.Fatal(err)
			}
			w.hears(t, true, "written again")
			time.Sleep(100 * time.Millisecond) // it may have been seen half done
			if _, err := lockDirectory(w.path); err == nil {
				t.Error("a second daemon could use the directory")
			}
			w.directory.AppendWrite(5, []byte("another"))
			if err := w.results.wait(t, 5); err != nil {
				t.Error(err)
			}
			w.check(t, "a write", "another")
		})
	}
}

// A directory may be exchanged in the middle of a look, which then finds some of its files missing and makes
// them in the new one. That is no directory of somebody else afterwards, and no lock of another process.
func TestF157_ALookInTheMiddleOfAnExchange(t *testing.T) {
	for name, found := range map[string][]string{
		"the lock last": {nameLock}, "the log and the lock": {nameLog, nameLock}, "everything": guarded[:],
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatchedEvery(t, time.Hour)
			next := w.path + ".next"
			w.during = func() {
				err := errors.Join(os.Mkdir(next, 0o700), exchange(w.path, next), w.directory.repair(found))
				if err != nil {
					t.Error(err)
				}
			}
			w.directory.SavePeers(ticketDuring, peersNumbered(9))
			w.results.wait(t, ticketDuring)
			w.directory.AppendWrite(5, []byte("another"))
			if err := w.results.wait(t, 5); err != nil {
				t.Error(err)
			}
			w.check(t, "a write", "another")
		})
	}
}

// A write that comes between the loss and its repair is stored where it is found again, or refused.
func TestF157_NoWriteIsAcknowledgedIntoADeletedFile(t *testing.T) {
	w := newWatched(t)
	for i := range uint64(50) {
		os.Remove(filepath.Join(w.path, nameLog))
		text := fmt.Sprintf("write %d.", i)
		w.directory.AppendWrite(100+i, []byte(text))
		if err := w.results.wait(t, 100+i); err != nil {
			t.Fatal(err)
		}
		// The snapshot that the repair of the last round asked for may be on its way: it makes the log the
		// previous one, and for a moment none has the name.
		if !w.holds(text) {
			t.Fatalf("write %d was acknowledged and is in no log", i)
		}
	}
}

// exchange swaps two names at once: between two renames the writer would make the directory again.
func exchange(one, other string) error {
	return unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
}

// A directory that cannot be made again, or that holds somebody else's files, takes no writes; once it is
// back, it does.
func TestF157_ADirectoryThatCannotBeRepairedRefuses(t *testing.T) {
	w := newWatched(t)
	away := w.path + ".away"
	if err := errors.Join(os.WriteFile(away, nil, 0o600), exchange(w.path, away)); err != nil {
		t.Fatal(err)
	}
	w.hears(t, false, w.path)
	w.directory.AppendWrite(5, []byte("refused"))
	if err := w.results.wait(t, 5); err == nil {
		t.Error("a write without a directory was acknowledged")
	}
	os.Remove(w.path)
	if err := os.Mkdir(w.path, 0o700); err != nil && !errors.Is(err, os.ErrExist) { // the writer may have been first
		t.Fatal(err)
	}
	w.hears(t, true, "written again")
	os.RemoveAll(away)

	other := newFixture(t)
	d, _ := other.open(t)
	d.Close()
	if err := exchange(w.path, other.path); err != nil {
		t.Fatal(err)
	}
	w.hears(t, false, "exchanged", nameIdentity, "put the old directory back")
	w.directory.AppendWrite(6, []byte("refused"))
	if err := w.results.wait(t, 6); err == nil {
		t.Error("a write into another cell's directory was acknowledged")
	}
	if err := exchange(w.path, other.path); err != nil {
		t.Fatal(err)
	}
	w.hears(t, true)
	w.directory.AppendWrite(7, []byte("taken"))
	if err := w.results.wait(t, 7); err != nil {
		t.Error(err)
	}
	w.check(t, "a write", "taken")
}

// An identity that was given up on purpose is not brought back.
func TestF157_ADiscardedIdentityStaysAway(t *testing.T) {
	w := newWatched(t)
	w.directory.DiscardIdentity(5)
	if err := w.results.wait(t, 5); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(w.path, namePeers))
	w.hears(t, true, namePeers)
	if _, err := os.Lstat(filepath.Join(w.path, nameIdentity)); !os.IsNotExist(err) {
		t.Errorf("cell_id: %v", err)
	}
}

// What is no file cannot be opened by accident: one line that names it, and no waiting for a FIFO.
func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	for how, put := range map[string]func(path string) error{
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a symbolic link": func(path string) error { return os.Symlink("/nowhere", path) },
		"a FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		for _, name := range append([]string{nameIdentity + suffixTemporary, nameBallast, nameSnapshotPrevious}, guarded[:]...) {
			f := newFixture(t)
			d, _ := f.open(t)
			d.Close()
			path := filepath.Join(f.path, name)
			os.Remove(path)
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { _, _, err := f.try(); done <- err }()
			select {
			case err := <-done:
				if err == nil || !Permanent(err) || !strings.Contains(err.Error(), path+" is "+how) ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("%s is %s: %v", name, how, err)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s is %s: waits for ever", name, how)
			}
		}
	}
	f := newFixture(t)
	if err := os.Symlink("/nowhere", f.path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.try(); !Permanent(err) || !strings.Contains(err.Error(), "symbolic link to nothing") {
		t.Errorf("a link to nothing: %v", err)
	}
}
