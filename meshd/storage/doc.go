// Package storage keeps what a cell must not forget in one directory (SPEC-REVIEW F1, F2, F4, F157).
//
//	cell_id                  who this cell is, and on which machine: id, secret, machine-id, MAC
//	incarnation              number of this run, raised and synced before Open returns
//	cluster                  the key of the cluster and whether it was joined
//	peers                    the last known contacts, at most 64
//	state.snapshot           the replicated state, and .previous, the one before
//	writes.log               own writes since the snapshot, and .previous, those before it
//	inventory                which of these there are, and up to which number entries are durable
//	joining                  what a cell takes along into another cluster, until it is there
//	*.damaged                what could not be read, kept for people
//	ballast                  1 MiB that is given up when the disk is full, for the small files
//	lock                     held by the running daemon, names its process
//
// Every file is replaced as a whole (written aside, synced, renamed, directory synced) except the
// log, which is appended to. Each carries a format version and a checksum. After a crash at any
// moment Open finds the old or the new content of each, never a mixture, and every write that was
// reported as stored.
//
// One goroutine writes. Calls of the cell only queue, with copied data, and end in exactly one call
// of Options.Completed. What waits in the queue is bounded: 1024 appends of together 4 MiB, and one
// value for each of the other files, where a newer value takes the place of an older one.
//
// Log entries are numbered. A snapshot says up to which number it contains them, so it does not
// matter when the log is cut. The older log is kept as long as the older snapshot may need it.
package storage
