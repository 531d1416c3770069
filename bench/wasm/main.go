// Command wasm measures modules in one real cell: how long a warm invocation takes over the command socket,
// beside an empty request on the same connection, and what 50 idle instances cost in memory. It prints one line per
// figure, "BENCH name value", and judges nothing.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/caller"
	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

var (
	binaries  = flag.String("bin", "bin", "directory with the programs of the appliance")
	calls     = flag.Int("calls", 4000, "invocations to measure")
	instances = flag.Int("instances", 50, "idle instances to measure")
)

const (
	limit          = 2 * time.Minute
	workerArgument = "wasm-worker" // the command line of a worker, behind runnerd
)

// small is a module with one function, add: (module (func (export "add") (param i32 i32) (result i32) ...)).
var small = []byte("\x00asm\x01\x00\x00\x00\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f\x03\x02\x01\x00" +
	"\x05\x03\x01\x00\x01\x07\x07\x01\x03add\x00\x00\x0a\x09\x01\x07\x00\x20\x00\x20\x01\x6a\x0b")

func main() {
	cluster.RunKeeper()
	flag.Parse()
	log.SetFlags(0)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := measureCell(ctx); err != nil {
		log.Fatal(err)
	}
}

func bench(name string, value float64) { fmt.Printf("BENCH %s %.2f\n", name, value) }

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func measureCell(ctx context.Context) (err error) {
	programs, err := filepath.Abs(*binaries)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(programs, "small.wasm"), small, 0o644); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{
		Name: "colloid-bench", Cells: 1, Binaries: programs, Modules: []string{"small.wasm"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cell := c.Cells[0]
	if err := apply(ctx, c, 1); err != nil {
		return err
	}
	if err := measureCalls(cell); err != nil {
		return err
	}
	if err := apply(ctx, c, *instances); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // let them settle
	megabytes, err := idleMemory(cell)
	if err != nil {
		return err
	}
	bench(fmt.Sprintf("wasm%d_idle_mb", *instances), megabytes)
	return nil
}

// apply makes so many workloads with one instance each and waits until all can be invoked.
func apply(ctx context.Context, c *cluster.Cluster, count int) error {
	var text strings.Builder
	for n := range count {
		fmt.Fprintf(&text, "wasm small-%d {\n\tmodule file://%s\n\tsha256 %x\n\treplicas 1\n\tmem 16mb\n}\n", n,
			c.Program("small.wasm"), sha256.Sum256(small))
	}
	file := filepath.Join(c.Directory, "small.colloid")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return err
	}
	if _, err := c.Cells[0].Command(ctx, "apply", "-f", file); err != nil {
		return err
	}
	return cluster.WaitFor(ctx, limit, "all modules to answer", func(ctx context.Context) error {
		for n := range count {
			_, err := c.Cells[0].Command(ctx, "wasm", "invoke", "--function", "add", fmt.Sprintf("small-%d", n), "2", "3")
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// measureCalls takes turns between three things, so that they see the same load: the request HELLO over the command
// socket, which asks for nothing (uds_rtt_us); a call by package caller, which is how a program calls again and again
// (wasm_invoke_us); and the request WASM_INVOKE over the connection of the first, which is what `colloid wasm invoke` and
// programs in other languages send (wasm_invoke_command_us). Printed are medians, and how far those of the calls lie
// beyond the first.
//
// It measures on one goroutine that is bound to no thread: a command socket is a file, so the cell's
// namespace does not matter, and a goroutine bound to a thread needs one more thread woken for each answer.
func measureCalls(cell *cluster.Cell) error {
	client, err := uds.Dial(cell.Socket())
	if err != nil {
		return err
	}
	defer client.Close()
	module, err := caller.Open(cell.Socket(), "small-0")
	if err != nil {
		return err
	}
	defer module.Close()
	invocation := &invoke.Invocation{Function: "add", Milliseconds: 1000, Arguments: [][]byte{[]byte("2"), []byte("3")}}
	command := invoke.AppendCall(nil, "small-0", invocation)
	requests := []func() error{
		func() error {
			_, err := client.Do(uds.CodeHello, []byte{0, uds.ProtocolVersion})
			return err
		},
		func() error {
			_, err := module.Call(invocation)
			return err
		},
		func() error {
			_, err := client.Do(uds.CodeWasmInvoke, command)
			return err
		},
	}
	took := make([][]time.Duration, len(requests))
	for range *calls {
		for i, request := range requests {
			began := time.Now()
			if err := request(); err != nil {
				return err
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	empty := median(took[0]).Seconds() * 1e6
	bench("uds_rtt_us", empty)
	for i, name := range []string{"wasm_invoke", "wasm_invoke_command"} {
		microseconds := median(took[i+1]).Seconds() * 1e6
		bench(name+"_us", microseconds)
		bench(name+"_beyond_rtt_us", microseconds-empty)
	}
	return nil
}

// idleMemory sums what shims and workers take, memory that they share with each other divided among them.
func idleMemory(cell *cluster.Cell) (float64, error) {
	kilobytes, workers := 0, 0
	for _, pid := range cell.Processes() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		words := bytes.Split(line, []byte{0})
		if len(words) < 2 || string(words[1]) != workerArgument && string(words[1]) != "shim" {
			continue
		}
		if string(words[1]) == workerArgument {
			workers++
		}
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(rollup)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
				value, _ := strconv.Atoi(fields[1])
				kilobytes += value
			}
		}
	}
	if workers < *instances {
		return 0, fmt.Errorf("found %d workers of %d", workers, *instances)
	}
	return float64(kilobytes) / 1024, nil
}
