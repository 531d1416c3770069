package runnerd

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/runnerd/podnet"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
)

// fullNetwork has no address left, and counts who asked.
type fullNetwork struct {
	Network // the rest is not called
	mutex   sync.Mutex
	asked   int
	refuse  bool // to let go of a name
}

func (n *fullNetwork) Prepare(context.Context, string, podnet.Request) (podnet.Lease, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.asked++
	return podnet.Lease{}, podnet.ErrFull
}

func (n *fullNetwork) Release(string) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.refuse {
		return errors.New("the namespace is busy")
	}
	return nil
}

func sparesOf(t *testing.T, network Network) (*spares, *bytes.Buffer) {
	t.Helper()
	directory := t.TempDir()
	ids, err := sandbox.OpenAllocator(filepath.Join(directory, "ids"))
	if err != nil {
		t.Fatal(err)
	}
	said := &bytes.Buffer{}
	return newSpares(&ociBackend{ids: ids, network: network}, nil, log.New(said, "", 0), directory), said
}

// TestNoSpareIsNoFailure: whatever keeps one from being made, runnerd goes on, says so once, tries again later and
// later, and leaves nothing of what it began.
func TestNoSpareIsNoFailure(t *testing.T) {
	t.Parallel()
	network := &fullNetwork{}
	p, said := sparesOf(t, network)
	for round := range 4 {
		p.want(true, policy.Network{}, 1)
		p.work.Wait()
		p.want(true, policy.Network{}, 1) // too early
		p.work.Wait()
		if network.asked != round+1 || p.ready != nil {
			t.Fatalf("round %d: %d tries, spare %v", round, network.asked, p.ready)
		}
		if want := spareRetryMin << round; p.pause != want || time.Until(p.again) > want {
			t.Errorf("round %d: the next try is in %v, want %v", round, p.pause, want)
		}
		p.again = time.Time{}
	}
	if lines := strings.Count(said.String(), "\n"); lines != 1 || !strings.Contains(said.String(), "are in use") {
		t.Errorf("said: %s", said)
	}
	if names := p.backend.ids.Names(); len(names) != 0 {
		t.Errorf("ids are left: %v", names)
	}
}

// TestASeatThatStaysIsTheLastOne: while one cannot be taken away no further one is begun.
func TestASeatThatStaysIsTheLastOne(t *testing.T) {
	t.Parallel()
	network := &fullNetwork{refuse: true}
	p, _ := sparesOf(t, network)
	for range 5 {
		p.again = time.Time{}
		p.want(true, policy.Network{}, 1)
		p.work.Wait()
	}
	if names := p.backend.ids.Names(); len(names) != 1 || network.asked != 1 {
		t.Errorf("%d seats begun, left %v", network.asked, names)
	}
	network.refuse = false
	p.again = time.Time{}
	p.want(true, policy.Network{}, 1)
	p.work.Wait()
	if names := p.backend.ids.Names(); len(names) != 0 || network.asked != 2 {
		t.Errorf("%d seats begun, left %v", network.asked, names)
	}
}

// TestATakenSeatIsWrittenDownFirst: nobody has a spare in hands that the record of its instance does not name, so
// release gives it back after any failure; and no record of an earlier start is written over.
func TestATakenSeatIsWrittenDownFirst(t *testing.T) {
	t.Parallel()
	p, _ := sparesOf(t, &fullNetwork{})
	id := InstanceID{1, 2, 3}
	for _, earlier := range []bool{false, true} {
		directory := filepath.Join(t.TempDir(), id.String())
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		name := seatPrefix + nonce()
		if _, err := p.backend.ids.Take(name); err != nil {
			t.Fatal(err)
		}
		ready := &spare{seat: name}
		p.ready, p.alive = ready, func(*shim.Spare) bool { return true }
		if earlier {
			if err := os.WriteFile(filepath.Join(directory, fileContainer), []byte("id \"other\"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if p.take(id, directory, policy.Network{}, 0) != nil || p.ready != ready {
				t.Error("taken over the record of an earlier start")
			}
			continue
		}
		if p.take(id, directory, policy.Network{}, 0) != ready || p.ready != nil {
			t.Fatal("not taken")
		}
		if err := p.backend.release(directory); err != nil {
			t.Fatal(err)
		}
		_, err := os.Lstat(filepath.Join(directory, fileContainer))
		if p.backend.ids.Has(name) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ids kept: %v, record: %v", p.backend.ids.Has(name), err)
		}
	}
	// Where it cannot be written down, nobody gets it.
	if p.take(id, "/nowhere", policy.Network{}, 0) != nil || p.ready == nil {
		t.Error("taken without a record")
	}
}
