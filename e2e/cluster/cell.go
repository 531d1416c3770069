package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"colloid.net/ipc/uds"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cell is one machine of the cluster.
type Cell struct {
	Name      string
	Address   netip.Addr
	Directory string // state root
	cluster   *Cluster
	number    int
	group     string // control group, "" = none
	keeper    *exec.Cmd
	running   bool
	bare      bool // its host has no address
}

func newCell(c *Cluster, number int) *Cell {
	name := "cell-" + strconv.Itoa(number+1)
	return &Cell{Name: name, Address: c.network.address(number), Directory: filepath.Join(c.Directory, name),
		cluster: c, number: number}
}

// Socket is the path of the cell's command socket.
func (c *Cell) Socket() string { return filepath.Join(c.Directory, "run", "colloid.sock") }

func (c *Cell) logPath() string { return filepath.Join(c.cluster.Directory, c.Name+".log") }

// Start starts the cell's launcher, at first and after Kill. It does not wait for anything.
func (c *Cell) Start(context.Context) error {
	if c.running {
		return fmt.Errorf("%s already runs", c.Name)
	}
	log, err := os.OpenFile(c.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.keeper = exec.Command(self, c.arguments()...)
	c.keeper.Env = append(os.Environ(), keeperVariable+"=1")
	if c.cluster.options.GroupFile != "" {
		c.keeper.Env = append(c.keeper.Env, keeperGroupVariable+"="+c.cluster.options.GroupFile)
	}
	if c.cluster.options.DenyRing {
		c.keeper.Env = append(c.keeper.Env, keeperDenyVariable+"=1")
	}
	c.keeper.Stdout, c.keeper.Stderr = log, log
	c.keeper.Dir = "/"
	c.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // control-C is for us alone
	c.group = controlGroup(c.cluster.Directory, c.Name)
	err = startInGroup(c.group, c.keeper, func() error { return c.Do(c.keeper.Start) })
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	keeper := c.keeper
	go func() { _ = keeper.Wait() }() // only to reap it; what matters is read from /proc
	c.running = true
	c.cluster.options.Log("started %s at %s", c.Name, c.Address)
	return c.cluster.describe()
}

// Endpoint is the cell's address and port, as `colloid connect` takes them.
func (c *Cell) Endpoint() string {
	return netip.AddrPortFrom(c.Address, uint16(c.cluster.port)).String()
}

func (c *Cell) arguments() []string {
	bind := c.Endpoint()
	if c.cluster.options.BindAny {
		bind = netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(c.cluster.port)).String()
		if c.Address.Is4() {
			bind = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(c.cluster.port)).String()
		}
	}
	arguments := []string{c.cluster.Program("colloid"), "--directory", c.Directory, "--bind", bind,
		"--policy", c.cluster.policyPath(c.number)}
	if c.number > 0 && !c.cluster.options.Apart {
		arguments = append(arguments, "--join", c.cluster.Cells[0].Endpoint())
	}
	return append(arguments, c.cluster.options.CellArguments...)
}

func (c *Cell) membership() membership {
	m := membership{namespace: c.cluster.network.namespaceLink(c.number), directory: c.Directory, group: c.group}
	if c.keeper != nil && c.keeper.Process != nil {
		m.keeper = c.keeper.Process.Pid
	}
	return m
}

// Processes lists every process of the cell: keeper, launcher, daemons, workloads.
func (c *Cell) Processes() []int { return c.membership().find() }

// Kill ends every process of the cell with SIGKILL, like a machine that loses power. Its state
// directory stays; Start brings it back.
func (c *Cell) Kill() error {
	legacy := legacyGroups(c.Processes())
	err := errors.Join(c.membership().killAll(), unmountBelow(c.Directory), removeGroups(legacy))
	c.running = false
	if err == nil && c.group != "" {
		// Linux up to at least 6.18 kills at once what is cloned into a group that was killed before.
		err = removeGroups(groupTree(c.group))
		c.group = ""
	}
	return err
}

// KillProgram ends one daemon of the cell ("meshd", "runnerd", or "colloid", the launcher) with SIGKILL
// and returns how many processes that were.
func (c *Cell) KillProgram(name string) (int, error) { return c.SignalProgram(name, unix.SIGKILL) }

// SignalProgram sends a signal to one daemon of the cell and returns how many processes got it.
func (c *Cell) SignalProgram(name string, signal unix.Signal) (int, error) {
	killed := 0
	for _, id := range c.Processes() {
		// A helper's shims run the same file under a word of their own; they belong to the workloads.
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if err != nil || readLink(fmt.Sprintf("/proc/%d/exe", id)) != c.cluster.Program(name) ||
			!strings.Contains(string(line), "\x00--") {
			continue
		}
		if err := unix.Kill(id, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return killed, err
		}
		killed++
	}
	return killed, nil
}

