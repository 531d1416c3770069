package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Port is the UDP port of a cell, unless it is taken on the loopback interface.
const Port = 12421

// Options describe a cluster. Name and Binaries are required.
type Options struct {
	Name     string // prefix of directories and namespaces: "colloid-demo"
	Cells    int    // 0 = 3
	Binaries string // directory with colloid, meshd and runnerd
	// Programs are executables in Binaries that the hosts' policy lets workloads run.
	Programs []string
	// Loopback forbids network namespaces even for root.
	Loopback bool
	// Version6 lets the cells have addresses of IP version 6 only. It needs root.
	Version6 bool
	// Routers puts every cell behind a router of this kind; their number is that of the cells. It needs
	// root. The first must be NoRouter.
	Routers []Router
	// Firewalled are the numbers of cells, counted from 0, that let in nothing but answers. It needs root.
	Firewalled []int
	// BindAny lets the cells listen on all addresses of their hosts, as they do unless told otherwise. It needs root.
	BindAny bool
	// Apart leaves every cell in a cluster of its own.
	Apart bool
	// Denied are the numbers of cells, counted from 0, whose policy allows none of the Programs.
	Denied []int
	// Policy gives the text of a cell's policy file instead of the one that allows the Programs; nil for that
	// one. It is asked for each cell when the network is there and nothing runs in it yet.
	Policy func(c *Cluster, cell int) (string, error)
	// GroupFile takes the place of /etc/group for the cells' processes alone. It needs root.
	GroupFile string
	// DenyRing forbids the cells' processes io_uring by a seccomp filter, as container runtimes do.
	DenyRing bool
	// CellArguments are added to every cell's command line.
	CellArguments []string
	PolicyLines   string // more lines of the hosts' policy
	// Modules are WebAssembly modules in Binaries that the hosts' policy lets workloads run.
	Modules []string
	// Log tells what happens; nil is silent.
	Log func(format string, arguments ...any)
}

// Cluster is a set of cells under the caller's control. Its methods are for one goroutine, except
// HTTP.
type Cluster struct {
	options   Options
	Directory string // holds everything of the cluster
	Cells     []*Cell
	port      int
	network   network
	closed    bool
}

// Start starts all cells, joins them to one cluster and waits until every cell sees all others
// alive. On failure everything is cleaned up, except that ctx may have ended meanwhile.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	c, err := prepare(options)
	if err != nil {
		return nil, err
	}
	if err := c.startCells(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w%s", err, c.lastWords()), c.Close())
	}
	return c, nil
}

// made counts the clusters of this process, of which several may run at a time.
var made atomic.Int32

