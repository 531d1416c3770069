package storage

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"colloid.net/meshd/wire"
)

// Names of the files.
const (
	nameIdentity         = "cell_id"
	nameIncarnation      = "incarnation"
	nameCluster          = "cluster"
	namePeers            = "peers"
	nameSnapshot         = "state.snapshot"
	nameSnapshotPrevious = "state.snapshot.previous"
	nameLog              = "writes.log"
	nameLogPrevious      = "writes.log.previous"
	nameInventory        = "inventory"
	nameJoining          = "joining"
	nameBallast          = "ballast"
	nameLock             = "lock"
	suffixTemporary      = ".tmp"
	suffixDamaged        = ".damaged"
)

// Limits.
const (
	RecordMax   = 1 << 20   // one log entry
	SnapshotMax = 256 << 20 // one snapshot
	LogMax      = 64 << 20  // the log; snapshots keep it far below
	BallastSize = 1 << 20   // F157

	smallFileMax   = 64 << 10
	appendsMax     = 1024
	appendBytesMax = 4 << 20
	ticketsMax     = 1024
)

// DefaultWindow is the shortest time between two syncs of the log: appends within it share one.
const DefaultWindow = 20 * time.Millisecond

// Options of Open.
type Options struct {
	// Completed hears the end of each save, err nil when it is on disk. It is called from the
	// writer's goroutine, or from the calling one when the queue is full, and must not block.
	Completed func(ticket uint64, err error)
	// MachineIDPath is /etc/machine-id by default.
	MachineIDPath string
	// BootID names the run of the kernel, which tells a killed process from a power cut; empty: unknown. It
	// is that of the system by default.
	BootID string
	// Window is DefaultWindow if zero.
	Window time.Duration
	// Random is crypto/rand by default.
	Random io.Reader
	// Trouble hears that files were deleted or changed by others: what, what to do, and whether it could be
	// repaired. Rewrite asks for a snapshot of all that is to be kept. Both are called from the writer's
	// goroutine and must not block.
	Trouble func(text, hint string, repaired bool)
	Rewrite func()
	// WatchInterval is watchInterval if zero.
	WatchInterval time.Duration
	// CheckJoining says whether what SaveJoining was given can be understood; what cannot is damaged. nil:
	// all can.
	CheckJoining func(data []byte) error
}

// Loaded is what the directory held.
type Loaded struct {
	Self wire.CellID
	// Incarnation is that of this run, already durable (F1).
	Incarnation uint32
	SecretHash  uint64
	Cluster     Cluster // Key zero: never in one
	Peers       []wire.Contact
	Snapshot    []byte   // nil: none
	Writes      [][]byte // own writes that the snapshot does not contain, oldest first
	// Joining is what SaveJoining was given last, nil: nothing.
	Joining []byte
	// Renewed: the id is a new one because the files of the one before were missing or damaged. Nobody else
	// has it.
	Renewed bool
	// Lost says which files are damaged or missing so that part of what was acknowledged may be gone; empty:
	// none. It stays, also across starts, until SaveRecovered.
	Lost string
	// Damaged are sentences about damage that cost nothing that matters.
	Damaged []string
	// Notes are lines for the log about what was repaired or given up.
	Notes []string
}

// Directory is an open state directory. Its saving methods implement cell.Storage.
type Directory struct {
	disk    disk
	lock    *os.File // nil in tests
	path    string
	options Options

	mutex    sync.Mutex // guards what follows
	queue    queue
	sequence uint64 // of the last log entry given a number
	closed   bool

	wake chan struct{} // of length one: something was queued
	done chan struct{} // closed when the writer has ended

	// Of the writer's goroutine.
	writer writer
	guard  *guard // nil in tests without a real directory
}

// Errors of saving, besides those of the file system.
var (
	ErrQueueFull = errors.New("storage: too much is waiting to be written")
	ErrClosed    = errors.New("storage: closed")
	ErrLogFull   = errors.New("storage: writes.log has reached 64 MiB: no snapshot could be saved for long")
	ErrTooLarge  = errors.New("storage: too large to be stored")
)

// Open locks the directory, creating it if need be, and reads everything. The incarnation is raised
// and durable when it returns, so that dots of this run were never used before (F1). A cell_id of
// another machine is replaced (F2). It fails rather than start with part of the state, except where
// a note says so.
func Open(path string, options Options) (*Directory, Loaded, error) {
	if options.MachineIDPath == "" {
		options.MachineIDPath = "/etc/machine-id"
	}
	machineID, err := readMachineID(options.MachineIDPath)
	if err != nil {
		return nil, Loaded{}, err
	}
	if err := makeDirectory(path); err != nil {
		return nil, Loaded{}, err
	}
	if err := checkFiles(path); err != nil {
		return nil, Loaded{}, err
	}
	lock, err := lockDirectory(path)
	if err != nil {
		return nil, Loaded{}, err
	}
	if options.BootID == "" {
		options.BootID = readBootID()
	}
	d, loaded, err := prepare(systemDisk{path}, path, machineID, options)
	if err != nil {
		lock.Close()
		return nil, Loaded{}, err
	}
	d.lock, d.guard = lock, newGuard(path)
	go d.write()
	return d, loaded, nil
}

// openDisk is Open without the operating system.
func openDisk(disk disk, path, machineID string, options Options) (*Directory, Loaded, error) {
	d, loaded, err := prepare(disk, path, machineID, options)
	if err == nil {
		go d.write()
	}
	return d, loaded, err
}

// prepare reads everything; the writer's goroutine is yet to be started.
func prepare(disk disk, path, machineID string, options Options) (*Directory, Loaded, error) {
	if options.Window == 0 {
		options.Window = DefaultWindow
	}
	if options.Random == nil {
		options.Random = rand.Reader
	}
	if options.Completed == nil {
		options.Completed = func(uint64, error) {}
	}
	if options.Trouble == nil {
		options.Trouble = func(string, string, bool) {}
	}
	if options.Rewrite == nil {
		options.Rewrite = func() {}
	}
	if options.WatchInterval == 0 {
		options.WatchInterval = watchInterval
	}
	d := &Directory{
		disk: disk, path: path, options: options,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l := loader{disk: disk, writer: &d.writer, checkJoining: options.CheckJoining}
	d.writer = newWriter(disk)
	d.writer.bootID = options.BootID
	if err := l.load(machineID, options.Random); err != nil {
		d.writer.close()
		return nil, Loaded{}, err
	}
	d.sequence = l.sequence
	clear(d.writer.written)
	return d, l.loaded, nil
}

// Close writes what is queued and unlocks the directory.
func (d *Directory) Close() error {
	d.mutex.Lock()
	if d.closed {
		d.mutex.Unlock()
		<-d.done
		return nil
	}
	d.closed = true
	d.mutex.Unlock()
	d.signal()
	<-d.done
	err := d.writer.close()
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

func (d *Directory) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// located puts the directory and a way out into an error of the file system.
func (d *Directory) located(err error) error {
	if err != nil && IsNoSpace(err) {
		return fmt.Errorf("%w: free some space in %s", err, d.path)
	}
	return err
}
