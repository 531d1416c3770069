package placement

import (
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// ReplicasMax bounds the replicas of one plan, so that no mistake in a specification exhausts memory.
const ReplicasMax = 1 << 20

// Cell is a member of the healthy set H with what it offers. All of it comes from the replicated
// store, never from a routing table (F73).
type Cell struct {
	ID       wire.CellID
	Flags    uint32      // state.Flag*: runtimes, degraded
	Arch     string      // "amd64", "arm64"
	Labels   [][2]string // name, value
	Capacity state.CellCapacity
	// NoNew says that the cell is leaving or cordoned: it receives no replica. It keeps the replicas
	// anchored to it and those of workloads that list it in Keepers.
	NoNew bool
	// HeldBack says that the cell came back from the dead a moment ago: it receives the replicas that
	// nobody else takes, and no others (F64).
	HeldBack bool
	// Drained says why: an operator wants the cell empty. It is for texts only.
	Drained bool
}

// Workload is one specification to place.
type Workload struct {
	Key     string
	KeyHash uint64
	// Spec must not be changed once it was given to Compute; a nil Spec asks for nothing.
	Spec *workload.Spec
	// Encoded is the stored form of Spec. Placement only carries it to reconcile.
	Encoded []byte
	Digest  uint64 // workload.InstanceDigest of Spec
	// Denied lists the cells whose host refused this digest (decision D2).
	Denied []wire.CellID
	// DenialReasons has the sentence of each host in Denied, for Explain; it may be shorter.
	DenialReasons []string
	// Anchors names, per index of a stateful workload, the cell that owns its volume; 0 = none (F79).
	Anchors []wire.CellID
	// Keepers lists NoNew cells that run the workload already and may go on doing so. A cordoned
	// cell that publishes an endpoint belongs here, a leaving one does not.
	Keepers []wire.CellID
	// Incumbent serves the workload before all that are not. Only an isolated cell may set it, for
	// what it runs already (F66: existing first); cells that see each other must agree.
	Incumbent bool
}

// Replica is one placed replica.
type Replica struct {
	Cell wire.CellID
	// Slot tells the replicas of one workload on one cell apart: the index of a stateful workload,
	// otherwise 0, 1, ... in the order in which an oversubscribed cell received them.
	Slot uint16
	// Rank is the position in the order of rolling updates, from 0: the index of a stateful workload,
	// otherwise the order of placement.
	Rank uint16
}

// Ranked is one line of Explain.
type Ranked struct {
	Cell   wire.CellID
	Score  uint64
	Placed bool
	// StandsBy says that a replica would come to the cell if one that has one died (Plan.StandsBy).
	StandsBy bool
	Verdict  string // one sentence, lower case
}
