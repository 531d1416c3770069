package runnerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// noBackend fails every launch and says which environment it was asked for.
type noBackend struct{ asked chan []string }

func (b noBackend) prepare(_ context.Context, job *launchJob) (*os.File, error) {
	b.asked <- job.config.Environment
	return nil, errors.New("not now")
}
func (noBackend) release(string) error { return nil }
func (noBackend) exec(*launchJob, []string) (*shim.Config, *os.File, error) {
	return nil, nil, errors.New("not now")
}

// F158: an instance whose turn to start comes after its host has moved is told the new address. It is not taken for one
// that waits for the old address, which is ended when it takes long to become ready.
func TestF158_WhoStartsAfterTheMoveHasNotMissedIt(t *testing.T) {
	directory := t.TempDir()
	policyFile := filepath.Join(directory, "policy")
	text := fmt.Sprintf("process /bin/true { sha256 %064x; user %d; args any; env any }\n", 1, os.Geteuid())
	if err := os.WriteFile(policyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Directory: filepath.Join(directory, "state"), PolicyFile: policyFile})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	backend := noBackend{make(chan []string, 16)}
	id := InstanceID{1, 2, 3}
	s.do(func() {
		s.backends[workload.RuntimeProcess] = backend
		i := &instance{id: id, key: "spread.a", phase: phaseLaunching, address: netip.MustParseAddr("192.0.2.1"),
			directory: filepath.Join(directory, "state", "instances", id.String()),
			spec:      &workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 1, Image: "/bin/true", ImageDigest: [32]byte{31: 1}}}
		if err := i.makeDirectory(0, 0, false); err != nil {
			t.Error(err)
		}
		s.instances[id] = i
		if err := s.host(&session{}, &message.Host{Address: []byte{192, 0, 2, 7}}); err != nil || !i.moved {
			t.Errorf("%v, moved %v", err, i.moved)
		}
		s.launchNow(i)
		if i.moved {
			t.Error("it counts as told the old address")
		}
	})
	want := "COLLOID_ADDRESS=192.0.2.7"
	if environment := <-backend.asked; !slices.Contains(environment, want) {
		t.Errorf("%q lacks %s", environment, want)
	}
}

// F158: a container never has the address of its host, also where it has no network: one that is not ready yet has
// missed nothing when the host moves, and its health check is not begun again.
func TestF158_ContainersDoNotMoveWithTheirHost(t *testing.T) {
	s, err := Open(Options{Directory: filepath.Join(t.TempDir(), "state"), PolicyFile: "/nowhere/policy"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.do(func() {
		id := InstanceID{1, 2, 3}
		i := &instance{id: id, key: "spread.a", phase: phaseRunning, epoch: 7, address: netip.MustParseAddr("192.0.2.1"),
			directory: t.TempDir(), spec: &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1}}
		s.instances[id] = i
		defer delete(s.instances, id)
		if err := s.host(&session{}, &message.Host{Address: []byte{192, 0, 2, 7}}); err != nil {
			t.Error(err)
		}
		if i.moved || i.epoch != 7 || i.address != netip.MustParseAddr("192.0.2.7") {
			t.Errorf("moved %v, epoch %d, address %v", i.moved, i.epoch, i.address)
		}
	})
}