// KillShims ends the shims of all instances of the cell with SIGKILL and returns how many those were.
func (c *Cell) KillShims() int {
	killed := 0
	for _, id := range c.Processes() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if err == nil && strings.HasSuffix(string(line), "\x00shim\x00") && unix.Kill(id, unix.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// Relaunch starts the launcher again after it alone was killed and its daemons have ended; workloads
// that still run are left to it. The keeper of the former run stays with them.
func (c *Cell) Relaunch(ctx context.Context) error {
	err := WaitFor(ctx, 10*time.Second, "the daemons of "+c.Name+" to end", func(context.Context) error {
		for _, id := range c.Processes() {
			switch exe := readLink(fmt.Sprintf("/proc/%d/exe", id)); exe {
			case c.cluster.Program("meshd"), c.cluster.Program("colloid"):
				return fmt.Errorf("%s (process %d) still runs", exe, id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.running = false
	return c.Start(ctx)
}

// Running lists the processes of an installed program in the cell, such as the instances of a workload:
// their ids and, for each, the environment it was started with.
func (c *Cell) Running(program string) map[int][]string {
	found := map[int][]string{}
	for _, id := range c.Processes() {
		if readLink(fmt.Sprintf("/proc/%d/exe", id)) != c.cluster.Program(program) {
			continue
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", id))
		if err == nil { // else it ended meanwhile
			found[id] = strings.Split(strings.TrimRight(string(environment), "\x00"), "\x00")
		}
	}
	return found
}

// Do runs f on a thread inside the cell's network.
func (c *Cell) Do(f func() error) error { return c.cluster.network.do(c.number, f) }

// Pause stops every process of the cell as a suspended machine does; Resume lets them go on.
func (c *Cell) Pause() { c.membership().signalAll(unix.SIGSTOP) }

// Resume ends Pause.
func (c *Cell) Resume() { c.membership().signalAll(unix.SIGCONT) }

// Cut takes the cell off the network and Heal brings it back. ErrNoLink without namespaces.
func (c *Cell) Cut() error { return c.cluster.network.setLink(c.number, false) }

// SetAddress gives the cell's host another address in the place of the one it has, as a DHCP server does; an invalid
// one only takes it. It needs namespaces on a bridge.
func (c *Cell) SetAddress(to netip.Addr) error {
	return c.Do(func() error {
		link, err := netlink.LinkByName(cellLink)
		if err != nil {
			return err
		}
		bits := 24
		if c.Address.Is6() {
			bits = 64
		}
		if !c.bare {
			old, err := netlink.ParseAddr(netip.PrefixFrom(c.Address, bits).String())
			if err != nil {
				return err
			}
			if err := netlink.AddrDel(link, old); err != nil {
				return err
			}
			c.bare = true
		}
		if !to.IsValid() {
			return nil
		}
		address, err := netlink.ParseAddr(netip.PrefixFrom(to, bits).String())
		if err != nil {
			return err
		}
		if to.Is6() {
			address.Flags = unix.IFA_F_NODAD // usable at once
		}
		c.Address, c.bare = to, false
		return netlink.AddrAdd(link, address)
	})
}

// Heal ends Cut.
func (c *Cell) Heal() error { return c.cluster.network.setLink(c.number, true) }

// Rebind makes the cell's routers forget all connections and use other ports from now on.
func (c *Cell) Rebind() error {
	if routed, ok := c.cluster.network.(*routed); ok {
		return routed.rebind(c.number)
	}
	return ErrNoLink
}

// Router is what stands between the cell and the others.
func (c *Cell) Router() Router {
	if routed, ok := c.cluster.network.(*routed); ok {
		return routed.routers[c.number]
	}
	return NoRouter
}

// Result is what a run of the command line gave.
type Result struct {
	Output, Errors string // standard output and standard error
	Exit           int
}

// cliTimeout bounds one run of the command line.
const cliTimeout = 60 * time.Second

// Run runs `colloid` with the cell's socket. An exit status other than 0 is not an error.
func (c *Cell) Run(ctx context.Context, arguments ...string) (Result, error) {
	return c.run(ctx, nil, arguments...)
}

func (c *Cell) run(ctx context.Context, user *syscall.Credential, arguments ...string) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.cluster.Program("colloid"),
		append([]string{"--socket", c.Socket()}, arguments...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	var output, messages bytes.Buffer
	command.Stdout, command.Stderr = &output, &messages
	err := command.Run()
	result := Result{Output: output.String(), Errors: messages.String(), Exit: command.ProcessState.ExitCode()}
	var failed *exec.ExitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		return result, nil
	}
	return result, err
}

// RunAs is Run as another user. It needs root, and that the user may enter the cluster's directory.
func (c *Cell) RunAs(ctx context.Context, user syscall.Credential, arguments ...string) (Result, error) {
	return c.run(ctx, &user, arguments...)
}

// Command is Run that demands exit status 0 and returns the output.
func (c *Cell) Command(ctx context.Context, arguments ...string) (string, error) {
	result, err := c.Run(ctx, arguments...)
	if err == nil && result.Exit != 0 {
		err = fmt.Errorf("colloid %v on %s: exit status %d: %s", arguments, c.Name, result.Exit, result.Errors)
	}
	return result.Output, err
}

// exitNeedsHuman is `colloid status` telling that something waits for an operator.
const exitNeedsHuman = 3

// Status asks the cell for its view of the cluster.
func (c *Cell) Status(ctx context.Context) (*uds.Status, error) {
	result, err := c.Run(ctx, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	if result.Exit != 0 && result.Exit != exitNeedsHuman {
		return nil, fmt.Errorf("status of %s: exit status %d: %s", c.Name, result.Exit, result.Errors)
	}
	status := new(uds.Status)
	if err := json.Unmarshal([]byte(result.Output), status); err != nil {
		return nil, fmt.Errorf("status of %s: %w", c.Name, err)
	}
	return status, nil
}

// WaitActive waits until the cell takes part in its cluster.
func (c *Cell) WaitActive(ctx context.Context, limit time.Duration) error {
	return WaitFor(ctx, limit, c.Name+" to become active", func(ctx context.Context) error {
		if len(c.Processes()) == 0 {
			return errors.New("its processes have ended")
		}
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if status.Cell.State != "active" {
			return fmt.Errorf("it is %s", status.Cell.State)
		}
		return nil
	})
}

// LogTail returns the last bytes of what the cell's processes printed.
func (c *Cell) LogTail(size int64) string {
	file, err := os.Open(c.logPath())
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	tail := make([]byte, min(size, info.Size()))
	n, err := file.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && n == 0 {
		return ""
	}
	return string(tail[:n])
}
