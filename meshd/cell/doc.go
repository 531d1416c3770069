// Package cell is one member of the cluster as a pure state machine: it joins the protocol parts
// (store, gossip, anti-entropy, failure detection, placement, reconciliation) into one Cell that
// knows neither sockets nor files nor clocks. The reactor, the simulator and the fuzzer drive the
// very same code (docs/ARCHITECTURE.md).
//
// Inputs are method calls with the time of the cell (clock.Instant), all from one goroutine.
// Outputs go to the interfaces in interfaces.go, which must not call back into the cell.
//
// # Nouns
//
//   - The phase is Booting, Active or Leaving. A cell is Booting until its state is authoritative: it
//     stops nothing, starts only what its snapshot places here and refuses writes (boot.go, F5).
//   - A view is what a group of keys means: a cell, a workload, an endpoint, a denial. Views mirror the
//     store and are made from it alone, so equal stores give equal plans (views.go).
//   - A change is a register that differs from before. Changes are collected while an input is handled
//     and looked at once at its end (drain in merge.go): views first, then spreading.
//   - A guest is a cell that holds the key but whose contact has not arrived yet (send.go).
//   - A ticket names one call of Storage until its completion comes back through Stored.
//
// # Where to find what
//
//	cell.go       construction, Receive, Tick, Deadline
//	merge.go      the only way into the store for what others wrote; sessions for new ring edges
//	write.go      the only ways into it for what is written here: facts, claims, operators' writes
//	boot.go       from some files to a member
//	join.go       into another cluster; leave.go: out of it
//	send.go       the only way out; whose address is believed
//	isolation.go  who counts for placement: isolation, holds of returned cells
//	actuate.go    plan and reconciliation; runner.go: what runnerd says; load.go: how busy the host is
//	schedule.go   what is done periodically; snapshots, peers, garbage
//	behind.go     cells that were restored from an older copy of their directory
//	command.go    requests of the command socket; status.go: the answers
//	alarms.go     conditions that a person should know, counters
//
// # Limits
//
// 8192 replay windows, 256 guests, 64 address checks, 64 wanted sessions, 256 operators' writes on
// their way to the disk, 4096 instances reported by runnerd. Each constant says what happens there. The
// size of the store is bounded by Config.KeysMax.
package cell
