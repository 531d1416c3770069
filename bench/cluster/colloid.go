package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/reactor"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// colloid is a cluster of daemons without helpers, each with its own reactor thread and state directory.
type colloid struct {
	directory string
	cells     []*colloidCell
}

type colloidCell struct {
	daemon  *daemon.Daemon
	cancel  context.CancelFunc
	done    chan struct{}
	address netip.AddrPort
	id      wire.CellID
}

// basePort of the cells, one port each.
const basePort = 21000

func (c *colloid) start(n int) (err error) {
	if c.directory, err = os.MkdirTemp("", "colloid-bench-"); err != nil {
		return err
	}
	for i := range n {
		directory := filepath.Join(c.directory, fmt.Sprint(i))
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(basePort+i))
		d, err := daemon.Open(daemon.Options{
			Directory: directory, Socket: filepath.Join(directory, "s"), Bind: address, SupplyFD: -1, Quiet: true,
			Software: "bench",
			Reactor:  reactor.Options{QueueEntries: 256, ReceiveBuffers: 256, SendQueue: 128, ReceiveBuffer: 1 << 20},
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		one := &colloidCell{daemon: d, cancel: cancel, done: make(chan struct{}), address: address}
		go func() {
			defer close(one.done)
			d.Run(ctx)
		}()
		d.Inspect(func(c *cell.Cell) { one.id = c.Self() })
		c.cells = append(c.cells, one)
	}
	return nil
}

func (c *colloid) join() {
	for _, one := range c.cells[1:] {
		go one.daemon.Command(cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{c.cells[0].address}})
	}
}

func (c *colloid) listed(i int) (n int) {
	c.cells[i].daemon.Inspect(func(c *cell.Cell) { n = c.AliveCount() })
	return n
}

func (c *colloid) write(i int, name string, size int) error {
	spec := &workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/none", Replicas: 0}
	base, err := workload.Encode(spec)
	if err != nil {
		return err
	}
	spec.Arguments = []string{strings.Repeat("x", max(1, size-len(base)-4))}
	value, err := workload.Encode(spec)
	if err != nil {
		return err
	}
	write := uds.WriteRequest{Expect: uds.ExpectAbsent, Key: state.PrefixSpread + name, Value: value}
	response := c.cells[i].daemon.Command(cell.Request{Code: uds.CodeSet, Payload: write.Append(nil)})
	if response.Status != uds.OK {
		return fmt.Errorf("set: %d %s", response.Status, response.Text)
	}
	return nil
}

func (c *colloid) has(i int, name string) (found bool) {
	c.cells[i].daemon.Inspect(func(c *cell.Cell) {
		_, found = c.Store().Get([]byte(state.PrefixSpread + name))
	})
	return found
}

func (c *colloid) kill(i int) {
	c.cells[i].cancel()
	<-c.cells[i].done
}

func (c *colloid) knowsDead(i, victim int) (dead bool) {
	key := []byte(state.StatusKey(c.cells[victim].id))
	c.cells[i].daemon.Inspect(func(c *cell.Cell) {
		register, found := c.Store().Get(key)
		if !found {
			return
		}
		value, _ := register.Live()
		status, err := state.ParseCellStatus(value)
		dead = err == nil && status.Life == state.Dead
	})
	return dead
}

func (c *colloid) stop() {
	for _, one := range c.cells {
		one.cancel()
	}
	for _, one := range c.cells {
		<-one.done
	}
	os.RemoveAll(c.directory)
}
