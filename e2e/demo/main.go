// Command demo shows Colloid on one machine: it starts three cells and runs examples/hello as a process of the host,
// examples/hello-wasm as a module and, as root, examples/hello in a container, two replicas of each. Then it kills
// one cell the way a power cut does, and waits until two replicas of each answer from the cells that are left. It
// cleans up completely, whatever happens, and says so.
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
	"strings"
	"syscall"
	"time"

	"colloid.net/e2e/cluster"
)

// prefix begins the name of everything the demo makes on the machine.
const prefix = "colloid-demo"

func main() {
	cluster.RunKeeper()
	keep := flag.Bool("keep", false, "leave the cluster running")
	stop := flag.Bool("stop", false, "stop clusters that were left running")
	binaries := flag.String("bin", "", "directory with the programs (default: build them)")
	loopback := flag.Bool("loopback", false, "no network namespaces, even as root")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	d := &demo{start: time.Now(), keep: *keep, binaries: *binaries, loopback: *loopback,
		ids: map[*cluster.Cell]string{}}
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
	port     int // of the process
	ids      map[*cluster.Cell]string
}

// say prints a line with the time since the start.
func (d *demo) say(format string, arguments ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, arguments...))
}

func (d *demo) run(ctx context.Context) (err error) {
	binaries, remove, err := d.build(ctx)
	if err != nil {
		return err
	}
	defer remove()
	d.cluster, err = cluster.Start(ctx, cluster.Options{Name: prefix, Binaries: binaries,
		Programs: []string{program}, Modules: []string{module}, PolicyLines: "allow_unlimited\n",
		Loopback: d.loopback, Log: d.say})
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
	directory, err = os.MkdirTemp("", prefix+"-build-")
	if err != nil {
		return "", nil, err
	}
	d.say("building the programs")
	err = errors.Join(cluster.Build(ctx, directory, append(cluster.Appliance, "./examples/hello")...),
		cluster.BuildModule(ctx, filepath.Join(directory, module), "./examples/hello-wasm"))
	if err != nil {
		return "", nil, errors.Join(interrupted(ctx, err), os.RemoveAll(directory))
	}
	return directory, func() { os.RemoveAll(directory) }, nil
}

// story is what the demo shows.
func (d *demo) story(ctx context.Context) error {
	first := d.cluster.Cells[0]
	parts, err := d.parts(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, p := range parts {
		if err := d.apply(ctx, first, p); err != nil {
			return err
		}
	}
	took, err := d.waitAnswers(ctx, first, parts, began)
	if err != nil {
		d.sayStatus(ctx, first)
		return err
	}
	d.say("two replicas of each answer, after apply: %s", took)
	if err := d.show(ctx, first, parts); err != nil {
		return err
	}
	victim, witness, err := d.chooseVictim(ctx, parts)
	if err != nil {
		return err
	}
	died := time.Now()
	if err := victim.Kill(); err != nil {
		return err
	}
	if took, err = d.waitAnswers(ctx, witness, parts, died); err != nil {
		d.sayStatus(ctx, witness)
		return err
	}
	d.say("two replicas of each answer again, after the death: %s", took)
	return d.show(ctx, witness, parts)
}

// show prints the status and asks every replica once.
func (d *demo) show(ctx context.Context, cell *cluster.Cell, parts []*part) error {
	d.sayStatus(ctx, cell)
	for _, p := range parts {
		answers, err := p.answers(ctx, cell)
		if err != nil {
			return err
		}
		for _, answer := range answers {
			d.say("%s: %s", p.name, answer)
		}
	}
	return nil
}

// sayStatus prints what `colloid status` says.
func (d *demo) sayStatus(ctx context.Context, cell *cluster.Cell) {
	d.say("$ colloid status    # on %s", cell.Name)
	result, err := cell.Run(ctx, "status")
	if err != nil {
		result.Output = err.Error() + "\n"
	}
	fmt.Print(indent(result.Output))
}

// chooseVictim picks the cell with replicas of the most parts, says so, and picks another one to watch from. Of two
// parts with two replicas each on three cells, some cell has both.
func (d *demo) chooseVictim(ctx context.Context, parts []*part) (victim, witness *cluster.Cell, err error) {
	status, err := d.cluster.Running()[0].Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	var most []string
	for _, cell := range d.cluster.Running() {
		id, err := d.idOf(ctx, cell)
		if err != nil {
			return nil, nil, err
		}
		var held []string
		for _, p := range parts {
			if holdersOf(status, p.key)[id] {
				held = append(held, p.name)
			}
		}
		if victim == nil || len(held) > len(most) {
			victim, most = cell, held
		}
	}
	for _, cell := range d.cluster.Running() {
		if cell != victim {
			witness = cell
		}
	}
	if len(most) == 0 || witness == nil {
		return nil, nil, errors.New("no cell runs a replica")
	}
	d.say("killing all %d processes of %s with SIGKILL, with its replicas of %s",
		len(victim.Processes()), victim.Name, strings.Join(most, ", "))
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
	found := cluster.Find(prefix)
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
