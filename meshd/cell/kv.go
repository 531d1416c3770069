package cell

import (
	"errors"
	"slices"
	"strings"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// valuesPendingMax bounds writes of workloads that wait for the disk. It leaves room for people.
const valuesPendingMax = writesPendingMax / 2

// Errors of the key-value space of a workload.
var (
	ErrValueAbsent = errors.New("the key has no value")
	ErrValueKey    = errors.New("the key is empty, too long or not printable ASCII")
	ErrValueRoom   = errors.New("the workload or the cluster holds as many keys as it may")
	ErrValueLater  = errors.New("the cell cannot do this now: try again")
)

// Value is one of the concurrent values of a key in the space of a workload.
type Value struct {
	Data     []byte
	Siblings int // how many concurrent values there are
	// Seen covers what was there: a write that is given it supersedes just that (F148).
	Seen []byte
}

// valueName puts the workload's prefix before a key. Whatever the key is, the result lies below that
// prefix: names have no parts that lead elsewhere (F19).
func valueName(workload, key string) (string, error) {
	name := state.PrefixKV + workload + "." + key
	if !state.ValidWorkloadName(workload) || key == "" || !wire.ValidName([]byte(name)) {
		return "", ErrValueKey
	}
	return name, nil
}

// splitValue takes "kv.<workload>.<key>" apart.
func splitValue(name string) (workload, key string, ok bool) {
	workload, key, ok = strings.Cut(strings.TrimPrefix(name, state.PrefixKV), ".")
	return workload, key, ok && state.ValidWorkloadName(workload) && key != ""
}

// viewValue keeps the list of keys of each workload, so that nobody searches the whole store for them.
func (c *Cell) viewValue(name string) {
	workload, key, ok := splitValue(name)
	if !ok {
		return
	}
	register, found := c.store.Get([]byte(name))
	keys := c.views.values[workload]
	if !found || register.Absent() {
		if delete(keys, key); len(keys) == 0 {
			delete(c.views.values, workload)
		}
		return
	}
	if keys == nil {
		keys = make(map[string]struct{})
		c.views.values[workload] = keys
	}
	keys[key] = struct{}{}
}

// ReadValue returns one value of a key in the space of a workload: index 0 is the one with the greatest
// dot, the reading rule for those who do not care, greater ones follow in that order (F148).
func (c *Cell) ReadValue(workload, key string, index int) (Value, error) {
	name, err := valueName(workload, key)
	if err != nil {
		return Value{}, err
	}
	register, found := c.store.Get([]byte(name))
	if !found {
		return Value{}, ErrValueAbsent
	}
	type sibling struct {
		dot   wire.Dot
		value []byte
	}
	var siblings []sibling
	for raw := register.Entries(); len(raw) > 0; {
		dot, value, rest, ok := wire.NextEntry(raw)
		if !ok {
			break
		}
		if raw = rest; len(value) > 0 {
			siblings = append(siblings, sibling{dot, value})
		}
	}
	slices.SortFunc(siblings, func(a, b sibling) int {
		if a.dot.Sequence != b.dot.Sequence {
			return -compare(a.dot.Sequence, b.dot.Sequence)
		}
		return -compare(uint64(a.dot.Actor), uint64(b.dot.Actor))
	})
	seen := slices.Clone(register.Context())
	if index < 0 || index >= len(siblings) {
		return Value{Siblings: len(siblings), Seen: seen}, ErrValueAbsent
	}
	return Value{Data: slices.Clone(siblings[index].value), Siblings: len(siblings), Seen: seen}, nil
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// ReadValues calls yield with all keys of a workload and their values, in the order of their names.
func (c *Cell) ReadValues(workload string, yield func(key string, value Value)) {
	keys := make([]string, 0, len(c.views.values[workload]))
	for key := range c.views.values[workload] {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if value, err := c.ReadValue(workload, key, 0); err == nil {
			yield(key, value)
		}
	}
}

// WriteValue stores a value in the space of a workload, or deletes it if value is empty; keysMax bounds
// the keys of one workload. It supersedes what seen covers and what this cell wrote; other values stay
// beside it. done is called exactly once, when the write is durable and in the store, or refused.
func (c *Cell) WriteValue(now clock.Instant, workload, key string, value, seen []byte, keysMax int,
	done func(error),
) {
	c.now = now
	c.writeValue(workload, key, value, seen, keysMax, done)
	c.drain()
}

func (c *Cell) writeValue(workload, key string, value, seen []byte, keysMax int, done func(error)) {
	name, err := valueName(workload, key)
	if err != nil || len(value) > wire.ValueMax {
		done(ErrValueKey)
		return
	}
	if c.phase != Active || len(c.writes.pending)+len(c.writes.held) >= valuesPendingMax {
		done(ErrValueLater)
		return
	}
	_, present := c.views.values[workload][key]
	if len(value) == 0 && !present {
		done(ErrValueAbsent)
		return
	}
	_, found := c.store.Get([]byte(name))
	if !present && len(c.views.values[workload]) >= keysMax || !found && c.store.Len() >= c.keyRoom() {
		done(ErrValueRoom)
		return
	}
	value, seen = slices.Clone(value), slices.Clone(seen)
	compose := func(dot wire.Dot) []byte { return c.composeOver([]byte(name), value, dot, seen) }
	c.durableWrite(name, compose, func(err error) {
		switch {
		case err == errPending || err == errWritesFull || err == errMoving || err == errLeft:
			err = ErrValueLater
		case err == errStoreFull || isNoSpace(err):
			err = ErrValueRoom
		}
		done(err)
	})
}
