package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What others do to the files of a running daemon would show at its next start only, when it is too late. So
// before each round of writing, and every watchInterval without one, the writer compares what is there with
// what it left there: a handful of lstat calls. What is missing, replaced or edited is written again from
// memory; the state itself from a fresh snapshot that the cell is asked for. A directory that is gone is made
// again. Where it cannot be, or holds the files of somebody else, every save fails and says so, because a
// write that would be lost with the process must not be acknowledged.

// watchInterval is the longest time until a change is noticed.
const watchInterval = 2 * time.Second

// guarded are the files that are compared.
var guarded = [...]string{
	nameIdentity, nameIncarnation, nameCluster, namePeers, nameInventory, nameJoining, nameSnapshot, nameLog, nameLock,
}

// stamp tells a file from what others put in its place or make of it. The zero stamp stands for no file.
type stamp struct {
	device, inode uint64
	size          int64
	mode          uint32
	modified      syscall.Timespec
}

func stampOf(path string) stamp {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{uint64(stat.Dev), stat.Ino, stat.Size, stat.Mode, stat.Mtim}
}

// guard belongs to the writer's goroutine.
type guard struct {
	path   string
	home   stamp // of the directory; only device and inode count
	stamps map[string]stamp
	failed string // what it said last could not be repaired
}

func newGuard(path string) *guard {
	g := &guard{path: path, home: stampOf(path), stamps: map[string]stamp{}}
	for _, name := range guarded {
		g.note(name)
	}
	return g
}

func (g *guard) note(name string) { g.stamps[name] = stampOf(filepath.Join(g.path, name)) }

// changed lists the files that are not as they were left. A file that was not there may come.
func (g *guard) changed() (names []string) {
	for _, name := range guarded {
		if left := g.stamps[name]; left != (stamp{}) && left != stampOf(filepath.Join(g.path, name)) {
			names = append(names, name)
		}
	}
	return names
}

// inspect looks for changes and repairs them. While it returns an error nothing can be stored.
func (d *Directory) inspect() error {
	g := d.guard
	if g == nil {
		return nil
	}
	err := d.inspectDirectory()
	var names []string
	if err == nil {
		if names = g.changed(); len(names) > 0 {
			err = d.repair(names)
		}
	}
	if err == nil {
		if access := unix.Faccessat(unix.AT_FDCWD, g.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); access != nil {
			err = fmt.Errorf("storage: %s cannot be written to any more: %w", g.path, access)
		}
	}
	switch {
	case err != nil && err.Error() != g.failed:
		g.failed = err.Error()
		d.options.Trouble(g.failed, "nothing can be stored until that is repaired: new configuration is refused", false)
	case err == nil && len(names) > 0:
		g.failed = ""
		d.options.Trouble(fmt.Sprintf("%s of the state directory %s: deleted or changed while meshd runs, and written again",
			strings.Join(names, ", "), g.path), "find out who did that; stop colloid before you work on its files", true)
	case err == nil && g.failed != "":
		g.failed = ""
		d.options.Trouble("the state directory "+g.path+" could not be written to for a while", "it can again", true)
	}
	return err
}

// inspectDirectory makes the directory again if it is gone, and takes it over if it is another, empty one.
func (d *Directory) inspectDirectory() error {
	g := d.guard
	now := stampOf(g.path)
	if now.device == g.home.device && now.inode == g.home.inode {
		return nil
	}
	if d.holdsLock() { // the last look came in the middle of an exchange, and began to fill this directory
		g.home = now
		return nil
	}
	if now == (stamp{}) {
		if err := makeDirectory(g.path); err != nil {
			return fmt.Errorf("storage: the state directory %s is gone and cannot be made again (%w): restart colloid", g.path,
				plain(err))
		}
	}
	for _, name := range guarded[:len(guarded)-1] {
		if stampOf(filepath.Join(g.path, name)) != (stamp{}) {
			return fmt.Errorf("storage: %s was exchanged while meshd runs and holds another %s: put the old directory back, "+
				"or restart colloid to go on with this one", g.path, name)
		}
	}
	if err := d.lockAgain(); err != nil {
		return err
	}
	g.home = stampOf(g.path)
	return nil
}

// lockAgain locks the file that bears the name of the lock now.
func (d *Directory) lockAgain() error {
	lock, err := lockDirectory(d.path)
	if err != nil {
		return err
	}
	if d.lock != nil {
		d.lock.Close()
	}
	d.lock = lock
	d.guard.note(nameLock)
	return nil
}

// holdsLock reports whether the file that bears the name of the lock is the one that is locked.
func (d *Directory) holdsLock() bool {
	if d.lock == nil {
		return false
	}
	info, err := os.Lstat(filepath.Join(d.path, nameLock))
	held, heldErr := d.lock.Stat()
	return err == nil && heldErr == nil && os.SameFile(info, held)
}

