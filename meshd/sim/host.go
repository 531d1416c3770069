package sim

import (
	"slices"
	"strings"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
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
	preparing
	connection int // number of the connection of meshd and runnerd
}

type instance struct {
	id       reconcile.InstanceID
	key      string
	spec     []byte
	runs     *workload.Spec // spec, decoded
	state    reconcile.State
	pid      uint32
	exitCode int32
	started  time.Duration
	restarts uint32
	handed   bool // runnerd has the environment that the specification names
}

func newHost(n *Node) *host {
	return &host{node: n, instances: make(map[reconcile.InstanceID]*instance), StartDelay: 100 * time.Millisecond,
		Flags: defaultRuntimes, preparing: preparing{Fetch: prepareTime, here: make(map[string]bool)}}
}

func (h *host) crash() {
	h.run++
	h.dropPreparing()
	h.instances = make(map[reconcile.InstanceID]*instance)
}

// connect is what happens when the launcher joins a new meshd to runnerd.
func (h *host) connect() {
	n := h.node
	n.world.After(5*time.Millisecond, func() {
		if n.cell == nil || h.away {
			return
		}
		h.dropPreparing()
		h.greet()
	})
}

// greet lists everything, which runnerd does at the beginning of a connection, and in one when its policy changes.
func (h *host) greet() {
	n := h.node
	n.input(func(now clock.Instant) {
		n.cell.HelperHello(now, cell.HelperHello{
			Software: "sim", Flags: h.Flags,
			Capacity: n.machine.capacity(), TakesPrepare: !h.Old,
		})
		for _, i := range h.sorted() {
			n.cell.HelperInstance(now, h.actual(i))
		}
		n.cell.HelperListing(now)
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
		Restarts: i.restarts, ExitCode: i.exitCode, Ports: i.hostPorts(), NeedsEnvironment: i.lacksEnvironment()}
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
		switch action.Kind {
		case reconcile.Start:
			h.start(action)
		case reconcile.Check:
			h.check(action)
		case reconcile.Prepare:
			h.prepare(action)
		case reconcile.Withdraw:
			h.withdraw(action)
		default:
			h.stop(action)
		}
	})
	return true
}

func (h *host) start(action reconcile.Action) {
	if i := h.instances[action.ID]; i != nil && i.state != reconcile.Denied {
		h.hand(i, action.Environment)
		h.report(i)
		return
	}
	spec, err := workload.Decode(action.Spec)
	if err != nil {
		panic("sim: " + action.Key + " is told to start with an invalid specification: " + err.Error())
	}
	h.nextPID++
	i := &instance{id: action.ID, key: action.Key, spec: action.Spec, runs: spec, state: reconcile.Starting,
		pid: h.nextPID, started: h.node.world.now, handed: action.Environment != nil}
	if reason := h.refusal(spec); reason != "" {
		h.deny(i, reason)
		return
	}
	h.instances[action.ID] = i
	h.Starts++
	h.node.world.Tracef("n%d starts %s", h.node.Index, action.Key)
	h.report(i)
	h.attempt(i, time.Second)
}

// check refuses what the policy forbids, whatever room there is.
func (h *host) check(action reconcile.Action) {
	spec, err := workload.Decode(action.Spec)
	if err != nil {
		panic("sim: an invalid specification of " + action.Key + " is to be checked: " + err.Error())
	}
	if h.Deny == nil || h.instances[action.ID] != nil {
		return
	}
	if reason := h.Deny(spec); reason != "" {
		h.deny(&instance{id: action.ID, key: action.Key, spec: action.Spec, runs: spec}, reason)
	}
}

func (h *host) deny(i *instance, reason string) {
	i.state = reconcile.Denied
	actual := h.actual(i)
	actual.Reason = reason
	h.node.world.Tracef("n%d refuses %s: %s", h.node.Index, i.key, reason)
	h.node.input(func(now clock.Instant) { h.node.cell.HelperInstance(now, actual) })
}

func (h *host) stop(action reconcile.Action) {
	i := h.instances[action.ID]
	if i == nil {
		h.report(&instance{id: action.ID, key: action.Key, state: reconcile.Gone})
		return
	}
	if i.state == reconcile.Stopping {
		h.report(i)
		return
	}
	h.Stops++
	h.node.world.Tracef("n%d stops %s", h.node.Index, action.Key)
	if i.runs != nil && strings.HasPrefix(bare(i.runs.Image), imageLingers) && i.state != reconcile.Backoff {
		i.state = reconcile.Stopping
		h.report(i)
		h.later(i, action.Grace, reconcile.Stopping, func() { h.gone(i) })
		return
	}
	h.gone(i)
}

func (h *host) gone(i *instance) {
	delete(h.instances, i.id)
	i.state = reconcile.Gone
	h.report(i)
}

// leave is runnerd going away; what it runs goes on (F134).
func (h *host) leave() {
	h.away = true
	h.forget()
	h.dropPreparing()
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
	h.node.world.Tracef("n%d: %s exits", h.node.Index, i.key)
	if i.runs.Restart != workload.RestartAlways {
		i.state = reconcile.Exited
		h.report(i)
		return
	}
	i.state = reconcile.Backoff
	i.restarts++
	h.report(i)
	h.later(i, time.Second, reconcile.Backoff, func() {
		if i.lacksEnvironment() {
			return // until it is handed over again
		}
		i.state = reconcile.Ready
		h.report(i)
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
