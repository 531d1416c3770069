package runnerd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/runnerdtest"
)

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// heardAlarm reports whether a degradation that is an alarm has been said.
func heardAlarm(c *runnerdtest.Client, text string) bool {
	for _, said := range c.Hello.GetDegradations() {
		if strings.HasPrefix(said, message.AlarmPrefix) && strings.Contains(said, text) {
			return true
		}
	}
	return false
}

// The state directory is exchanged for an empty one while runnerd is away: what runs and is not known is stopped
// before anything is started, so that the cluster, which starts it again, never has two copies in one slot.
func TestF134_AnEmptyStateDirectoryLeavesNoOrphan(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	spec := runnerdtest.Spec(h.binary, "tick")
	id := client.Start("spread.web", 0, spec)
	old := processOf(client.Await(id, ready))
	d.Kill()
	if err := os.Rename(h.directory, h.directory+".away"); err != nil {
		t.Fatal(err)
	}
	d.Run(t)
	client = d.Connect()
	client.Start("spread.web", 0, spec)
	fresh := processOf(client.Await(id, ready))
	if old.Alive() || fresh == old || len(h.processes()) != 1 {
		t.Fatalf("old %v alive %v, fresh %v, %d processes", old, old.Alive(), fresh, len(h.processes()))
	}
	client.Until("the alarm", func() bool { return heardAlarm(client, id.String()) && heardAlarm(client, "stopped") })
}

// The state directory is restored from a copy that knows an earlier run of the instance: the one that runs is
// adopted, and stopped like any other.
func TestF134_ARestoredStateDirectoryAdoptsWhatRuns(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	first := processOf(client.Await(id, ready))
	copyTree(t, h.directory, h.directory+".backup")
	_ = first.Signal(unix.SIGKILL)
	client.Until("a second run", func() bool {
		i := client.Locked(id)
		return i.GetState() == ready && i.Restarts == 1
	})
	second := processOf(client.Instance(id))
	d.Kill()
	if err := errors.Join(os.RemoveAll(h.directory), os.Rename(h.directory+".backup", h.directory)); err != nil {
		t.Fatal(err)
	}
	d.Run(t)
	client = d.Connect()
	adopted := processOf(client.Await(id, ready))
	if adopted != second || len(h.processes()) != 1 {
		t.Fatalf("ran %v, adopted %v, %d processes", second, adopted, len(h.processes()))
	}
	client.Until("the alarm", func() bool { return heardAlarm(client, id.String()) && heardAlarm(client, "adopted") })
	client.Stop(id, 0)
	client.AwaitGone(id)
	eventually(t, "end", func() bool { return !second.Alive() && len(h.processes()) == 0 })
}

// The records are deleted under a running runnerd: they are written again, and the next runnerd adopts.
func TestF134_DeletedRecordsAreWrittenAgain(t *testing.T) {
	h := newHost(t)
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	p := processOf(client.Await(id, ready))
	if err := os.RemoveAll(filepath.Join(h.directory, "instances")); err != nil {
		t.Log(err) // the shim writes its log
	}
	client.Until("the alarm", func() bool { return heardAlarm(client, "written again") })
	time.Sleep(50 * time.Millisecond)
	d.Kill()
	d.Run(t)
	client = d.Connect()
	if again := processOf(client.Await(id, ready)); again != p || !p.Alive() || len(h.processes()) != 1 {
		t.Fatalf("%v became %v, %d processes", p, again, len(h.processes()))
	}
}
