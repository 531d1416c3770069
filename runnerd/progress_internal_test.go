package runnerd

import (
	"path/filepath"
	"testing"
	"time"

	"colloid.net/runnerd/image"
)

// TestPullProgressIsTheReason holds that meshd, and with it colloid status, hears how far a pull is, and
// that a report of an earlier epoch changes nothing.
func TestPullProgressIsTheReason(t *testing.T) {
	s, err := Open(Options{Directory: filepath.Join(t.TempDir(), "state"), PolicyFile: "/nowhere/policy"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	id := InstanceID{1, 2, 3}
	s.do(func() { s.instances[id] = &instance{id: id, phase: phaseLaunching, epoch: 7} })
	sayProgress(s.progressReporter(id, 6))(image.Progress{Bytes: 1, Total: 2, Layer: 1, Layers: 1})
	say := sayProgress(s.progressReporter(id, 7))
	say(image.Progress{Bytes: 34, Total: 100, Layer: 2, Layers: 5})
	say(image.Progress{Bytes: 35, Total: 100, Layer: 2, Layers: 5}) // within a second of the other
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		reason, dirty := "", false
		s.do(func() { reason, dirty = s.instances[id].message().Reason, s.instances[id].dirty })
		if reason == "pulling 34 %, layer 2 of 5" && dirty {
			return
		}
		if reason != "" || time.Now().After(deadline) {
			t.Fatalf("reason %q", reason)
		}
	}
}
