package cell

import (
	"strings"
	"testing"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// A workload whose instances ended for good is not "starting": it has ended, or failed with its exit code, and
// one failure is enough to say so.
func TestEndedWorkloadIsNotStarting(t *testing.T) {
	code := func(n int) *int { return &n }
	instance := func(state string, exit *int) uds.InstanceInfo {
		return uds.InstanceInfo{Cell: "c", State: state, ExitCode: exit, Placed: true, Digest: "d"}
	}
	ended, failed, ready := instance(stateEnded, code(0)), instance(stateFailed, code(7)), instance("ready", nil)
	starting := instance("starting", nil)
	surplus, old := failed, failed
	surplus.Placed, old.Digest = false, "e"
	for _, c := range []struct {
		name      string
		instances []uds.InstanceInfo
		ready     int
		want      string
		reason    string
	}{
		{"all ended", []uds.InstanceInfo{ended, ended}, 0, stateEnded, ""},
		{"one of two ended", []uds.InstanceInfo{ended, starting}, 0, "", ""},
		{"one ended, one runs", []uds.InstanceInfo{ended, ready}, 1, stateEnded, ""},
		{"one failed", []uds.InstanceInfo{ready, failed}, 1, stateFailed, "failed (exit 7) on cell c"},
		{"never ran, told here", []uds.InstanceInfo{because(instance(stateFailed, code(-1)), "cannot start: no user, is not started again")}, 0,
			stateFailed, "exit code unknown on cell c: cannot start: no user, is not started again"},
		{"never ran, told elsewhere", []uds.InstanceInfo{because(instance(stateFailed, code(-1)), "cannot start: no user")}, 0,
			stateFailed, "exit code unknown on cell c: cannot start: no user, is not started again"},
		{"unknown exit", []uds.InstanceInfo{instance(stateFailed, code(-1)), ended}, 0, stateFailed, "exit code unknown"},
		{"a surplus copy and one of an older version failed", []uds.InstanceInfo{surplus, old, starting}, 0, "", ""},
		{"nothing yet", nil, 0, "", ""},
	} {
		status := uds.WorkloadStatus{Replicas: 2, Ready: c.ready, Digest: "d", Instances: c.instances}
		name, reason, ok := endedState(&status)
		if name != c.want || ok != (c.want != "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %q, %q, %v", c.name, name, reason, ok)
		}
	}
}

// A disk limit that nobody enforces is said to be none.
func TestDiskLimitIsHonest(t *testing.T) {
	notes := workloadNotes(&workload.Spec{Runtime: workload.RuntimeProcess, DiskMiB: 512})
	if len(notes) != 1 || !strings.Contains(notes[0], "disk limit of 512 MiB not enforced") {
		t.Errorf("%q", notes)
	}
	for _, spec := range []*workload.Spec{nil, {Runtime: workload.RuntimeProcess}, {Runtime: workload.RuntimeOCI, DiskMiB: 5}} {
		if notes := workloadNotes(spec); notes != nil {
			t.Errorf("%+v: %q", spec, notes)
		}
	}
}

func because(instance uds.InstanceInfo, reason string) uds.InstanceInfo {
	instance.Reason = reason
	return instance
}
