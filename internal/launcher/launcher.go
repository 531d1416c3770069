package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"colloid.net/ipc/supply"
	"golang.org/x/sys/unix"
)

// StopGrace is how long a child has between SIGTERM and SIGKILL.
const StopGrace = 5 * time.Second

// Options say what to run. Directory, RunDirectory and Meshd are required.
type Options struct {
	Directory    string // state root
	RunDirectory string // of the command socket
	Identity     *Identity
	Meshd        Program
	Helpers      []Program
	Output       *os.File // standard output and error of the children; nil: os.Stderr
	Log          *log.Logger

	// Shortened by tests; zero means the constants of this package.
	StopGrace, BackoffMin, BackoffMax, BackoffReset, DirectoryCheck time.Duration
}

// ErrMisconfigured means that meshd refuses to run with its configuration; it has said why.
var ErrMisconfigured = errors.New("meshd cannot run with this configuration (see its message above)")

// DirectoryError says that the directories cannot be used as they are: a person has to change something
// before the next try.
type DirectoryError struct{ cause error }

func (e *DirectoryError) Error() string { return e.cause.Error() }
func (e *DirectoryError) Unwrap() error { return e.cause }

// errBusy means that another launcher holds the directory; that may pass.
var errBusy = errors.New("in use")

// launcher is one run of Run; everything belongs to its goroutine.
type launcher struct {
	options Options
	meshd   *child
	helpers []*child
	exits   chan exit
	lock    *os.File
	trouble string // with the directories, as it was said last
	// unfinished is what could not be made again at the last attempt.
	unfinished string
}

// Run starts everything and returns when ctx is done and the children have been stopped, when the
// cell has left its cluster (nil in both cases), or when the cell cannot run at all.
func Run(ctx context.Context, options Options) error {
	if err := options.complete(); err != nil {
		return err
	}
	var names []string
	l := &launcher{options: options, exits: make(chan exit, 1+len(options.Helpers))}
	if err := l.takeDirectory(); errors.Is(err, errBusy) {
		return err
	} else if err != nil {
		return &DirectoryError{err}
	}
	defer func() { l.lock.Close() }()
	for _, h := range options.Helpers {
		names = append(names, h.Name)
	}
	options.Meshd.Environment = append(slices.Clone(options.Meshd.Environment),
		supply.HelpersVariable+"="+strings.Join(names, ","))
	l.meshd = l.newChild(options.Meshd)
	for _, h := range options.Helpers {
		l.helpers = append(l.helpers, l.newChild(h))
	}
	err := l.supervise(ctx)
	l.stop()
	return err
}

// takeDirectory makes the state root and all that belongs below it, and locks it.
func (l *launcher) takeDirectory() error {
	o := &l.options
	if err := prepareRoot(o.Directory); err != nil {
		return err
	}
	if o.Identity != nil {
		if err := checkReachable(o.Directory, *o.Identity); err != nil {
			return err
		}
	}
	lock, err := lockDirectory(o.Directory)
	if err != nil {
		return err
	}
	if l.lock != nil {
		l.lock.Close()
	}
	l.lock = lock
	return o.prepareDirectories()
}

// directoryCheck is how often the launcher looks whether the directories are still there. The daemons write
// their files again, but below a root that is not theirs they cannot make a directory.
const directoryCheck = 3 * time.Second

// keepDirectories makes again what somebody has deleted, until that has worked.
func (l *launcher) keepDirectories() {
	missing := cmp.Or(l.missingPlace(), l.unfinished)
	if missing == "" {
		l.trouble = ""
		return
	}
	var err error
	if l.lostLock() {
		err = l.takeDirectory()
	} else {
		err = l.options.prepareDirectories()
	}
	text := missing + " was deleted while the cell runs and is made again"
	l.unfinished = ""
	if err != nil {
		text = fmt.Sprintf("%s was deleted while the cell runs and cannot be made again: %v", missing, err)
		l.unfinished = missing
	}
	if text != l.trouble {
		l.options.Log.Print(text)
	}
	l.trouble = text
}

