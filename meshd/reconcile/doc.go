// Package reconcile compares what a cell shall run with what it runs and says what to start and what
// to stop (specification 13.6, SPEC-REVIEW F5, F57, F58, F69, F74, F75, F131).
//
// Nouns: an Actual is an instance the helper reports, an Action is what the helper shall do,
// an Input is everything a decision depends on. A Reconciler remembers only what time requires: since
// when an instance is surplus, when an action was last asked for, since when an update is allowed.
//
// The rules, strongest first:
//
//   - A frozen key is left alone: no start, no stop, no update (F57, F58).
//   - Before the state is authoritative nothing that runs is touched; only slots without any instance
//     are started (F5).
//   - Identity includes the digest of the specification. An instance with the wanted identity is
//     adopted as it is, whatever its state: restarts, backoff and denials are the helper's (F74).
//   - Workloads that are deleted or scaled to zero stop at once.
//   - An instance this cell should no longer have is surplus. It stays until every placed replica
//     elsewhere is READY with the wanted digest, or SurplusMax after it became surplus. While no
//     replica at all is placed for a reason other than room it stays: one copy in the wrong place is
//     better than none. Stateful instances go at once instead, and start only when no other cell has
//     them (F75, SAFE-5).
//   - An update proceeds in rank order within max_unavailable. On one cell the new instance starts
//     before the old one stops, except when they would share host ports or volumes (F75).
//   - A cell that stands by for a workload (placement.Plan.StandsBy) has the helper prepare it, in the quiet; what has to
//     end for its successor ends when that is prepared (prepare.go).
//   - What serves and has others beside it is announced as draining for Linger before it is stopped (F75).
//   - A failed rollout replaces nothing that serves; nothing starts before its environment is here (F83).
//   - A start waits for the room of what leaves; what lost its place to a higher priority leaves for it (F72).
//   - Everything is level-triggered: an action is repeated every RepeatInterval until the helper's
//     report shows it (F131).
//
// A Reconciler does no input or output, belongs to one goroutine, and has no table larger than the
// instances of this cell, or than PreparationsMax.
package reconcile
