package reconcile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// world runs the reconcilers of several cells in virtual time over an idealised store: a write is seen
// at once by every cell on the same side of a cut, endpoints are read as they were when last
// reachable. A cell is declared dead detectAfter after it was cut off and is readmitted readmitAfter
// after it came back, as the failure detector would do.
type world struct {
	t         *testing.T
	now       clock.Instant
	cells     []*testCell // sorted by ID
	workloads map[uint64]placement.Workload
	frozen    map[uint64]bool
	sorted    []placement.Workload // of this step
	version   string               // of sorted and frozen
	// check, when set, runs after every step.
	check func()
}

type testCell struct {
	world      *world
	id         wire.CellID
	offer      placement.Cell
	reconciler *Reconciler
	planner    *placement.Planner
	plan       *placement.Plan

	up            bool
	authoritative bool
	holdUntil     clock.Instant
	cutAt         clock.Instant                        // 0 = connected
	backAt        clock.Instant                        // after a cut that was noticed: when it came back
	seen          map[wire.CellID]map[InstanceID]State // endpoints as this cell knows them
	lastH         []placement.Cell
	lastVersion   string
	lastHold      string
	dirty         bool
	runs          int

	instances   map[InstanceID]*testInstance
	startupTime time.Duration
	ringSize    int             // actions the helper takes per Run; 0 = all
	broken      map[uint64]bool // digests that never become READY here
	log         []string        // every start that created and every stop that ended an instance
	actions     []Action
}

type testInstance struct {
	key     string
	state   State
	pid     uint32
	readyAt clock.Instant
	goneAt  clock.Instant
	ports   []uint16
}

const (
	step         = 100 * time.Millisecond
	detectAfter  = 6 * time.Second
	readmitAfter = 10 * time.Second
	stopTime     = 700 * time.Millisecond
)

func newWorld(t *testing.T, cells int) *world {
	w := &world{t: t, now: 1e12, workloads: map[uint64]placement.Workload{}, frozen: map[uint64]bool{}}
	for i := range cells {
		w.boot(wire.CellID(i+1) * 0x1111111111111111 >> 4)
	}
	return w
}

