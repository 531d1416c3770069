// Command demo shows Colloid on one machine: it starts three cells, runs examples/hello on two of
// them, kills one of those two the way a power cut does, and waits until the replicas answer from
// the cells that are left. It cleans up completely, whatever happens, and says so.
//
//	go run ./e2e/demo            # as root in network namespaces, otherwise on 127.0.0.1 to 127.0.0.3
//	go run ./e2e/demo -keep      # leave the cluster running
//	go run ./e2e/demo -stop      # stop what was left running
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"colloid.net/e2e/cluster"
)

// name is the prefix of everything the demo makes on the machine.
const name = "colloid-demo"

// workload is the key of what the demo runs.
const workload = "spread.hello"

// portWanted is where hello listens on its cell, unless it is taken.
const portWanted = 18080

func main() {
	cluster.RunKeeper()
	keep := flag.Bool("keep", false, "leave the cluster running")
	stop := flag.Bool("stop", false, "stop clusters that were left running")
	binaries := flag.String("bin", "", "directory with the programs (default: build them)")
	loopback := flag.Bool("loopback", false, "no network namespaces, even as root")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	d := &demo{start: time.Now(), keep: *keep, binaries: *binaries, loopback: *loopback}
	run := func() error { return d.run(ctx) }
	if *stop {
		run = stopAll
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	start    time.Time
	keep     bool
	binaries string
	loopback bool
	cluster  *cluster.Cluster
	file     string // the workload's configuration
	port     int    // of the workload
}

// say prints a line with the time since the start.
func (d *demo) say(format string, arguments ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, arguments...))
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.file, err = exampleFile(); err != nil {
		return err
	}
	binaries, remove, err := d.build(ctx)
	if err != nil {
		return err
	}
	defer remove()
	d.cluster, err = cluster.Start(ctx, cluster.Options{Name: name, Binaries: binaries,
		Programs: []string{"hello"}, Loopback: d.loopback, Log: d.say})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() {
		if d.keep && err == nil {
			d.explainKept()
			return
		}
		err = errors.Join(err, d.cleanUp())
	}()
	return interrupted(ctx, d.story(ctx))
}

// interrupted replaces the consequences of a control-C by a word about it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// build makes the programs unless they were given.
func (d *demo) build(ctx context.Context) (directory string, remove func(), err error) {
	if d.binaries != "" {
		directory, err = filepath.Abs(d.binaries)
		return directory, func() {}, err
	}
	directory, err = os.MkdirTemp("", name+"-build-")
	if err != nil {
		return "", nil, err
	}
	d.say("building the programs")
	err = cluster.Build(ctx, directory, append(cluster.Appliance, "./examples/hello")...)
	if err != nil {
		return "", nil, errors.Join(interrupted(ctx, err), os.RemoveAll(directory))
	}
	return directory, func() { os.RemoveAll(directory) }, nil
}

// story is what the demo shows.
func (d *demo) story(ctx context.Context) error {
	first := d.cluster.Cells[0]
	if err := d.apply(ctx, first); err != nil {
		return err
	}
	began := time.Now()
	if err := d.waitReady(ctx, first); err != nil {
		return err
	}
	d.say("two replicas answer, %v after apply", time.Since(began).Round(10*time.Millisecond))
	if err := d.show(ctx, first); err != nil {
		return err
	}
	victim, witness, err := d.chooseVictim(ctx)
	if err != nil {
		return err
	}
	processes := victim.Processes()
	d.say("killing all %d processes of %s with SIGKILL: launcher, meshd, runnerd, shims, workloads",
		len(processes), victim.Name)
	died := time.Now()
	if err := victim.Kill(); err != nil {
		return err
	}
	if err := d.waitReady(ctx, witness); err != nil {
		return err
	}
	d.say("two replicas answer again, %v after the death", time.Since(died).Round(10*time.Millisecond))
	return d.show(ctx, witness)
}

