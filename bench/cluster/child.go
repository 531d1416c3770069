package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// A child is told what to be by its environment and what to do by its standard input.
const (
	childVariable  = "COLLOID_BENCH_CHILD"
	portVariable   = "COLLOID_BENCH_PORT"
	driverVariable = "COLLOID_BENCH_DRIVER"
)

// runChild does not return in a process that was started as one cell.
func runChild() {
	directory := os.Getenv(childVariable)
	if directory == "" {
		return
	}
	port, err := strconv.Atoi(os.Getenv(portVariable))
	if err == nil {
		err = child(directory, uint16(port))
	}
	if err != nil {
		log.Fatalf("bench child %s: %v", directory, err)
	}
	os.Exit(0)
}

func child(directory string, port uint16) error {
	out := bufio.NewWriter(os.Stdout)
	say := func(format string, arguments ...any) {
		fmt.Fprintf(out, format+"\n", arguments...)
		out.Flush()
	}
	watch := &watcher{
		alive: func(n int) { say("alive %d", n) },
		know:  func(what string) { say("%s", what) },
	}
	d, err := openCell(directory, port, os.Getenv(driverVariable), watch)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		d.Inspect(func(c *cell.Cell) { say("id %v", c.Self()) })
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			obey(d, strings.Fields(lines.Text()))
		}
	}()
	return d.Run(ctx)
}

// openCell makes a cell on a port of the loopback interface.
func openCell(directory string, port uint16, driver string, watch *watcher) (*daemon.Daemon, error) {
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	return daemon.Open(daemon.Options{
		Directory: directory, Socket: filepath.Join(directory, "s"), Bind: address, Driver: driver,
		SupplyFD: -1, Quiet: true, Software: "bench", Observe: watch.changed,
	})
}

func obey(d *daemon.Daemon, words []string) {
	switch words[0] {
	case "join":
		go command(d, joinRequest(netip.MustParseAddrPort(words[1])))
	case "write":
		size, _ := strconv.Atoi(words[2])
		go command(d, writeRequest(words[1], size))
	}
}

func joinRequest(seed netip.AddrPort) cell.Request {
	return cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{seed}}
}

func writeRequest(name string, size int) cell.Request {
	write := uds.WriteRequest{Expect: uds.ExpectAbsent, Key: state.PrefixSpread + name, Value: padded(size)}
	return cell.Request{Code: uds.CodeSet, Payload: write.Append(nil)}
}

// command carries out one request and complains of a refusal.
func command(d *daemon.Daemon, request cell.Request) {
	if response := d.Command(request); response.Status != uds.OK {
		log.Printf("bench: command %d: %s", request.Code, response.Text)
	}
}

// padded encodes a specification of about the given size that asks for nothing to run.
func padded(size int) []byte {
	spec := &workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/none"}
	spec.Arguments = []string{strings.Repeat("x", max(1, size-40))}
	value, err := workload.Encode(spec)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// watcher reports what the cell has come to know. It runs on the reactor's goroutine.
type watcher struct {
	alive func(n int)
	know  func(what string)
	count int
}

func (w *watcher) changed(c *cell.Cell, name []byte) {
	key := string(name)
	if bench, ok := strings.CutPrefix(key, state.PrefixSpread); ok {
		w.know("key " + bench)
		return
	}
	id, field, ok := state.HealthKey(key)
	if !ok || field == "capacity" {
		return
	}
	if alive := c.AliveCount(); alive != w.count {
		w.count = alive
		w.alive(alive)
	}
	register, found := c.Store().Get(name)
	if !found || field != "status" {
		return
	}
	value, _ := register.Live()
	if status, err := state.ParseCellStatus(value); err == nil && status.Life == state.Dead {
		w.know("dead " + id.String())
	}
}
