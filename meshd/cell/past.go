package cell

import (
	"bytes"
	"slices"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// entriesOf gives the entries of a register that may be absent.
func entriesOf(r register, found bool) []byte {
	if !found {
		return nil
	}
	return r.Entries()
}

// latestOf gives the value with the greatest dot of a register that may be absent.
func latestOf(r register, found bool) (dot wire.Dot, value []byte, ok bool) {
	if !found {
		return dot, nil, false
	}
	return r.Latest()
}

// pastOf lists the digests of the former specifications of a workload, newest first. Where two cells wrote at the
// same time both lists count.
func (c *Cell) pastOf(name string) []uint64 {
	r, found := c.store.Get([]byte(state.RolloutKey(name, state.RolloutPast)))
	_, newest, _ := latestOf(r, found)
	digests, _ := state.ParsePast(newest)
	for raw := entriesOf(r, found); len(raw) > 0; {
		_, value, rest, ok := wire.NextEntry(raw)
		if !ok {
			break
		}
		raw = rest
		others, _ := state.ParsePast(value)
		for _, digest := range others {
			if !slices.Contains(digests, digest) {
				digests = append(digests, digest)
			}
		}
	}
	return digests
}

// outcomeOf says what has become of the specification that an operator wrote under a key, 0 if that is open.
func (c *Cell) outcomeOf(key string) state.Outcome {
	view := c.views.workloads[key]
	if view == nil || view.wanted == nil {
		return 0
	}
	if view.verdict != nil {
		return state.OutcomeFailed
	}
	if rollout := c.views.rollouts[state.WorkloadName(key)]; rollout != nil && bytes.Equal(rollout.good, view.wantedRaw) {
		return state.OutcomeGood
	}
	return 0
}

// mark keeps the outcome of a former specification, and forgets those of specifications that are not kept.
func (c *Cell) mark(name string, digest uint64, outcome state.Outcome, kept []uint64) {
	r, found := c.store.Get([]byte(state.RolloutKey(name, state.RolloutMarks)))
	_, value, _ := latestOf(r, found)
	before, _ := state.ParseMarks(value)
	var marks []state.Mark
	for _, former := range kept {
		at := slices.IndexFunc(before, func(m state.Mark) bool { return m.Digest == former })
		switch {
		case former == digest && outcome != 0:
			marks = append(marks, state.Mark{Digest: digest, Outcome: outcome})
		case at >= 0:
			marks = append(marks, before[at])
		}
	}
	if !slices.Equal(before, marks) {
		c.publish(state.RolloutKey(name, state.RolloutMarks), state.AppendMarks(nil, marks))
	}
}

// remember keeps what an operator's write has replaced, and what had become of that, for `rollout undo`, and lets go of
// what is too old. After a deletion, and before a workload of the name exists anew, everything known of the name goes.
func (c *Cell) remember(key string, before, after []byte, outcome state.Outcome) {
	name := state.WorkloadName(key)
	switch {
	case len(after) == 0:
		c.withdrawAll(state.PrefixRollout + name + ".")
		c.withdrawAll(state.PrefixEnv + name + ".")
		return
	case len(before) == 0:
		c.withdrawAll(state.PrefixRollout + name + ".")
		return
	case bytes.Equal(before, after):
		return
	}
	spec, err := workload.Decode(before)
	if err != nil {
		return
	}
	digest := spec.Digest()
	past := c.pastOf(name)
	past = slices.DeleteFunc(past, func(other uint64) bool { return other == digest })
	past = slices.Insert(past, 0, digest)
	kept := past[:min(len(past), state.PastMax)]
	c.publish(state.RolloutKey(name, state.PastField(digest)), before)
	c.publish(state.RolloutKey(name, state.RolloutPast), state.AppendPast(nil, kept))
	c.mark(name, digest, outcome, kept)
	for _, old := range past[len(kept):] {
		c.forgetPast(key, name, old, kept)
	}
}

// forgetPast removes a former specification, and its environment unless somebody still refers to it.
func (c *Cell) forgetPast(key, name string, digest uint64, kept []uint64) {
	field := state.RolloutKey(name, state.PastField(digest))
	value, _ := c.newest([]byte(field))
	spec, err := workload.Decode(value)
	c.publish(field, nil)
	if err != nil || spec.EnvironmentDigest == [32]byte{} {
		return
	}
	referring := []string{key, state.RolloutKey(name, state.RolloutGood)}
	for _, other := range kept {
		referring = append(referring, state.RolloutKey(name, state.PastField(other)))
	}
	for _, reference := range referring {
		value, _ := c.newest([]byte(reference))
		if other, err := workload.Decode(value); err == nil && other.EnvironmentDigest == spec.EnvironmentDigest {
			return
		}
	}
	for part := range state.EnvironmentPartsMax {
		c.publish(state.EnvironmentKey(name, environmentID(spec.EnvironmentDigest), part), nil)
	}
}

// withdrawAll deletes what cells wrote under a prefix.
func (c *Cell) withdrawAll(prefix string) {
	var names []string
	c.store.Walk(prefix, func(r register) bool {
		if name := string(r.Name()); !r.Absent() && state.CategoryOf(r.Name()) == state.Derived &&
			strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		return true
	})
	slices.Sort(names)
	for _, name := range names {
		c.publish(name, nil)
	}
}

// describeRollout renders what is known of a workload's roll-outs for people.
func describeRollout(field string, value []byte) string {
	switch field {
	case state.RolloutVerdict:
		if v, err := state.ParseVerdict(value); err == nil {
			return "instances " + hex64(v.Digest) + " failed on cell " + v.Cell.String() + ": " + v.Reason
		}
	case state.RolloutPast:
		digests, err := state.ParsePast(value)
		texts := make([]string, 0, len(digests))
		for _, digest := range digests {
			texts = append(texts, hex64(digest))
		}
		if err == nil {
			return strings.Join(texts, " ")
		}
	case state.RolloutMarks:
		marks, err := state.ParseMarks(value)
		texts := make([]string, 0, len(marks))
		for _, mark := range marks {
			if mark.Outcome.String() != "" {
				texts = append(texts, hex64(mark.Digest)+"="+mark.Outcome.String())
			}
		}
		if err == nil {
			return strings.Join(texts, " ")
		}
	default:
		if spec, err := workload.Decode(value); err == nil {
			return workload.Summary(spec)
		}
	}
	return ""
}
