// Package placement decides which cells run which workloads (specification 11, SPEC-REVIEW F71-F80).
//
// Nouns: a Cell offers capacity, a Workload asks for replicas, a Plan maps each workload to Replicas.
// A Planner turns cells and workloads into a Plan. Every cell of the cluster runs the same function
// over the same replicated values and needs no message to agree (EXEC-2), so nothing but the
// arguments and the hash key may influence a Plan: no load, no clock, no order of arguments, no
// floating point (F72, F73).
//
// The rule, in the order in which it is applied:
//
//  1. Workloads are served by (Incumbent first, priority descending, key hash ascending). Before all
//     of them, every replica of a stateful workload whose anchor (the owner of its volume) can still
//     run it gets exactly that cell (F79); when the anchor lacks room the replica waits there, because
//     its data is there.
//  2. A spread or wasm workload ranks the cells once by Score(key, cell, 0) and takes the best ones
//     that may run it and have room (F71). With Oversubscribe it goes round the ranking again until
//     all replicas are placed.
//  3. A stateful workload gives each index without an anchor, ascending, the best cell by
//     Score(key, cell, index) that it does not use yet.
//
// Whoever finds no cell is reported by Plan.Unplaced, never forced in (F78). Since a ranking does not
// depend on the other cells, the death of a cell moves its own replicas and nothing else as long as
// nothing is short (EXEC-3).
//
// Plan.StandsBy says to which cell a replica would go if one of its cells died (standby.go).
//
// Room means requests, not use: processor, memory, disk, instance slots and host ports (F77). A
// capacity of zero means that the cell does not know the figure and sets no limit; a request of zero
// takes nothing but one instance slot.
//
// Ownership and limits: a Planner belongs to one goroutine and keeps rankings between calls; a Plan
// is immutable and may outlive it. Workload.Spec and the slices of a Workload must not change until
// the next Compute. A plan holds at most ReplicasMax replicas; what is beyond is unplaced.
package placement
