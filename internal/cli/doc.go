// Package cli is the command line of Colloid: it parses and validates what an operator writes, talks
// to the local meshd over its Unix socket and prints what comes back. It opens no network socket and
// holds no state (F9); everything it knows it asks for.
//
// # Rules of output
//
// Data goes to standard output, talk to standard error. An error is one line that starts with
// "colloid:" and says what to do. `-o json` prints the documents of package ipc/uds unchanged. The
// exit status is part of the interface: see the constants Exit... and `colloid help exit-codes`.
//
// # Writing
//
// A write always carries the digest of what this run has read (F55), so it can never replace a value
// nobody looked at: either it succeeds on what was seen or the cluster answers CONFLICT and the
// command says how to go on. A file is parsed and checked as a whole before the first write, and a
// workload that the cluster already holds in the same form is not written at all (F156).
//
// One file per command; connection.go finds the daemon, failure.go maps errors to exit statuses,
// run.go starts the appliance through internal/launcher.
package cli
