package sim

import (
	"slices"
	"strings"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// host is a model of runnerd and of what runs on the machine. It survives meshd, not a power loss.
type host struct {
	node      *Node
	instances map[reconcile.InstanceID]*instance
	nextPID   uint32
	run       int

	StartDelay time.Duration // from the command to READY
	Starts     int           // since the beginning
	Stops      int
	away       bool   // runnerd is not there
	Flags      uint32 // the runtimes it offers
	// Room, if not 0, is how many commands the ring to it holds at a time (F131).
	Room   int
	queued int
	// Deny refuses specifications, as the host's policy would.
	Deny func(spec *workload.Spec) string
}

type instance struct {
	id       reconcile.InstanceID
	key      string
	spec     []byte
	state    reconcile.State
	pid      uint32
	started  time.Duration
	restarts uint32
}

func newHost(n *Node) *host {
	return &host{node: n, instances: make(map[reconcile.InstanceID]*instance), StartDelay: 100 * time.Millisecond,
		Flags: state.FlagProcess | state.FlagOCI}
}

func (h *host) crash() {
	h.run++
	h.instances = make(map[reconcile.InstanceID]*instance)
}

// connect is what happens when the launcher joins a new meshd to runnerd.
func (h *host) connect() {
	n := h.node
	n.world.After(5*time.Millisecond, func() {
		if n.cell == nil || h.away {
			return
		}
		n.input(func(now clock.Instant) {
			n.cell.HelperHello(now, cell.HelperHello{
				Software: "sim", Flags: h.Flags,
				Capacity: state.CellCapacity{CPUMillicores: 64000, MemoryMiB: 65536, InstancesMax: 1000},
			})
			for _, i := range h.sorted() {
				n.cell.HelperInstance(now, h.actual(i))
			}
			n.cell.HelperListing(now)
		})
	})
}

func (h *host) sorted() []*instance {
	list := make([]*instance, 0, len(h.instances))
	for _, i := range h.instances {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b *instance) int { return a.id.Compare(b.id) })
	return list
}

func (h *host) actual(i *instance) reconcile.Actual {
	return reconcile.Actual{ID: i.id, Key: i.key, Spec: i.spec, State: i.state, PID: i.pid, StartTicks: uint64(i.started),
		Restarts: i.restarts}
}

func (h *host) report(i *instance) {
	if h.away {
		return
	}
	actual := h.actual(i)
	h.node.input(func(now clock.Instant) { h.node.cell.HelperInstance(now, actual) })
}

// Do implements cell.Helper. The cell is inside a call, so what follows happens later.
func (h *host) Do(action reconcile.Action) bool {
	if h.Room > 0 && h.queued >= h.Room {
		return false
	}
	h.queued++
	action.Spec = slices.Clone(action.Spec)
	h.node.world.acting(h.node, action)
	run := h.run
	h.node.world.After(time.Millisecond, func() {
		h.queued--
		if h.run != run || h.away {
			return
		}
		if action.Kind == reconcile.Start {
			h.start(action)
		} else {
			h.stop(action)
		}
	})
	return true
}

func (h *host) start(action reconcile.Action) {
	if i := h.instances[action.ID]; i != nil && i.state != reconcile.Denied {
		h.report(i)
		return
	}
	h.nextPID++
	i := &instance{id: action.ID, key: action.Key, spec: action.Spec, state: reconcile.Starting,
		pid: h.nextPID, started: h.node.world.now}
	if h.Deny != nil {
		if spec, err := workload.Decode(action.Spec); err == nil && h.Deny(spec) != "" {
			i.state = reconcile.Denied
			actual := h.actual(i)
			actual.Reason = h.Deny(spec)
			h.node.input(func(now clock.Instant) { h.node.cell.HelperInstance(now, actual) })
			return
		}
	}
	h.instances[action.ID] = i
	h.Starts++
	h.node.world.Tracef("n%d starts %s", h.node.Index, action.Key)
	h.report(i)
	switch image := program(i.spec); {
	case strings.HasPrefix(image, imageCrashes):
		h.crashLater(i, time.Second)
		return
	case strings.HasPrefix(image, imageHangs):
		return
	}
	run := h.run
	h.node.world.After(h.StartDelay, func() {
		if h.run == run && h.instances[action.ID] == i && i.state == reconcile.Starting {
			i.state = reconcile.Ready
			h.report(i)
		}
	})
}

func (h *host) stop(action reconcile.Action) {
	i := h.instances[action.ID]
	if i == nil {
		i = &instance{id: action.ID, key: action.Key}
	} else {
		h.Stops++
		h.node.world.Tracef("n%d stops %s", h.node.Index, action.Key)
	}
	delete(h.instances, action.ID)
	i.state = reconcile.Gone
	h.report(i)
}

// leave is runnerd going away; what it runs goes on (F134).
func (h *host) leave() {
	h.away = true
	h.node.input(func(now clock.Instant) { h.node.cell.HelperGone(now) })
}

// comeBack is runnerd starting again.
func (h *host) comeBack() {
	h.away = false
	h.connect()
}

// exit ends one instance; runnerd starts it again after a pause, whatever meshd thinks (F58, F76).
func (h *host) exit(pick int) {
	list := h.sorted()
	if len(list) == 0 {
		return
	}
	i := list[pick%len(list)]
	if i.state != reconcile.Ready {
		return
	}
	i.state = reconcile.Backoff
	i.restarts++
	h.node.world.Tracef("n%d: %s exits", h.node.Index, i.key)
	h.report(i)
	run := h.run
	h.node.world.After(time.Second, func() {
		if h.run == run && h.instances[i.id] == i && i.state == reconcile.Backoff {
			i.state = reconcile.Ready
			h.report(i)
		}
	})
}

// Running returns the keys of the instances that run on the node, sorted.
func (n *Node) Running() []string {
	keys := make([]string, 0, len(n.host.instances))
	for _, i := range n.host.sorted() {
		keys = append(keys, i.key)
	}
	slices.Sort(keys)
	return keys
}

// Host gives scenarios access to the model of runnerd.
func (n *Node) Host() *host { return n.host }
