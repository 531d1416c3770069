package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
)

// colloid is a cluster of daemons without helpers, all in this process, as the members of the peer are: with
// their sockets, state directories and command sockets.
type colloid struct {
	directory string
	cells     []*colloidDaemon
}

type colloidDaemon struct {
	daemon *daemon.Daemon
	cancel context.CancelFunc
	ended  chan struct{}
	id     string
	alive  atomic.Int64

	mutex sync.Mutex
	known map[string]bool // keys and deaths
}

// basePort of the cells, one port each.
const basePort = 21000

func (c *colloid) start(n int) (err error) {
	if c.directory, err = os.MkdirTemp("", "colloid-bench-"); err != nil {
		return err
	}
	for i := range n {
		one := &colloidDaemon{ended: make(chan struct{}), known: make(map[string]bool)}
		watch := &watcher{
			alive: func(n int) { one.alive.Store(int64(n)) },
			know: func(what string) {
				one.mutex.Lock()
				one.known[what] = true
				one.mutex.Unlock()
			},
		}
		directory := filepath.Join(c.directory, fmt.Sprint(i))
		if one.daemon, err = openCell(directory, uint16(basePort+i), *driver, watch); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		one.cancel = cancel
		go func() {
			defer close(one.ended)
			if err := one.daemon.Run(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "bench: cell %d: %v\n", i, err)
			}
		}()
		one.daemon.Inspect(func(c *cell.Cell) { one.id = c.Self().String() })
		c.cells = append(c.cells, one)
	}
	return nil
}

func (o *colloidDaemon) knows(text string) bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.known[text]
}

func (c *colloid) join() {
	seed := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), basePort)
	for _, one := range c.cells[1:] {
		go command(one.daemon, joinRequest(seed))
	}
}

func (c *colloid) full(i, n int) bool { return c.cells[i].alive.Load() >= int64(n) }

func (c *colloid) write(i int, name string, size int) error {
	go command(c.cells[i].daemon, writeRequest(name, size))
	return nil
}

func (c *colloid) has(i int, name string) bool { return c.cells[i].knows("key " + name) }

// kill ends the reactor, which sends nothing more: a cell says no farewell unless it leaves.
func (c *colloid) kill(i int) {
	c.cells[i].cancel()
	<-c.cells[i].ended
}

func (c *colloid) knowsDead(i, victim int) bool {
	return c.cells[i].knows("dead " + c.cells[victim].id)
}

func (c *colloid) stop() {
	for _, one := range c.cells {
		one.cancel()
	}
	for _, one := range c.cells {
		<-one.ended
	}
	os.RemoveAll(c.directory)
}