// missingPlace is the first of the directories and the lock that is not there, "" if all are.
func (l *launcher) missingPlace() string {
	o := &l.options
	if l.lostLock() {
		return filepath.Join(o.Directory, lockName)
	}
	places := []string{o.RunDirectory, ProgramDirectory(o.Directory, o.Meshd.Name)}
	for _, h := range o.Helpers {
		places = append(places, ProgramDirectory(o.Directory, h.Name))
	}
	for _, place := range places {
		if _, err := os.Lstat(place); errors.Is(err, os.ErrNotExist) {
			return place
		}
	}
	return ""
}

// lostLock reports whether the file under the name of the lock is none or another one: then the lock that is
// held keeps nobody out.
func (l *launcher) lostLock() bool {
	held, err := l.lock.Stat()
	if err != nil {
		return true
	}
	there, err := os.Lstat(filepath.Join(l.options.Directory, lockName))
	return errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(held, there)
}

func (o *Options) complete() error {
	if o.Directory == "" || o.RunDirectory == "" || o.Meshd.Path == "" {
		return fmt.Errorf("launcher needs a state directory (%q), a run directory (%q) and meshd (%q)",
			o.Directory, o.RunDirectory, o.Meshd.Path)
	}
	if o.Output == nil {
		o.Output = os.Stderr
	}
	if o.Log == nil {
		o.Log = log.New(o.Output, "colloid: ", 0)
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&o.StopGrace, StopGrace}, {&o.BackoffMin, BackoffMin}, {&o.BackoffMax, BackoffMax},
		{&o.BackoffReset, BackoffReset}, {&o.DirectoryCheck, directoryCheck},
	} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return nil
}

// ProgramDirectory is the directory below the state root that belongs to one process.
func ProgramDirectory(root, name string) string { return filepath.Join(root, name) }

func (o *Options) prepareDirectories() error {
	if err := prepareOwned(ProgramDirectory(o.Directory, o.Meshd.Name), 0o700, o.Identity); err != nil {
		return err
	}
	for _, h := range o.Helpers {
		// 0711: workloads that run as other users must reach their own directories below.
		if err := prepareOwned(ProgramDirectory(o.Directory, h.Name), 0o711, nil); err != nil {
			return err
		}
	}
	if err := prepareOwned(o.RunDirectory, 0o750, o.Identity); err != nil {
		return err
	}
	if o.Identity == nil || o.Identity.SocketGroup == 0 {
		return nil
	}
	return os.Chown(o.RunDirectory, -1, int(o.Identity.SocketGroup))
}

func (l *launcher) newChild(p Program) *child {
	o := l.options
	return &child{program: p, pause: backoff{min: o.BackoffMin, max: o.BackoffMax, reset: o.BackoffReset}}
}

// supervise runs until there is a reason to stop.
func (l *launcher) supervise(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	check := time.NewTicker(l.options.DirectoryCheck)
	defer check.Stop()
	for {
		now := time.Now()
		if err := l.startDue(now); err != nil {
			return err
		}
		l.connect()
		l.tell(now)
		timer.Reset(l.untilNextStart(now))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-check.C:
			l.keepDirectories()
		case e := <-l.exits:
			if done, err := l.handleExit(e); done {
				return err
			}
		}
	}
}

func (l *launcher) children() []*child { return append([]*child{l.meshd}, l.helpers...) }

// startDue starts every child whose time has come. Only meshd's very first start may fail the whole:
// then nothing ran yet and the operator is looking.
func (l *launcher) startDue(now time.Time) error {
	for _, c := range l.children() {
		if c.state != waiting || c.startAt.After(now) {
			continue
		}
		err := c.start(now, l.options.Output, l.exits)
		if err == nil {
			continue
		}
		if c == l.meshd && c.run == 0 {
			return err
		}
		pause := c.pause.after(0)
		c.startAt = now.Add(pause)
		l.options.Log.Printf("%v; next try in %v", err, pause)
	}
	return nil
}

