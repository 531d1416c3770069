package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// part is one of the workloads of the demo: the same greeting from each kind of runtime.
type part struct {
	key  string // in the cluster's state
	name string // without its kind
	file string // below examples
	// settings are the variables of the file.
	settings []string
	// ready reports how many replicas answer; answers has what they say.
	ready   func(ctx context.Context, from *cluster.Cell) (int, error)
	answers func(ctx context.Context, from *cluster.Cell) ([]string, error)
}

// replicas is how many of each part the examples ask for.
const replicas = 2

// Where the parts listen, unless it is taken.
const (
	processPort   = 18080
	containerPort = 18081
)

// program and module are the files that the hosts' policy allows.
const (
	program = "hello"
	module  = "hello.wasm"
)

// parts are what this user can run on this machine.
func (d *demo) parts(ctx context.Context) ([]*part, error) {
	port, err := d.cluster.FreePort(processPort)
	if err != nil {
		return nil, err
	}
	d.port = port
	process := &part{
		key: "spread.hello", name: "hello", file: "hello.colloid",
		settings: []string{"BINARY=" + d.cluster.Program(program), "PORT=" + strconv.Itoa(port)},
	}
	binary, err := os.ReadFile(d.cluster.Program(module))
	if err != nil {
		return nil, err
	}
	wasm := &part{
		key: "wasm.hello-wasm", name: "hello-wasm", file: "hello-wasm.colloid",
		settings: []string{"FILE=" + d.cluster.Program(module), fmt.Sprintf("SHA256=%x", sha256.Sum256(binary))},
	}
	d.overHTTP(process)
	d.overInvocations(wasm)
	if !d.cluster.Namespaced() {
		d.say("no container in this run: they need root and a network of their own for each cell")
		return []*part{process, wasm}, nil
	}
	reference, err := d.loadImage(ctx)
	if err != nil {
		return nil, err
	}
	container := &part{
		key: "spread.hello-container", name: "hello-container", file: "hello-container.colloid",
		settings: []string{"IMAGE=" + reference, "PORT=" + strconv.Itoa(containerPort)},
	}
	d.overHTTP(container)
	return []*part{process, wasm, container}, nil
}

// loadImage makes the image and loads it on every cell, since no registry has it.
func (d *demo) loadImage(ctx context.Context) (reference string, err error) {
	archive := filepath.Join(d.cluster.Directory, "hello.tar")
	if err := writeImage(d.cluster.Program(program), archive); err != nil {
		return "", err
	}
	d.say("$ colloid image load %s    # on each cell", archive)
	outputs, problems := make([]string, len(d.cluster.Cells)), make([]error, len(d.cluster.Cells))
	var group sync.WaitGroup
	for n, cell := range d.cluster.Cells {
		group.Go(func() { outputs[n], problems[n] = cell.Command(ctx, "image", "load", archive) })
	}
	group.Wait()
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	fmt.Print(indent(outputs[0]))
	return strings.TrimSpace(outputs[0]), nil
}

func (d *demo) apply(ctx context.Context, cell *cluster.Cell, p *part) error {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return err
	}
	arguments := []string{"apply", "-f", filepath.Join(root, "examples", p.file)}
	for _, setting := range p.settings {
		arguments = append(arguments, "--set", setting)
	}
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

// overHTTP asks each replica at the address that the cell reports.
func (d *demo) overHTTP(p *part) {
	p.answers = func(ctx context.Context, from *cluster.Cell) ([]string, error) {
		return d.cluster.Ask(ctx, from, p.key)
	}
	p.ready = func(ctx context.Context, from *cluster.Cell) (int, error) {
		answers, err := p.answers(ctx, from)
		return len(answers), err
	}
}

// overInvocations invokes the module once on each cell that has a replica. A module listens nowhere: its cell does,
// and calls it. The greetings are counted, so whether it can be invoked is asked with a function that it lacks.
func (d *demo) overInvocations(p *part) {
	p.answers = func(ctx context.Context, from *cluster.Cell) (answers []string, err error) {
		err = d.eachHolder(ctx, from, p, func(cell *cluster.Cell) error {
			answer, err := cell.Command(ctx, "wasm", "invoke", p.name, "demo")
			answers = append(answers, strings.TrimSpace(answer))
			return err
		})
		return answers, err
	}
	p.ready = func(ctx context.Context, from *cluster.Cell) (count int, err error) {
		err = d.eachHolder(ctx, from, p, func(cell *cluster.Cell) error {
			result, err := cell.Run(ctx, "wasm", "invoke", "--function", "none", p.name)
			if strings.Contains(result.Errors, "has no function") {
				count++
			}
			return err
		})
		return count, err
	}
}

// eachHolder does something for each cell that has a ready replica of a part.
func (d *demo) eachHolder(ctx context.Context, from *cluster.Cell, p *part, do func(*cluster.Cell) error) error {
	status, err := from.Status(ctx)
	if err != nil {
		return err
	}
	holders := holdersOf(status, p.key)
	for _, cell := range d.cluster.Running() {
		id, err := d.idOf(ctx, cell)
		if err == nil && holders[id] {
			err = do(cell)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// idOf gives a cell's id.
func (d *demo) idOf(ctx context.Context, cell *cluster.Cell) (string, error) {
	if id, known := d.ids[cell]; known {
		return id, nil
	}
	status, err := cell.Status(ctx)
	if err != nil {
		return "", err
	}
	d.ids[cell] = status.Cell.ID
	return status.Cell.ID, nil
}

// holdersOf are the living cells with a ready replica.
func holdersOf(status *uds.Status, key string) map[string]bool {
	alive, holders := map[string]bool{}, map[string]bool{}
	for _, c := range status.Cells {
		alive[c.ID] = c.State == "alive"
	}
	for _, w := range status.Workloads {
		for _, i := range w.Instances {
			if w.Key == key && i.State == "ready" && alive[i.Cell] {
				holders[i.Cell] = true
			}
		}
	}
	return holders
}

// failoverLimit is generous: the demo measures, it does not judge.
const failoverLimit = 2 * time.Minute

// waitAnswers waits until two replicas of each part answer, and says how long each took since then.
func (d *demo) waitAnswers(ctx context.Context, from *cluster.Cell, parts []*part, since time.Time) (string, error) {
	took := make([]string, len(parts))
	err := cluster.WaitFor(ctx, failoverLimit, "two replicas of each to answer", func(ctx context.Context) error {
		var first error
		for n, p := range parts {
			if took[n] != "" {
				continue
			}
			count, err := p.ready(ctx, from)
			switch {
			case err == nil && count >= replicas:
				took[n] = fmt.Sprintf("%s %.1fs", p.name, time.Since(since).Seconds())
			case err == nil:
				err = fmt.Errorf("%d answer", count)
			}
			if err != nil && first == nil {
				first = fmt.Errorf("%s: %w", p.name, err)
			}
		}
		return first
	})
	return strings.Join(took, ", "), err
}
