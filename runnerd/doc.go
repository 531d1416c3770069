// Package runnerd runs instances of workloads on one host for a meshd that it does not trust (F132).
//
// Nouns. A Supervisor owns the instances of one state directory; all its state belongs to one
// goroutine, and everything else (launches, stops, probes, waits) reports back to it as a function to
// run there. An instance is one run-until-told-otherwise of one specification in one slot, named by
// InstanceID; it has a directory of its own, so there is never a second one with the same name (F134).
// A session is the connection to one meshd; a new one replaces the old. The policy (package policy)
// says what may run, the shim (package shim) stands between runnerd and each workload.
//
// Life of an instance:
//
//	Start ──▶ launching ──▶ running ──▶ waiting (back-off, F76) ──▶ launching ...
//	   │           │           │ └────▶ exited (restart policy)
//	   ▼           ▼           ▼
//	denied      denied      stopping ──▶ gone
//
// The death of runnerd changes nothing for workloads: a new runnerd finds the directories, compares
// process id and start time, and goes on (adopt.go). What was asked of an instance (run, stop) and its
// back-off are written down before they take effect. Nothing of it has a meaning after a restart of the host, so
// nothing waits for the disk (record.Keep).
//
// A Start may ask for no more than this host to be made ready for one (ahead.go): pulls and compilations that nobody waits
// for, behind everything else. Nothing of it is an instance.
//
// While containers run, one more sandbox stands ready for the next one (spares.go).
//
// Limits: the policy's instances (at most 1024), 256 denials remembered, 10 launches a second, 2 at a
// time; events are not queued but marked on the instance and sent when the ring has room.
package runnerd