// idle is how long the loop may sleep when no start is due; exits and ctx end it early.
const idle = time.Hour

func (l *launcher) untilNextStart(now time.Time) time.Duration {
	sleep := idle
	for _, c := range l.children() {
		if c.state == waiting {
			sleep = min(sleep, max(0, c.startAt.Sub(now)))
		}
	}
	return sleep
}

// connect gives meshd and each helper a connection whenever both run and either is new.
func (l *launcher) connect() {
	for _, h := range l.helpers {
		if l.meshd.state != running || h.state != running ||
			(h.peerRun == l.meshd.run && h.ownRun == h.run) {
			continue
		}
		if err := l.supplyBoth(h); err != nil {
			// A child that just died or does not read: its exit, or the operator, will settle it.
			l.options.Log.Printf("connect meshd with %s: %v", h.program.Name, err)
		}
		h.peerRun, h.ownRun = l.meshd.run, h.run
	}
}

func (l *launcher) supplyBoth(helper *child) error {
	a, b, err := supply.Connection()
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	if err := supply.Send(helper.supply, l.meshd.program.Name, a); err != nil {
		return err
	}
	return supply.Send(l.meshd.supply, helper.program.Name, b)
}

// tell lets each meshd know what ended without being told to, itself included, since status is where people
// look.
func (l *launcher) tell(now time.Time) {
	if l.meshd.state != running {
		return
	}
	for _, c := range l.children() {
		if c.told == l.meshd.run {
			continue
		}
		c.told = l.meshd.run
		if n, any := c.notice(now); any {
			_ = supply.SendNotice(l.meshd.supply, n) // one that does not read is about to end, or shows nothing anyway
		}
	}
}

// handleExit plans the restart of a child that ended, or reports that the launcher is done.
func (l *launcher) handleExit(e exit) (done bool, err error) {
	c := e.child
	if e.run != c.run || c.state != running {
		panic(fmt.Sprintf("launcher: end of run %d of %s, which is in state %d, run %d",
			e.run, c.program.Name, c.state, c.run))
	}
	words := c.ended()
	status := exitStatus(e.err)
	now := time.Now()
	switch {
	case c == l.meshd && status == supply.ExitLeft:
		c.state = down
		l.options.Log.Print("this cell has left its cluster")
		return true, nil
	case c == l.meshd && status == supply.ExitMisconfigured:
		c.state = down
		return true, ErrMisconfigured
	case status == supply.ExitMisconfigured:
		c.state, c.reason, c.told = down, words, 0
		l.options.Log.Printf("%s cannot run with its configuration; the cell goes on without it", c.program.Name)
		return false, nil
	}
	reason := describeExit(e.err)
	if words != "" {
		reason += ": " + words
	}
	c.count(now, reason)
	pause := c.pause.after(now.Sub(c.startedAt))
	c.state, c.startAt = waiting, now.Add(pause)
	l.options.Log.Printf("%s ended (%s); starting it again in %v", c.program.Name, describeExit(e.err), pause)
	return false, nil
}

func describeExit(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// stop ends meshd first, so that it sees its helpers alive to the end, then the helpers. Workloads
// are the helpers' affair: a plain stop leaves them running.
func (l *launcher) stop() {
	l.stopChildren([]*child{l.meshd})
	l.stopChildren(l.helpers)
}

func (l *launcher) stopChildren(children []*child) {
	left := 0
	for _, c := range children {
		if c.state == running {
			left++
			c.signal(syscall.SIGTERM)
		}
	}
	deadline := time.NewTimer(l.options.StopGrace)
	defer deadline.Stop()
	for left > 0 {
		select {
		case e := <-l.exits:
			e.child.ended()
			e.child.state = down
			for _, c := range children {
				if c == e.child {
					left--
				}
			}
		case <-deadline.C:
			for _, c := range children {
				if c.state == running {
					l.options.Log.Printf("%s does not stop, killing it", c.program.Name)
					c.signal(unix.SIGKILL)
				}
			}
		}
	}
}
