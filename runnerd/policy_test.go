package runnerd_test

import (
	"os"
	"strings"
	"testing"

	"colloid.net/runnerd/runnerdtest"
)

// TestD2_PolicyThatDisappearedMovesNothing: nothing new starts, and meshd still hears of the room there was.
// Without it the cluster would take the cell for one that runs nothing, and move away what runs here.
func TestD2_PolicyThatDisappearedMovesNothing(t *testing.T) {
	h := newHost(t)
	h.writePolicy("cpu 700m")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "sleep"))
	pid := client.Await(id, ready).Pid
	if err := os.Remove(h.policy); err != nil {
		t.Fatal(err)
	}
	client.Until("degradation", func() bool {
		return strings.Contains(strings.Join(client.Hello.Degradations, " "), "there is no policy file")
	})
	if !client.Hello.RunsProcess || client.Hello.CpuMillicores != 700 || client.Hello.InstancesMax == 0 {
		t.Fatalf("%v", client.Hello)
	}
	other := client.Start("spread.other", 0, runnerdtest.Spec(h.binary, "sleep"))
	client.Await(other, denied)
	if i := client.Instance(id); i.State != ready || i.Pid != pid {
		t.Fatalf("%v", i)
	}
}
