package placement

import (
	"math/bits"
	"slices"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// blocker says why a cell does not take a replica.
type blocker uint8

const (
	blockNothing blocker = iota
	// Blockers that depend on the cell and the class of the workload only.
	blockRuntime
	blockForbidden // the host's policy is why it does not offer the runtime
	blockArchitecture
	blockConstraint
	blockDegraded
	blockNoNew
	blockHeldBack
	// Blockers that depend on the workload or on what was placed before it.
	blockDenied
	blockHolds // it has a replica of this workload already
	blockProcessor
	blockMemory
	blockDisk
	blockInstances
	blockPort
	blockerCount
)

// class is the set of workloads that may run on the same cells: equal runtime, architecture and
// constraints. Membership is a bit per node, kept up to date as cells change.
type class struct {
	runtime      workload.Runtime
	architecture string
	constraints  []workload.Constraint

	name string // className

	members []uint64 // bit per node
	count   int
	// What changed in this Compute; rankings are repaired by it.
	shrunk bool
	added  []int32
	used   uint64 // number of the last Compute that saw a workload of this class
	// The members as a list, with their cellBlocks, for ranking in one sweep; made when it is needed.
	list     []int32
	blocks   []uint64
	gathered bool

	// A request for which no member had room in this fill. Room only shrinks during a fill, so a
	// workload of this class that asks for as much need not look again.
	fullFill uint64
	full     request
	// The tally of the first such request, shared by all of this fill.
	fullTally     *tally
	fullTallyFill uint64
}

// cellTakesNew reports whether a cell receives replicas at all.
func cellTakesNew(cell *Cell) bool {
	return cell.Flags&state.FlagDegraded == 0 && !cell.NoNew && !cell.HeldBack
}

func (c *class) has(node int32) bool {
	return c.members[node>>6]&(1<<(node&63)) != 0
}

func (c *class) set(node int32, member bool) {
	bit := uint64(1) << (node & 63)
	word := &c.members[node>>6]
	if (*word&bit != 0) == member {
		return
	}
	*word ^= bit
	c.gathered = false
	if member {
		c.count++
		c.added = append(c.added, node)
	} else {
		c.count--
		c.shrunk = true
	}
}

// gather makes list and blocks.
func (c *class) gather(blocks []uint64) {
	if c.gathered {
		return
	}
	c.list, c.blocks, c.gathered = c.list[:0], c.blocks[:0], true
	for i, word := range c.members {
		for ; word != 0; word &= word - 1 {
			n := int32(i<<6 + bits.TrailingZeros64(word))
			c.list, c.blocks = append(c.list, n), append(c.blocks, blocks[n])
		}
	}
}

// matches reports whether the class is that of the specification.
func (c *class) matches(s *workload.Spec) bool {
	return c.runtime == s.Runtime && c.architecture == s.Architecture &&
		slices.Equal(c.constraints, s.Constraints)
}

// className is a key that two specifications share iff they are of one class.
func className(dst []byte, s *workload.Spec) []byte {
	dst = append(dst, byte(s.Runtime))
	dst = append(dst, s.Architecture...)
	for _, constraint := range s.Constraints {
		dst = append(dst, 0, 0)
		if constraint.Negate {
			dst[len(dst)-1] = 1
		}
		dst = append(dst, byte(len(constraint.Label)>>8), byte(len(constraint.Label)))
		dst = append(dst, constraint.Label...)
		dst = append(dst, byte(len(constraint.Value)>>8), byte(len(constraint.Value)))
		dst = append(dst, constraint.Value...)
	}
	return dst
}

// runtimeFlag is the contact flag that offers a runtime; 0 for a runtime this version does not know.
func runtimeFlag(r workload.Runtime) uint32 {
	switch r {
	case workload.RuntimeOCI:
		return state.FlagOCI
	case workload.RuntimeWasm:
		return state.FlagWasm
	case workload.RuntimeProcess:
		return state.FlagProcess
	}
	return 0
}

// forbidFlag is the contact flag that says that a host's policy is against a runtime.
func forbidFlag(r workload.Runtime) uint32 {
	switch r {
	case workload.RuntimeOCI:
		return state.FlagForbidsOCI
	case workload.RuntimeWasm:
		return state.FlagForbidsWasm
	case workload.RuntimeProcess:
		return state.FlagForbidsProcess
	}
	return 0
}

func runtimeName(r workload.Runtime) string {
	switch r {
	case workload.RuntimeOCI:
		return "oci"
	case workload.RuntimeWasm:
		return "wasm"
	case workload.RuntimeProcess:
		return "process"
	}
	return "unknown"
}

// refusal says why the cell is no member of the class. NoNew and HeldBack come last: they alone do not keep an
// anchored replica away.
func (c *class) refusal(cell *Cell) blocker {
	if cell.Flags&runtimeFlag(c.runtime) == 0 {
		if cell.Flags&forbidFlag(c.runtime) != 0 {
			return blockForbidden
		}
		return blockRuntime
	}
	if c.architecture != "" && c.architecture != cell.Arch {
		return blockArchitecture
	}
	for i := range c.constraints {
		if !satisfies(cell.Labels, &c.constraints[i]) {
			return blockConstraint
		}
	}
	if cell.Flags&state.FlagDegraded != 0 {
		return blockDegraded
	}
	if cell.NoNew {
		return blockNoNew
	}
	if cell.HeldBack {
		return blockHeldBack
	}
	return blockNothing
}

// satisfies reports whether the labels meet the constraint. A cell without the label does not equal
// any value.
func satisfies(labels [][2]string, constraint *workload.Constraint) bool {
	found := false
	for i := range labels {
		if labels[i][0] == constraint.Label && labels[i][1] == constraint.Value {
			found = true
			break
		}
	}
	return found != constraint.Negate
}

// sameOffer reports whether two descriptions of a cell are equal for every class.
func sameOffer(a, b *Cell) bool {
	return a.Flags == b.Flags && a.NoNew == b.NoNew && a.HeldBack == b.HeldBack && a.Arch == b.Arch &&
		slices.Equal(a.Labels, b.Labels)
}

func constraintText(constraint *workload.Constraint) string {
	var b strings.Builder
	b.WriteString(constraint.Label)
	if constraint.Negate {
		b.WriteByte('!')
	}
	b.WriteString("=")
	b.WriteString(constraint.Value)
	return b.String()
}
