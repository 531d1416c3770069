package cli

import (
	"bytes"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// verdict says what applying a workload does to its key.
type verdict string

const (
	created    verdict = "created"
	updated    verdict = "updated"
	unchanged  verdict = "unchanged"
	retried    verdict = "retried" // unchanged, but its update had failed
	conflicted verdict = "conflict"
)

// step is one workload of a file compared with what the cluster holds.
type step struct {
	desired
	verdict verdict
	held    *uds.Entries
	changes []string // for people, from held to desired
}

// plan compares without writing.
func (s *session) plan(all []desired) ([]step, error) {
	steps := make([]step, 0, len(all))
	for _, d := range all {
		if err := s.seal(&d, false); err != nil {
			return nil, err
		}
		held, err := s.get(d.key)
		if err != nil {
			return nil, err
		}
		steps = append(steps, compare(d, held))
	}
	return steps, nil
}

func compare(d desired, held *uds.Entries) step {
	st := step{desired: d, held: held}
	live := liveValues(held)
	switch {
	case inConflict(held):
		st.verdict = conflicted
	case len(live) == 0:
		st.verdict = created
		st.changes = workload.Diff(nil, d.spec)
	case bytes.Equal(live[0].Value, d.encoded):
		st.verdict = unchanged
	default:
		st.verdict = updated
		if old, err := workload.Decode(live[0].Value); err == nil {
			st.changes = workload.Diff(old, d.spec)
		} else {
			st.changes = []string{"replaces a value that is no valid specification"}
		}
	}
	return st
}

// adviseConflict tells on standard error which values compete and how to choose. Of a key that holds one
// value it says nothing.
func (a *app) adviseConflict(entries *uds.Entries) {
	if !inConflict(entries) {
		return
	}
	a.talk("colloid: %s holds %d concurrent values; what runs is left as it is:", entries.Key, len(entries.Entries))
	texts := describeValues(entries.Key, entries.Entries)
	for i, v := range entries.Entries {
		a.talk("  %d  %s  (written by cell %s, its write %d)", i+1, texts[i], v.Actor, v.Sequence)
	}
	a.talk("colloid: choose one with `colloid resolve %s --seen %s --take N`, or write another with --from-file FILE",
		entries.Key, entries.Digest)
}