// prepare makes directory, programs, policy and network, but starts nothing.
func prepare(options Options) (*Cluster, error) {
	if len(options.Routers) > 0 {
		options.Cells = len(options.Routers)
	}
	if options.Cells == 0 {
		options.Cells = 3
	}
	if options.Log == nil {
		options.Log = func(string, ...any) {}
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d-%d", options.Name, os.Getpid(), made.Add(1)))
	if err := os.Mkdir(directory, 0o755); err != nil {
		return nil, err
	}
	c := &Cluster{options: options, Directory: directory, port: Port, network: loopback{}}
	err := errors.Join(os.Chmod(directory, 0o755), c.installPrograms())
	if err == nil {
		err = c.openNetwork()
	}
	for _, cell := range c.options.Firewalled {
		if err == nil {
			err = c.network.do(cell, raiseFirewall)
		}
	}
	if err == nil {
		err = c.writePolicies()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for i := range options.Cells {
		c.Cells = append(c.Cells, newCell(c, i))
	}
	return c, c.describe()
}

func (c *Cluster) openNetwork() (err error) {
	if len(c.options.Routers) > 0 {
		routed, err := newRouted(filepath.Join(c.Directory, "network"), c.options.Routers)
		if err == nil {
			c.network = routed
		}
		return err
	}
	if os.Geteuid() == 0 && !c.options.Loopback {
		bridge, err := newBridged(filepath.Join(c.Directory, "network"), c.options.Cells, c.options.Version6)
		if err == nil {
			c.network = bridge
		}
		return err
	}
	c.port, err = freePort(Port, c.options.Cells)
	return err
}

func (c *Cluster) installPrograms() error {
	if err := os.Mkdir(c.programs(), 0o755); err != nil {
		return err
	}
	names := slices.Clone(c.options.Programs)
	for _, pkg := range Appliance {
		names = append(names, filepath.Base(pkg))
	}
	for _, name := range append(names, c.options.Modules...) {
		if err := copyProgram(filepath.Join(c.options.Binaries, name), c.Program(name)); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	return os.Chmod(c.programs(), 0o755)
}

func (c *Cluster) programs() string { return filepath.Join(c.Directory, "bin") }

// Program is the absolute path of an installed program, as a workload's configuration names it.
func (c *Cluster) Program(name string) string { return filepath.Join(c.programs(), name) }

// Namespaced reports whether every cell has a network of its own.
func (c *Cluster) Namespaced() bool { return len(c.network.names()) > 0 }

// Operator is the address of the operator's place in the network.
func (c *Cluster) Operator() netip.Addr { return c.network.operator() }

// Listen listens for TCP at the operator's place, where cells can reach it, at any free port.
func (c *Cluster) Listen() (net.Listener, error) {
	return c.network.listen(net.JoinHostPort(c.Operator().String(), "0"))
}

// Dial connects from the operator's place.
func (c *Cluster) Dial(ctx context.Context, kind, address string) (net.Conn, error) {
	return c.network.dial(ctx, kind, address)
}

// FreePort finds a port for a workload that is free on every cell, beginning with the wanted one.
func (c *Cluster) FreePort(wanted int) (int, error) {
	if c.Namespaced() {
		return wanted, nil
	}
	return freePort(wanted, len(c.Cells))
}

func (c *Cluster) startCells(ctx context.Context) error {
	for _, cell := range c.Cells {
		if err := cell.Start(ctx); err != nil {
			return err
		}
		// The first cell founds the cluster; the others find it there.
		if err := cell.WaitActive(ctx, 20*time.Second); err != nil {
			return err
		}
	}
	if c.options.Apart {
		return nil
	}
	return c.WaitConverged(ctx, 45*time.Second)
}

// Running lists the cells that were started and not killed.
func (c *Cluster) Running() []*Cell {
	var running []*Cell
	for _, cell := range c.Cells {
		if cell.running {
			running = append(running, cell)
		}
	}
	return running
}

// WaitConverged waits until every running cell sees exactly the running cells alive.
func (c *Cluster) WaitConverged(ctx context.Context, limit time.Duration) error {
	want := len(c.Running())
	return WaitFor(ctx, limit, fmt.Sprintf("all %d cells to see each other", want), func(ctx context.Context) error {
		for _, cell := range c.Running() {
			status, err := cell.Status(ctx)
			if err != nil {
				return err
			}
			alive := 0
			for _, other := range status.Cells {
				if other.State == "alive" {
					alive++
				}
			}
			if alive != want {
				return fmt.Errorf("%s sees %d cells alive", cell.Name, alive)
			}
		}
		return nil
	})
}

// HTTP returns a client that connects from the operator's place in the network, without reusing
// connections, so that every request shows the present state.
func (c *Cluster) HTTP(timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: c.network.dial, DisableKeepAlives: true, Proxy: nil,
	}}
}

// Close kills every process of every cell and removes networks and files. It may be called twice.
func (c *Cluster) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	var problems []error
	for _, cell := range c.Cells {
		problems = append(problems, cell.Kill())
	}
	problems = append(problems, c.network.close(), removeControlGroups(c.Directory), os.RemoveAll(c.Directory))
	return errors.Join(problems...)
}

// lastWords collects the ends of the cells' logs for an error message.
func (c *Cluster) lastWords() string {
	var text strings.Builder
	for _, cell := range c.Cells {
		if tail := cell.LogTail(2000); tail != "" {
			fmt.Fprintf(&text, "\n--- log of %s ---\n%s", cell.Name, tail)
		}
	}
	return text.String()
}

// pollInterval of WaitFor. Short, because waits are measured.
const pollInterval = 50 * time.Millisecond

// WaitFor repeats check until it returns nil. When the limit is over it reports the last error.
func WaitFor(ctx context.Context, limit time.Duration, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := errors.New("not checked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s: %w", limit, what, last)
		case <-time.After(pollInterval):
		}
	}
}