// repairLock makes the file that others look at the locked one again.
func (d *Directory) repairLock() error {
	path := filepath.Join(d.path, nameLock)
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		if err := os.Remove(path); err != nil { // a link or a FIFO holds no lock
			return fmt.Errorf("storage: %w", err)
		}
		return d.lockAgain()
	}
	if d.holdsLock() {
		err := errors.Join(d.lock.Chmod(0o600), writeHolder(d.lock))
		d.guard.note(nameLock)
		return err
	}
	return d.lockAgain()
}

// repair writes files again, the lock first: it tells the next look whose directory this is.
func (d *Directory) repair(names []string) error {
	w, rewrite := &d.writer, false
	if at := slices.Index(names, nameLock); at > 0 {
		names = slices.Concat(names[at:at+1], names[:at], names[at+1:])
	}
	for _, name := range names {
		var err error
		switch name {
		case nameLock:
			err = d.repairLock()
		case nameSnapshot:
			// What lies there is not what was saved: it must not become the previous snapshot.
			err = w.disk.Rename(nameSnapshot, nameSnapshot+suffixDamaged)
			if missing(err) {
				err = nil
			}
			w.snapshot, rewrite = false, true
			d.guard.stamps[nameSnapshot] = stamp{}
		case nameLog:
			rewrite = true
			err = w.salvageLog()
		default:
			small, known := w.small[name]
			if !known {
				d.guard.stamps[name] = stamp{}
				continue
			}
			err = w.replace(name, small.kind, small.payload)
		}
		if err != nil {
			d.guard.stamps[name] = taken // tried again
			delete(w.written, name)
			return d.located(err)
		}
	}
	if stampOf(filepath.Join(d.path, nameBallast)) == (stamp{}) {
		w.ballast = 0 // made again after this round
	}
	d.noteWritten()
	if rewrite {
		d.options.Rewrite()
	}
	return nil
}

// noteWritten remembers what this round has left.
func (d *Directory) noteWritten() {
	if d.guard != nil {
		for name := range d.writer.written {
			d.guard.note(name)
			if d.guard.stamps[name] == (stamp{}) && d.writer.keeps(name) {
				d.guard.stamps[name] = taken // in the moment after it was written
			}
		}
	}
	clear(d.writer.written)
}

// taken is the stamp of no file: what bears it is written again.
var taken = stamp{inode: ^uint64(0)}

// keeps reports whether a file is meant to be there.
func (w *writer) keeps(name string) bool {
	switch name {
	case nameLog:
		return w.log != nil
	case nameSnapshot:
		return w.snapshot
	}
	_, small := w.small[name]
	return small
}

// salvageLog writes the log again. The old file, deleted or not, is still open: what is whole of it is kept.
func (w *writer) salvageLog() error {
	var data []byte
	if file, ok := w.log.(systemFile); ok {
		data, _ = os.ReadFile("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
	}
	return w.installLog(wholeEntries(data[:min(int64(len(data)), w.logSize)]))
}

// wholeEntries is the beginning of a log that can be read.
func wholeEntries(data []byte) []byte {
	_, rest, err := openEnvelope(data, nameLog, kindLog)
	if err != nil {
		return logHeader
	}
	last := uint64(0)
	for {
		sequence, _, after, ok := nextEntry(rest)
		if !ok || sequence <= last {
			return data[:len(data)-len(rest)]
		}
		last, rest = sequence, after
	}
}

// ErrUnusable means that something lies in the directory which is no file of the daemon's, and which only a
// person can judge.
var ErrUnusable = errors.New("storage: unusable")

// checkFiles refuses a directory in which one of the names is something else than a file: opening it could
// block, a rename could not replace it, and following a link could lead to an empty disk.
func checkFiles(path string) error {
	for _, name := range [...]string{
		nameIdentity, nameIncarnation, nameCluster, namePeers, nameSnapshot, nameSnapshotPrevious, nameLog,
		nameLogPrevious, nameInventory, nameJoining, nameBallast, nameLock,
	} {
		for _, name := range [...]string{name, name + suffixTemporary} {
			file := filepath.Join(path, name)
			info, err := os.Lstat(file)
			if err == nil && !info.Mode().IsRegular() {
				return fmt.Errorf("%w: %s is %s, a file was expected: move it away", ErrUnusable, file, describe(info.Mode()))
			}
		}
	}
	return nil
}

func describe(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// plain is the cause of a file system error without the repeated path.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// Permanent reports whether an error of Open will be the same at every start until a person acts.
func Permanent(err error) bool {
	for _, cause := range [...]error{ErrUnusable, ErrDamaged, fs.ErrPermission, unix.EROFS, unix.ENOTDIR, unix.EISDIR, unix.ELOOP} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return newer(err)
}
