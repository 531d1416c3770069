package cli

import (
	"slices"
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

// The shell is told what a command takes: cells, workloads or replicas, and no files of the working
// directory.
func TestCompletionOffersWhatACommandTakes(t *testing.T) {
	d := newFake(t)
	d.status.Cells = []uds.CellInfo{{ID: "a1b2c3d4e5f60718"}}
	d.status.Workloads = []uds.WorkloadStatus{{Key: "spread.web", Instances: make([]uds.InstanceInfo, 2)}}
	for line, want := range map[string][]string{
		"drain":    {"a1b2c3d4e5f60718"},
		"uncordon": {"a1b2c3d4e5f60718"},
		"forget":   {"a1b2c3d4e5f60718"},
		"top":      {"spread.web"},
		"logs":     {"spread.web", "spread.web/0", "spread.web/1"},
		"exec":     {"spread.web/0", "spread.web/1"},
	} {
		r := d.run("", "__complete", line, want[0][:1])
		got := strings.Fields(r.output)
		if !slices.Equal(got, append(want, ":4")) { // 4: no files
			t.Errorf("%s: %q, want %q", line, got, want)
		}
		if r := d.run("", "__complete", line, "x", ""); line != "exec" && strings.TrimSpace(r.output) != ":4" {
			t.Errorf("%s with an argument: %q", line, r.output)
		}
	}
}