func (d *demo) apply(ctx context.Context, cell *cluster.Cell) error {
	var err error
	if d.port, err = d.cluster.FreePort(portWanted); err != nil {
		return err
	}
	arguments := []string{"apply", "-f", d.file, "--set", "BINARY=" + d.cluster.Program("hello"), "--set",
		"PORT=" + strconv.Itoa(d.port)}
	d.say("$ colloid %s", strings.Join(arguments, " "))
	result, err := cell.Run(ctx, arguments...)
	if err != nil {
		return err
	}
	fmt.Print(indent(result.Output + result.Errors))
	if result.Exit != 0 {
		return fmt.Errorf("apply ended with status %d", result.Exit)
	}
	return nil
}

func exampleFile() (string, error) {
	root, err := cluster.ModuleRoot()
	return filepath.Join(root, "examples", "hello.colloid"), err
}

// failoverLimit is generous: the demo measures, it does not judge.
const failoverLimit = 60 * time.Second

// waitReady waits until two replicas answer an HTTP request at the addresses that the cell reports.
func (d *demo) waitReady(ctx context.Context, cell *cluster.Cell) error {
	err := cluster.WaitFor(ctx, failoverLimit, "two replicas to answer", func(ctx context.Context) error {
		answers, err := d.cluster.Ask(ctx, cell, workload)
		if err == nil && len(answers) < 2 {
			err = fmt.Errorf("%d answer", len(answers))
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		if why, errWhy := cell.Command(ctx, "explain", workload); errWhy == nil {
			err = fmt.Errorf("%w\n%s", err, why)
		}
	}
	return err
}

// show prints the status and asks every replica once.
func (d *demo) show(ctx context.Context, cell *cluster.Cell) error {
	d.say("$ colloid status    # on %s", cell.Name)
	result, err := cell.Run(ctx, "status")
	if err != nil {
		return err
	}
	fmt.Print(indent(result.Output))
	answers, err := d.cluster.Ask(ctx, cell, workload)
	if err != nil {
		return err
	}
	for _, answer := range answers {
		d.say("HTTP: %s", answer)
	}
	return nil
}

// chooseVictim picks a cell that runs a replica, and another one to watch from.
func (d *demo) chooseVictim(ctx context.Context) (victim, witness *cluster.Cell, err error) {
	for _, cell := range d.cluster.Running() {
		status, err := cell.Status(ctx)
		if err != nil {
			return nil, nil, err
		}
		holds := false
		for _, i := range cluster.ReadyInstances(status, workload) {
			holds = holds || i.Cell == status.Cell.ID
		}
		switch {
		case holds && victim == nil:
			victim = cell
		case witness == nil:
			witness = cell
		}
	}
	if victim == nil || witness == nil {
		return nil, nil, errors.New("no cell runs a replica")
	}
	return victim, witness, nil
}

// cleanUp removes everything and proves it.
func (d *demo) cleanUp() error {
	d.say("cleaning up")
	if err := d.cluster.Close(); err != nil {
		return err
	}
	if left := cluster.Leftovers(d.cluster.Directory); len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	d.say("nothing is left: no process, no namespace, no mount, no control group, no file")
	return nil
}

func (d *demo) explainKept() {
	d.say("the cluster keeps running; what you can do with it:")
	for _, cell := range d.cluster.Running() {
		fmt.Printf("    %s --socket %s status\n", d.cluster.Program("colloid"), cell.Socket())
	}
	if d.cluster.Namespaced() {
		fmt.Printf("    nsenter --net=%s/network/switch curl http://%s:%d/\n", d.cluster.Directory,
			d.cluster.Running()[0].Address, d.port)
	}
	fmt.Printf("  logs and state: %s\n  stop and remove it: make demo-stop\n", d.cluster.Directory)
}

// stopAll stops every demo cluster of this user.
func stopAll() error {
	found := cluster.Find(name)
	if len(found) == 0 {
		fmt.Println("no demo is running")
		return nil
	}
	var problems []error
	for _, directory := range found {
		if err := cluster.Stop(directory); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", directory, err))
			continue
		}
		fmt.Printf("stopped and removed %s\n", directory)
	}
	return errors.Join(problems...)
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("         " + line)
	}
	return b.String()
}