func (w *world) boot(id wire.CellID) *testCell {
	c := &testCell{
		world: w, id: id, reconciler: New(id), planner: placement.NewPlanner(1, 2), up: true, authoritative: true,
		offer:       placement.Cell{ID: id, Flags: state.FlagProcess | state.FlagOCI, Arch: "amd64"},
		seen:        map[wire.CellID]map[InstanceID]State{},
		instances:   map[InstanceID]*testInstance{},
		startupTime: 3 * time.Second, broken: map[uint64]bool{},
	}
	w.cells = append(w.cells, c)
	slices.SortFunc(w.cells, func(a, b *testCell) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return c
}

func (w *world) apply(name string, digest uint64, spec workload.Spec) uint64 {
	spec.Runtime = workload.RuntimeProcess
	key := uint64(0)
	for _, b := range []byte(name) {
		key = (key + uint64(b)) * 0x9e3779b97f4a7c15
	}
	w.workloads[key] = placement.Workload{
		Key: "spread." + name, KeyHash: key, Spec: &spec, Encoded: []byte(name), Digest: digest,
	}
	return key
}

func (w *world) list() (list []placement.Workload) {
	for key, item := range w.workloads {
		if !w.frozen[key] {
			list = append(list, item)
		}
	}
	slices.SortFunc(list, func(a, b placement.Workload) int {
		if a.KeyHash < b.KeyHash {
			return -1
		}
		return 1
	})
	return list
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now < end; {
		w.now = w.now.Add(step)
		w.sorted = w.list()
		w.version = fmt.Sprint(w.sorted, w.frozen)
		for _, c := range w.cells {
			c.advanceInstances()
		}
		for _, c := range w.cells {
			c.observe()
		}
		for _, c := range w.cells {
			c.reconcile()
		}
		if w.check != nil {
			w.check()
		}
	}
}

func (c *testCell) connectedTo(other *testCell) bool {
	return c == other || c.up && other.up && c.cutAt == 0 && other.cutAt == 0
}

// inH is the failure detector of c.
func (c *testCell) inH(other *testCell) bool {
	if c == other {
		return true
	}
	if !other.up {
		return false
	}
	if c.cutAt != 0 {
		return c.world.now.Sub(c.cutAt) < detectAfter
	}
	if other.cutAt != 0 {
		return c.world.now.Sub(other.cutAt) < detectAfter
	}
	return other.backAt == 0 || c.world.now.Sub(other.backAt) >= readmitAfter
}

func (c *testCell) cut() { c.cutAt = c.world.now }

func (c *testCell) heal() {
	if c.world.now.Sub(c.cutAt) >= detectAfter {
		c.backAt = c.world.now
	}
	c.cutAt = 0
}

// holds is isolation, re-admission or the settling after a boot.
func (c *testCell) holds() bool {
	now := c.world.now
	isolated := c.cutAt != 0 && now.Sub(c.cutAt) >= detectAfter && now.Sub(c.cutAt) < detectAfter+30*time.Second
	readmitted := c.backAt != 0 && c.cutAt == 0 && now.Sub(c.backAt) < readmitAfter
	return isolated || readmitted || now < c.holdUntil
}

func (c *testCell) advanceInstances() {
	for id, instance := range c.instances {
		switch {
		case instance.state == Stopping && instance.goneAt.Reached(c.world.now):
			delete(c.instances, id)
			c.dirty = true
		case instance.state == Starting && instance.readyAt.Reached(c.world.now) && !c.broken[id.Digest]:
			instance.state = Ready
			c.dirty = true
		}
	}
}

// observe reads the store as far as it is reachable and settles changes of H and the specifications.
func (c *testCell) observe() {
	if !c.up {
		return
	}
	var h []placement.Cell
	for _, other := range c.world.cells {
		if c.connectedTo(other) {
			known := map[InstanceID]State{}
			for id, instance := range other.instances {
				known[id] = instance.state
			}
			if !maps.Equal(known, c.seen[other.id]) {
				c.seen[other.id] = known
				c.dirty = true
			}
		}
		if c.inH(other) {
			h = append(h, other.offer)
		}
	}
	equal := func(a, b placement.Cell) bool { return reflect.DeepEqual(a, b) }
	if !slices.EqualFunc(h, c.lastH, equal) || c.lastVersion != c.world.version {
		c.lastH, c.lastVersion = h, c.world.version
		c.plan = c.planner.Compute(h, c.world.sorted)
		c.reconciler.Changed(c.world.now)
	}
	if hold := fmt.Sprint(c.holds(), c.authoritative); hold != c.lastHold {
		c.lastHold, c.dirty = hold, true
	}
}

func (c *testCell) ready(key uint64, cell wire.CellID, match func(InstanceID) bool) bool {
	for id, s := range c.seen[cell] {
		if id.KeyHash == key && s == Ready && match(id) {
			return true
		}
	}
	return false
}

func (c *testCell) input() *Input {
	in := &Input{
		Self: c.id, Authoritative: c.authoritative, HoldStarts: c.holds(), Plan: c.plan,
		Workloads: c.world.sorted,
		Frozen:    func(key uint64) bool { return c.world.frozen[key] },
		Ready: func(key uint64, cell wire.CellID, slot uint16, digest uint64) bool {
			return c.ready(key, cell, func(id InstanceID) bool { return id.Slot == slot && id.Digest == digest })
		},
		ReadyOld: func(key uint64, cell wire.CellID, slot uint16) bool {
			return c.ready(key, cell, func(id InstanceID) bool { return id.Slot == slot })
		},
		Occupied: func(key uint64, slot uint16) bool {
			for _, other := range c.world.cells {
				for id := range c.seen[other.id] {
					if other != c && c.inH(other) && id.KeyHash == key && id.Slot == slot {
						return true
					}
				}
			}
			return false
		},
	}
	for id, instance := range c.instances {
		in.Actual = append(in.Actual, Actual{ID: id, Key: instance.key, State: instance.state, PID: instance.pid,
			Ports: instance.ports})
	}
	return in
}

// reconcile runs the reconciler only when something happened or its deadline passed, as the cell does.
func (c *testCell) reconcile() {
	if !c.up || !c.dirty && !c.reconciler.Deadline().Reached(c.world.now) {
		return
	}
	c.dirty = false
	c.runs++
	for i, action := range c.reconciler.Run(c.world.now, c.input()) {
		if c.ringSize > 0 && i >= c.ringSize {
			c.reconciler.Unsent(action)
			c.dirty = true // the ring is drained before the next step
			continue
		}
		c.perform(action)
	}
}

// perform is the helper.
func (c *testCell) perform(action Action) {
	c.actions = append(c.actions, action)
	instance, exists := c.instances[action.ID]
	switch action.Kind {
	case Start:
		if exists {
			return
		}
		for id, other := range c.instances {
			for _, port := range c.portsOf(action) {
				if slices.Contains(other.ports, port) {
					c.world.t.Fatalf("cell %s starts %+v while %+v holds port %d", c.id, action.ID, id, port)
				}
			}
		}
		c.instances[action.ID] = &testInstance{
			key: action.Key, state: Starting, pid: uint32(len(c.log) + 1), ports: c.portsOf(action),
			readyAt: c.world.now.Add(c.startupTime),
		}
		c.log = append(c.log, "start "+action.Key)
	case Stop:
		if exists && instance.state != Stopping {
			instance.state, instance.goneAt = Stopping, c.world.now.Add(stopTime)
			c.log = append(c.log, "stop "+action.Key)
		}
	}
}

func (c *testCell) portsOf(action Action) (ports []uint16) {
	for _, p := range c.world.workloads[action.ID.KeyHash].Spec.Ports {
		if p.Host != 0 {
			ports = append(ports, p.Host)
		}
	}
	return ports
}

// readyCount counts READY instances of a key in the whole world, with digest 0 meaning any.
func (w *world) readyCount(key, digest uint64) (n int) {
	for _, c := range w.cells {
		for id, instance := range c.instances {
			if c.up && id.KeyHash == key && instance.state == Ready && (digest == 0 || id.Digest == digest) {
				n++
			}
		}
	}
	return n
}

// converged fails the test unless exactly the placed instances run, READY and with the wanted digest.
func (w *world) converged() {
	w.t.Helper()
	for _, c := range w.cells {
		want := map[InstanceID]bool{}
		for key, item := range w.workloads {
			for _, r := range c.plan.Of(key) {
				if r.Cell == c.id {
					want[InstanceID{key, r.Slot, item.Digest}] = true
				}
			}
		}
		for id, instance := range c.instances {
			if !want[id] || instance.state != Ready {
				w.t.Errorf("cell %s has %+v %s, wanted %t", c.id, id, instance.state, want[id])
			}
			delete(want, id)
		}
		for id := range want {
			w.t.Errorf("cell %s lacks %+v", c.id, id)
		}
	}
}

// pids returns the identity of every instance of a cell.
func (c *testCell) pids() map[InstanceID]uint32 {
	list := map[InstanceID]uint32{}
	for id, instance := range c.instances {
		list[id] = instance.pid
	}
	return list
}

func (w *world) logLength() (n int) {
	for _, c := range w.cells {
		n += len(c.log)
	}
	return n
}

func (w *world) count(what string) (n int) {
	for _, c := range w.cells {
		for _, line := range c.log {
			if line == what {
				n++
			}
		}
	}
	return n
}
