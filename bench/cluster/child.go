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
	childVariable = "COLLOID_BENCH_CHILD"
	portVariable  = "COLLOID_BENCH_PORT"
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
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	watch := &watcher{out: bufio.NewWriter(os.Stdout)}
	d, err := daemon.Open(daemon.Options{
		Directory: directory, Socket: filepath.Join(directory, "s"), Bind: address, SupplyFD: -1, Quiet: true,
		Software: "bench", Observe: watch.changed,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		d.Inspect(func(c *cell.Cell) { watch.say("id %v", c.Self()) })
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			obey(d, strings.Fields(lines.Text()))
		}
	}()
	return d.Run(ctx)
}

func obey(d *daemon.Daemon, words []string) {
	request := cell.Request{}
	switch words[0] {
	case "join":
		request.Code = uds.CodeConnect
		request.Addresses = []netip.AddrPort{netip.MustParseAddrPort(words[1])}
	case "write":
		size, _ := strconv.Atoi(words[2])
		write := uds.WriteRequest{Expect: uds.ExpectAbsent, Key: state.PrefixSpread + words[1], Value: padded(size)}
		request.Code, request.Payload = uds.CodeSet, write.Append(nil)
	}
	go func() {
		if response := d.Command(request); response.Status != uds.OK {
			log.Printf("bench child: %v: %s", words, response.Text)
		}
	}()
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

// watcher says what the cell has come to know. It runs on the reactor's goroutine.
type watcher struct {
	out   *bufio.Writer
	alive int
}

func (w *watcher) say(format string, arguments ...any) {
	fmt.Fprintf(w.out, format+"\n", arguments...)
	w.out.Flush()
}

func (w *watcher) changed(c *cell.Cell, name []byte) {
	key := string(name)
	if bench, ok := strings.CutPrefix(key, state.PrefixSpread); ok {
		w.say("key %s", bench)
		return
	}
	id, field, ok := state.HealthKey(key)
	if !ok || field == "capacity" {
		return
	}
	if alive := c.AliveCount(); alive != w.alive {
		w.alive = alive
		w.say("alive %d", alive)
	}
	register, found := c.Store().Get(name)
	if !found || field != "status" {
		return
	}
	value, _ := register.Live()
	if status, err := state.ParseCellStatus(value); err == nil && status.Life == state.Dead {
		w.say("dead %v", id)
	}
}
