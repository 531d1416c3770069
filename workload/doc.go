// Package workload is what the command line, meshd and the helpers agree on about a workload: its
// specification (section 13.2 as completed by SPEC-REVIEW Part 1), the canonical binary form that is
// the value of its key in the replicated store, and the configuration language in which operators
// write it (section 15, F156).
//
// Nouns. A Spec is one workload. Its key is "<kind>.<name>", for instance "spread.web"; the Kind
// decides how replicas are placed and what the Spec must have (CheckKey, F81). A Block is a Spec as
// it stood in a file, with its line. The encoded form is canonical: one Spec has exactly one
// encoding, so equal bytes mean that nothing has to be written (F156). The instance digest names what
// a running instance runs; it leaves out what only placement reads, so that scaling restarts nothing
// (F74).
//
// Everything here is a pure function of its arguments; a Spec belongs to its caller, and what Decode
// and Parse return shares no memory with their input.
//
// # Limits
//
// An encoded Spec has at most SpecSizeMax bytes, because that is the largest value of a register
// (F82); validate.go has the bounds of the single fields. Decode takes any bytes, allocates in
// proportion to what is there and never by a length that was claimed, and refuses whatever it would
// not write itself. TLVs of newer versions are kept and passed on, unless they are marked critical:
// then the whole specification is refused, since running it without them would be wrong.
package workload
