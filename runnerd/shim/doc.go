// Package shim holds the two programs that stand between runnerd and a workload. Both are the runnerd
// binary started again under another first argument, and both are small on purpose: there is one shim
// per running instance.
//
//	runnerd ──▶ runnerd shim ──▶ runnerd stage ──exec──▶ the workload
//
// The shim is in a session of its own, adopts orphans (subreaper), survives runnerd, drains the log
// pipe, waits for the workload and writes its exit status into the instance's directory (F134). The
// stage waits until the shim has written down who it is, then drops every privilege and
// becomes the workload by executing the descriptor of the file whose digest was checked (F145). A
// killed shim therefore never leaves a workload behind that nobody knows of: without the shim's
// word the stage ends.
//
// A spare is a shim with an init that were started before there was an instance for them (spare.go).
//
// A shim in watch mode replaces one that was killed: it drains and watches a workload that is not its
// child, so the exit status is then unknown (-1).
//
// Files of an instance's directory, written by the shim (the rest is runnerd's):
//
//	lock    locked while a shim lives: there are never two
//	run     who runs: pid, start ticks, boot id
//	shim    who watches: pid, start ticks
//	exit    how it ended: code, reason
//	pipe    the FIFO behind the workload's stdout and stderr
//	log.times, log.1.times    when what of log and log.1 was written, see Times
//	log, log.1, dropped    the last 10 to 20 MiB of output and how much was thrown away (F147)
package shim

// Names of the files in an instance's directory.
const (
	FileLock     = "lock"
	FileRun      = "run"
	FileShim     = "shim"
	FileExit     = "exit"
	FilePipe     = "pipe"
	FileLog      = "log"
	FileLogOld   = "log.1"
	FileTimes    = "log.times"
	FileTimesOld = "log.1.times"
	FileDropped  = "dropped"
	DirScratch   = "scratch"
)

// First arguments of the binary.
const (
	ArgumentShim  = "shim"
	ArgumentStage = "stage"
)

// Descriptors that a shim and a stage inherit.
const (
	descriptorConfig = 3 // pipe with the record
	descriptorBinary = 4 // the file to execute
	descriptorReady  = 5 // shim: its answer to runnerd; stage: reads the word to go
	descriptorError  = 6 // stage: reports why it cannot execute
)

// UnknownCode is the exit code of a workload that nobody could wait for.
const UnknownCode = -1
