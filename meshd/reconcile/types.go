package reconcile

import (
	"net/netip"
	"time"

	"colloid.net/meshd/placement"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// InstanceID is the identity of an instance on one cell (F74): a changed specification is another
// instance, an unchanged one is the same however often it is applied.
type InstanceID struct {
	KeyHash uint64
	Slot    uint16 // placement.Replica.Slot
	Digest  uint64 // workload.InstanceDigest
}

// State is the condition of an instance as the helper reports it; the codes are those of
// ipc.InstanceState.
type State uint8

// States of an instance.
const (
	Unknown  State = 0
	Starting State = 1
	Ready    State = 2
	Unready  State = 3 // runs, its health check fails
	Stopping State = 4
	Backoff  State = 5 // exited, the helper starts it again at its time
	Exited   State = 6 // exited and not to be started again
	Denied   State = 7 // the host's policy forbids it
	Gone     State = 8 // removed; an Actual in this state counts as absent
)

var stateNames = [...]string{
	"unknown", "starting", "ready", "unready", "stopping", "backoff", "exited", "denied", "gone",
}

// String returns the name used in status output.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Actual is one instance that the helper says exists on this cell.
type Actual struct {
	ID         InstanceID
	Key        string // "spread.web"
	State      State
	PID        uint32
	StartTicks uint64 // with PID the identity of the process
	ExitCode   int32  // of the last run; -1 = unknown
	Restarts   uint32
	OOMKills   uint32 // times that the kernel killed for its memory limit (F141)
	Reason     string
	Ports      []uint16 // host ports
	// Address and AddressIPv6 are its own in the network of this host's containers; invalid = the cell's.
	Address, AddressIPv6 netip.Addr
	Spec                 []byte // encoded, what it runs
	// Grace is the stop grace of what it runs; 0 = GraceDefault.
	Grace time.Duration
	// CPUMillicores and MemoryMiB are what it asked for; 0 = nothing.
	CPUMillicores, MemoryMiB uint32
	// NeedsEnvironment says that the helper cannot start it again before it gets its environment (F83).
	NeedsEnvironment bool
}

// Kind of an action.
type Kind uint8

// Kinds of action.
const (
	Start Kind = 1
	Stop  Kind = 2
	// Check asks whether the policy of the host admits what a Start would start. Only a refusal is answered, by an
	// instance that is Denied.
	Check Kind = 3
	// Prepare asks to fetch and compile what a Start would need, and to start nothing. It is answered by
	// Reconciler.Prepared, or by an instance that is Denied, unless it is withdrawn.
	Prepare Kind = 4
	// Withdraw says that what a Prepare asked for is not wanted any more. It is not answered, nor is the Prepare then.
	Withdraw Kind = 5
)

// String returns the name used in logs.
func (k Kind) String() string {
	switch k {
	case Start:
		return "start"
	case Stop:
		return "stop"
	case Check:
		return "check"
	case Prepare:
		return "prepare"
	case Withdraw:
		return "withdraw"
	}
	return "invalid"
}

// Action is one thing the helper shall do. Repeating it is harmless.
type Action struct {
	Kind  Kind
	ID    InstanceID
	Key   string
	Spec  []byte        // all but Stop: the encoded specification
	Grace time.Duration // Stop
	// Environment is what a Start or a question before one hands over besides the specification; nil = nothing. The reconciler leaves
	// it to its caller (F83).
	Environment *workload.Environment
}

// Input is everything a decision depends on. Nothing of it is kept after Run.
type Input struct {
	Self wire.CellID
	// Authoritative says that the store is known to hold the cluster's state. Before that no instance
	// is stopped or replaced (F5).
	Authoritative bool
	// HoldStarts delays starts, updates and the end of surplus instances: during isolation (F66),
	// re-admission (F64) and the settling after a boot (F69). Deletion and scaling to zero go on.
	HoldStarts bool
	// Plan is the present placement; without one nothing is done.
	Plan *placement.Plan
	// Workloads are the valid, non-conflicting specifications, sorted by KeyHash: what Plan was
	// computed from.
	Workloads []placement.Workload
	// Frozen reports keys in conflict or with an invalid specification: their instances are left
	// alone in every respect (F57, F58). nil = none.
	Frozen func(keyHash uint64) bool
	// Ready reports whether the cell's endpoint says that the instance of this slot and digest is
	// READY.
	Ready func(keyHash uint64, cell wire.CellID, slot uint16, digest uint64) bool
	// ReadyOld is Ready for any digest.
	ReadyOld func(keyHash uint64, cell wire.CellID, slot uint16) bool
	// Occupied reports whether a live cell other than this one still has an instance of the slot of a
	// stateful workload, in whatever state: it must break before this cell makes (F75, SAFE-5).
	// nil = never.
	Occupied func(keyHash uint64, slot uint16) bool
	// Halted reports workloads whose rollout has failed: instances that serve are not replaced. nil = none.
	Halted func(keyHash uint64) bool
	// Startable reports whether what an instance of the workload needs besides its specification is here.
	// Until then nothing of it is started, and nothing is stopped for it (F83). nil = always.
	Startable func(w *placement.Workload) bool
	// Capacity is what this cell offers; starts wait for instances that leave when it is exceeded (F72).
	Capacity state.CellCapacity
	// Unprepared reports whether a rollout is halted because this cell could not prepare it, as far as all cells know: this
	// one may have been started again since. nil means none.
	Unprepared func(keyHash uint64) bool
	// Prepares says that the helper takes a Prepare.
	Prepares bool
	// Drained says that an operator wants this cell empty.
	Drained bool
	// Actual is what the helper listed, complete, in any order. Without a complete listing Run must
	// not be called.
	Actual []Actual
}
