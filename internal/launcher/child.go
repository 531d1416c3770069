package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"colloid.net/ipc/supply"
	"golang.org/x/sys/unix"
)

// Program describes one child.
type Program struct {
	Name        string // of the process and of its connections: "meshd", "runnerd"
	Path        string
	Arguments   []string // --supply-fd is added
	Environment []string // NAME=value, on top of what every child gets
	Confinement Confinement
}

// A child finds its supply socket as the first descriptor after standard error, and then where to write why it ends.
const (
	supplyDescriptor = 3
	wordsDescriptor  = 4
)

// state of a child.
type state uint8

const (
	waiting state = iota // for startAt
	running
	down // for good
)

// child is one Program under supervision. All fields belong to the launcher's goroutine.
type child struct {
	program   Program
	state     state
	command   *exec.Cmd
	supply    *os.File // our end, nil while not running
	run       uint64   // counts starts; names a run in exit messages and connections
	startAt   time.Time
	startedAt time.Time
	pause     backoff
	peerRun   uint64      // helpers: the run of meshd that this run is connected to
	ownRun    uint64      // helpers: the run of its own that this connection belongs to
	words     *os.File    // what it says about its end
	ends      []time.Time // without being told to, oldest first, at most endsMax in endsWindow
	reason    string      // of the last one
	told      uint64      // the run of meshd that was told of the last end; 0 = none
}

// exit reports the end of one run.
type exit struct {
	child *child
	run   uint64
	err   error
}

// start runs the program once; its end arrives on exits.
func (c *child) start(now time.Time, output *os.File, exits chan<- exit) error {
	ours, theirs, err := supply.Pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	words, variable, err := supply.Words(wordsDescriptor)
	if err != nil {
		ours.Close()
		return err
	}
	arguments := append([]string{"--supply-fd", strconv.Itoa(supplyDescriptor)}, c.program.Arguments...)
	command := exec.Command(c.program.Path, arguments...)
	command.Stdout, command.Stderr = output, output
	command.Env = append(append(inheritedEnvironment(os.Environ()), c.program.Environment...), variable)
	command.Dir = "/"
	command.ExtraFiles = []*os.File{theirs, words}
	// A process group of its own: control-C reaches the launcher alone, which then stops in order.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.program.Confinement.start(command); err != nil {
		ours.Close()
		words.Close()
		return explainStart(c.program, err)
	}
	c.command, c.supply, c.words, c.state, c.startedAt = command, ours, words, running, now
	c.run++
	run := c.run
	go func() { exits <- exit{child: c, run: run, err: command.Wait()} }()
	return nil
}

// ended records the end of a run, closes what belonged to it, and gives the first line of what it said last.
func (c *child) ended() (words string) {
	words = supply.ReadWords(c.words)
	c.supply.Close()
	c.words.Close()
	c.command, c.supply, c.words = nil, nil, nil
	return words
}

// Ends are counted over endsWindow, and up to endsMax: what is more is as bad.
const (
	endsWindow = 10 * time.Minute
	endsMax    = 100
)

// count notes an end that nobody asked for.
func (c *child) count(now time.Time, reason string) {
	c.ends = append(c.ends, now)
	c.forgetEnds(now)
	c.reason, c.told = reason, 0
}

func (c *child) forgetEnds(now time.Time) {
	for len(c.ends) > endsMax || len(c.ends) > 0 && now.Sub(c.ends[0]) > endsWindow {
		c.ends = c.ends[1:]
	}
}

// notice is what meshd is told about the child; none if there is nothing to tell.
func (c *child) notice(now time.Time) (n supply.Notice, any bool) {
	c.forgetEnds(now)
	if len(c.ends) == 0 && c.state != down {
		return n, false
	}
	n = supply.Notice{Program: c.program.Name, Ends: len(c.ends), WindowSeconds: int(endsWindow / time.Second),
		Reason: c.reason, Down: c.state == down}
	if len(c.ends) > 0 {
		n.AgoSeconds = int(now.Sub(c.ends[len(c.ends)-1]) / time.Second)
	}
	return n, true
}

// signal sends s to a running child. A child that is already gone is no error.
func (c *child) signal(s os.Signal) {
	if c.state == running {
		_ = c.command.Process.Signal(s) // fails only if it has ended, which arrives on exits
	}
}

// exitStatus extracts the status of a finished run: -1 when a signal ended it or Wait failed.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return failed.ExitCode()
	}
	return -1
}

// explainStart adds the way out to the commonest failure: a program that meshd's user cannot reach.
func explainStart(p Program, err error) error {
	id := p.Confinement.Identity
	if id != nil && errors.Is(err, unix.EACCES) {
		return fmt.Errorf("user %s cannot run %s: make every directory above it searchable, install it in %s, "+
			"or choose a user with --user", id.Name, p.Path, SystemLibexec)
	}
	if id != nil && errors.Is(err, unix.EPERM) {
		return fmt.Errorf("start %s as user %s: %w: the launcher itself lacks the capabilities to confine it",
			p.Name, id.Name, err)
	}
	return fmt.Errorf("start %s: %w", p.Name, err)
}

// inheritedEnvironment keeps the variables that a child has a use for. The rest of an operator's
// environment, credentials among it, is nobody's business here.
func inheritedEnvironment(all []string) []string {
	var kept []string
	for _, variable := range all {
		for _, prefix := range [...]string{"PATH=", "HOME=", "LANG=", "TZ=", "TMPDIR=", "GOTRACEBACK=", "GODEBUG=", "COLLOID_DEBUG="} {
			if len(variable) >= len(prefix) && variable[:len(prefix)] == prefix {
				kept = append(kept, variable)
			}
		}
	}
	return kept
}
