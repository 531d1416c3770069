package cell_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
)

// sample feeds one cell a load every 5 s and counts what it publishes of its processor.
func sample(t *testing.T, minutes int, cpu func(i int) int) (writes int, last uint8) {
	t.Helper()
	w := sim.New(sim.Options{Seed: 1, Cells: 1})
	n := w.Node(0)
	n.Boot()
	w.Run(time.Second)
	key := []byte(state.LoadKey(n.ID(), state.LoadCPU))
	var seen uint64
	for i := range minutes * 12 {
		w.Run(5 * time.Second)
		n.Input(func(now clock.Instant) { n.Cell().Load(now, cell.HostLoad{CPU: cpu(i), Memory: 4000}) })
		if register, found := n.Cell().Store().Get(key); found {
			dot, value, _ := register.Latest()
			if dot.Sequence != seen {
				seen = dot.Sequence
				writes++
			}
			last, _ = state.ParseLoad(value)
		}
	}
	return writes, last
}

// Noise of three points around any level is never published (F59).
func TestF59_NoiseIsNotPublished(t *testing.T) {
	for _, level := range []int{0, 100, 2000, 5000, 9800} {
		noise := []int{-300, 300, 150, -150, 0, 250, -250}
		if writes, _ := sample(t, 10, func(i int) int { return level + noise[i%len(noise)] }); writes > 1 {
			t.Errorf("level %d: %d writes in 10 minutes", level/100, writes)
		}
	}
}

// A real change is, but not more often than every 30 s; from zero as well (F59: no division by zero).
func TestF59_ChangesArePublishedSeldom(t *testing.T) {
	writes, last := sample(t, 5, func(i int) int {
		if i < 12 {
			return 0
		}
		return 8000
	})
	if writes < 2 || writes > 5 || last < 70 {
		t.Errorf("%d writes, last %d %%", writes, last)
	}
	writes, _ = sample(t, 10, func(i int) int { return i % 2 * 10000 })
	if writes > 20 {
		t.Errorf("%d writes in 10 minutes of a load that jumps all the time", writes)
	}
}

// F157: a disk that fills up is an alarm before the first write fails, and a full one waits for a person.
func TestF157_FullDiskIsAnAlarm(t *testing.T) {
	w := sim.New(sim.Options{Seed: 1, Cells: 1})
	n := w.Node(0)
	n.Boot()
	w.Run(time.Second)
	for _, c := range []struct {
		disk     int
		severity string
		text     string
	}{
		{9499, "", ""},
		{9500, "warning", "is 95 % full"},
		{9450, "warning", "is 94 % full"}, // not one alarm after the other around the bound
		{9399, "", ""},
		{10000, "critical", "is full"},
		{9990, "warning", "is 99 % full"},
	} {
		n.Input(func(now clock.Instant) { n.Cell().Load(now, cell.HostLoad{Disk: c.disk}) })
		var status uds.Status
		if err := json.Unmarshal(ask(t, w, n, cell.Request{Code: uds.CodeStatus}).Payload, &status); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(status.Alarms, func(a uds.Alarm) bool { return strings.Contains(a.Text, "file system") })
		switch {
		case i < 0 && c.severity != "", i >= 0 && c.severity == "":
			t.Errorf("%d: %+v", c.disk, status.Alarms)
		case i >= 0:
			alarm := status.Alarms[i]
			if alarm.Severity != c.severity || !strings.Contains(alarm.Text, c.text) || alarm.Hint == "" ||
				c.severity == "critical" && !status.NeedsHuman {
				t.Errorf("%d: %+v, needs a person: %v", c.disk, alarm, status.NeedsHuman)
			}
		}
	}
}
