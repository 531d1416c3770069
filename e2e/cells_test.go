package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// key is the workload of these tests, port where it listens.
const (
	key      = "spread.hello"
	portWish = 18080
	patience = 60 * time.Second
)

func TestMain(m *testing.M) {
	cluster.RunKeeper()
	flag.Parse()
	if !parallelGiven() {
		together := "4" // what these tests do most is wait
		if os.Geteuid() != 0 {
			together = "1" // all cells share the ports of the loopback interface
		}
		if err := flag.Set("test.parallel", together); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// parallelGiven says whether the command line sets how many tests run at a time.
func parallelGiven() (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	return given
}

// built is the directory of the programs, "" before the first test needs them.
var built string

// programs builds everything once, unless COLLOID_E2E_PROGRAMS names a directory where it is.
var programs = sync.OnceValues(func() (string, error) {
	if directory := os.Getenv("COLLOID_E2E_PROGRAMS"); directory != "" {
		return directory, nil
	}
	directory, err := os.MkdirTemp("", "colloid-e2e-build-")
	if err != nil {
		return "", err
	}
	built = directory
	if err := touchSources(); err != nil {
		return directory, err
	}
	if err := cluster.BuildModule(context.Background(), filepath.Join(directory, "hello.wasm"),
		"./examples/hello-wasm"); err != nil {
		return directory, err
	}
	streams, err := os.ReadFile(filepath.Join("..", "runnerd", "wasm", "testdata", "streams.wasm"))
	if err == nil {
		err = os.WriteFile(filepath.Join(directory, "streams.wasm"), streams, 0o644)
	}
	if err != nil {
		return directory, err
	}
	return directory, cluster.Build(context.Background(), directory, append(cluster.Appliance, "./examples/hello",
		"./e2e/misbehave")...)
})

// touchSources looks at every source file, so that the go command runs these tests again when one changes:
// it cannot know that they build programs.
func touchSources() error {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			_, err = os.Stat(path)
		}
		return err
	})
}

// fixture is a cluster with the workload hello.
type fixture struct {
	*cluster.Cluster
	t    *testing.T
	port int
}

func start(t *testing.T, cells int) *fixture {
	t.Helper()
	return startWith(t, cluster.Options{Cells: cells})
}

// needRoot skips what only root can set up.
func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + what)
	}
}

// long says whether the parts that take minutes run too.
func long() bool { return os.Getenv("COLLOID_E2E_LONG") != "" }

// startWith starts a cluster with what the test wants different.
func startWith(t *testing.T, options cluster.Options) *fixture {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real cells: not with -short")
	}
	directory, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	options.Name, options.Binaries, options.Log = "colloid-e2e", directory, t.Logf
	options.Programs, options.Modules = []string{"hello", "misbehave"}, []string{"hello.wasm", "streams.wasm"}
	c, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Cluster: c, t: t}
	t.Cleanup(func() {
		if t.Failed() {
			for _, cell := range c.Cells {
				t.Logf("log of %s:\n%s", cell.Name, cell.LogTail(6000))
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if left := cluster.Leftovers(c.Directory); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	if f.port, err = c.FreePort(portWish); err != nil {
		t.Fatal(err)
	}
	return f
}

// config is hello with a number of replicas and one more line.
func (f *fixture) config(replicas int, line string) string {
	f.t.Helper()
	text := fmt.Sprintf(`spread hello {
	process %s
	replicas %d
	port %d
	health http %d /healthz interval=200ms
	%s
}
`, f.Program("hello"), replicas, f.port, f.port, line)
	path := filepath.Join(f.t.TempDir(), "hello.colloid")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// run runs a command and demands an exit status.
func (f *fixture) run(cell *cluster.Cell, exit int, arguments ...string) string {
	f.t.Helper()
	result, err := cell.Run(f.t.Context(), arguments...)
	if err != nil || result.Exit != exit {
		f.t.Fatalf("colloid %v on %s: exit %d, want %d; %v\n%s%s", arguments, cell.Name, result.Exit, exit, err,
			result.Output, result.Errors)
	}
	return result.Output
}

// answers waits until so many replicas answer and returns what they said, sorted.
func (f *fixture) answers(from *cluster.Cell, replicas int) []string {
	f.t.Helper()
	var answers []string
	f.wait(fmt.Sprintf("%d replicas to answer", replicas), func(ctx context.Context) (err error) {
		answers, err = f.Ask(ctx, from, key)
		if err == nil && len(answers) != replicas {
			err = fmt.Errorf("%d answer: %q", len(answers), answers)
		}
		return err
	})
	slices.Sort(answers)
	return answers
}

func (f *fixture) wait(what string, check func(context.Context) error) {
	f.t.Helper()
	if err := cluster.WaitFor(f.t.Context(), patience, what, check); err != nil {
		f.t.Fatal(err)
	}
}

// holders are the running cells that run a ready replica, others those that do not.
func (f *fixture) holders() (holders, others []*cluster.Cell) {
	f.t.Helper()
	for _, cell := range f.Running() {
		status, err := cell.Status(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		holds := false
		for _, i := range cluster.ReadyInstances(status, key) {
			holds = holds || i.Cell == status.Cell.ID
		}
		if holds {
			holders = append(holders, cell)
		} else {
			others = append(others, cell)
		}
	}
	return holders, others
}

func same(t *testing.T, what string, before, after []string) {
	t.Helper()
	if !slices.Equal(before, after) {
		t.Fatalf("%s: %q became %q", what, before, after)
	}
}

// All cells lose power; what was applied is there again afterwards, in one cluster (F4, F157).
func TestF4_TotalPowerLossKeepsClusterAndWorkloads(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(3, ""))
	f.answers(f.Cells[0], 3)
	status, err := f.Cells[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, cell := range f.Cells {
		if err := cell.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, cell := range []*cluster.Cell{f.Cells[2], f.Cells[0], f.Cells[1]} {
		if err := cell.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	f.answers(f.Cells[1], 3)
	for _, cell := range f.Cells {
		now, err := cell.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if now.Cell.Cluster != status.Cell.Cluster || len(now.Cells) != 3 {
			t.Errorf("%s is in cluster %s with %d cells, was in %s with 3", cell.Name, now.Cell.Cluster, len(now.Cells),
				status.Cell.Cluster)
		}
	}
}

// Two operators on two sides of a broken network write the same key. Nothing that runs is touched,
// both values are shown, and a person decides (SAFE-1, F55, F57).
func TestSAFE1_ConcurrentEditsBlockUntilResolved(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	if !f.Namespaced() {
		t.Skip("needs root: cuts the link of a cell")
	}
	left, right := f.Cells[0], f.Cells[2]
	f.run(left, 0, "apply", "-f", f.config(3, ""))
	before := f.answers(left, 3)
	if err := right.Cut(); err != nil {
		t.Fatal(err)
	}
	f.run(left, 0, "apply", "-f", f.config(3, "priority 1"))
	f.run(right, 0, "apply", "-f", f.config(3, "priority 2"))
	if err := right.Heal(); err != nil {
		t.Fatal(err)
	}
	for _, cell := range f.Cells {
		f.wait("the conflict to be seen on "+cell.Name, func(ctx context.Context) error {
			result, err := cell.Run(ctx, "status")
			if err == nil && (result.Exit != 3 || !strings.Contains(result.Output, "CONFLICT on "+key)) {
				err = fmt.Errorf("exit %d", result.Exit)
			}
			return err
		})
	}
	same(t, "replicas during the conflict", before, f.answers(left, 3))
	f.run(left, 5, "apply", "-f", f.config(2, ""))
	status, err := left.Status(t.Context())
	if err != nil || len(status.Conflicts) != 1 || len(status.Conflicts[0].Values) != 2 {
		t.Fatalf("conflicts %+v, %v", status.Conflicts, err)
	}
	seen := status.Conflicts[0].Digest
	f.run(left, 0, "resolve", "hello", "--seen", seen, "--take", "1")
	for _, cell := range f.Cells {
		f.wait("the decision to arrive at "+cell.Name, func(ctx context.Context) error {
			result, err := cell.Run(ctx, "get", "hello")
			if err == nil && result.Exit != 0 {
				err = errors.New("still in conflict")
			}
			return err
		})
	}
	same(t, "replicas after the decision", before, f.answers(left, 3))
	// The other operator decides by what is no longer there, and by a value that was replaced meanwhile (F55).
	decided := f.run(right, 0, "get", "hello")
	result, err := right.Run(t.Context(), "resolve", "hello", "--seen", seen, "--take", "2")
	refused(t, "a decision that comes late", result, err, 5, "somebody has decided")
	if now := f.run(left, 0, "get", "hello"); now != decided {
		t.Errorf("%s became %s", decided, now)
	}
}

// A cell leaves while requests run: its replica moves first (F8, F75), and no request fails.
func TestF8_LeaveUnderLoadFailsNoRequest(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	holders, others := f.holders()
	if len(holders) != 2 || len(others) != 1 {
		t.Fatalf("%d cells hold replicas, %d do not", len(holders), len(others))
	}
	leaver, stays, spare := holders[0], holders[1], others[0]
	load := f.StartLoad(t.Context(), 5*time.Millisecond, func() []string {
		return []string{f.url(leaver), f.url(stays), f.url(spare)}
	})
	time.Sleep(300 * time.Millisecond)
	f.run(leaver, 0, "leave", "--drain", "20s")
	f.answers(stays, 2)
	result := load.Stop()
	if result.Errors > 0 || result.Requests < 50 {
		t.Errorf("%d of %d requests failed, last with %v", result.Errors, result.Requests, result.LastError)
	}
	t.Logf("%d requests, longest %v", result.Requests, result.Longest)
	f.wait("the cell to stop", func(context.Context) error {
		if ids := leaver.Processes(); len(ids) > 0 {
			return fmt.Errorf("processes %v", ids)
		}
		return nil
	})
	f.leftNothing(leaver, stays)
	f.joinUnderLoad(leaver, stays)
}

// leftNothing demands that the state directory of a cell that left holds nothing of its cluster: neither the key nor
// the configuration.
func (f *fixture) leftNothing(leaver, member *cluster.Cell) {
	f.t.Helper()
	stored, err := os.ReadFile(filepath.Join(member.Directory, "meshd", "cluster"))
	if err != nil || len(stored) < 48 {
		f.t.Fatalf("%d bytes, %v", len(stored), err)
	}
	for _, secret := range []string{string(stored[16:48]), key} {
		for _, path := range f.filesWith(secret) {
			if strings.HasPrefix(path, filepath.Join(leaver.Directory, "meshd")) {
				f.t.Errorf("%q of the cluster is still in %s", secret, path)
			}
		}
		if len(f.filesWith(secret)) == 0 {
			f.t.Errorf("nobody has %q", secret)
		}
	}
}

// joinUnderLoad starts a cell that left: it joins as a new one does and takes replicas back, and no request fails
// meanwhile (F75).
func (f *fixture) joinUnderLoad(joiner, witness *cluster.Cell) {
	t := f.t
	t.Helper()
	load := f.strictLoad(witness)
	if err := errors.Join(joiner.Kill(), joiner.Start(t.Context())); err != nil { // Kill takes note that it ended
		t.Fatal(err)
	}
	if err := joiner.WaitActive(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	f.wait("the cell to join", func(ctx context.Context) error {
		// It was started with --join as well, and only one of the two can be under way.
		result, err := joiner.Run(ctx, "connect", witness.Endpoint())
		if err == nil && result.Exit != 0 {
			err = errors.New(result.Errors)
			if !strings.Contains(result.Errors, "another connect is under way") {
				t.Fatal(err)
			}
		}
		return err
	})
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	f.run(witness, 0, "apply", "-f", f.config(3, "")) // now there is a place for a third
	f.answers(witness, 3)
	f.wait("the workload to settle", func(ctx context.Context) error { return f.settled(ctx, witness, "hello", 3) })
	f.noneFailed(load)
}

func (f *fixture) url(cell *cluster.Cell) string {
	return "http://" + cell.Address.String() + ":" + strconv.Itoa(f.port) + "/"
}

// A host whose policy lacks the program says no: the replica runs elsewhere, and explain says why (D2).
func TestD2_DeniedProcessMovesElsewhere(t *testing.T) {
	t.Parallel()
	f := startWith(t, cluster.Options{Denied: []int{0}})
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	if running := f.Cells[0].Running("hello"); len(running) > 0 {
		t.Errorf("the program runs where it is denied: %v", running)
	}
	// Three replicas cannot be placed on two cells; the reason is told on every cell.
	f.run(f.Cells[0], 0, "apply", "-f", f.config(3, ""))
	for _, cell := range f.Cells {
		f.wait("the reason on "+cell.Name, func(ctx context.Context) error {
			text, err := cell.Command(ctx, "explain", "hello")
			if err == nil && !strings.Contains(text, "policy") && !strings.Contains(text, "denied") {
				err = fmt.Errorf("explain says %q", text)
			}
			return err
		})
	}
	t.Log(f.run(f.Cells[1], 0, "explain", "hello"))
	f.answers(f.Cells[1], 2)
}

// A dead cell is declared gone, so that nothing counts on it; one that is alive cannot be. When it turns up
// again after all it is a member again (F46).
func TestF46_ForgottenCellLeavesTheList(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	first, lost := f.Cells[0], f.Cells[2]
	status, err := lost.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	result, err := first.Run(t.Context(), "forget", status.Cell.ID)
	refused(t, "forget the living", result, err, 1, status.Cell.ID)
	if err := lost.Kill(); err != nil {
		t.Fatal(err)
	}
	f.wait("the cell to be dead", func(ctx context.Context) error {
		result, err := first.Run(ctx, "forget", status.Cell.ID)
		if err == nil && result.Exit != 0 {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Errors)
		}
		return err
	})
	for _, cell := range f.Cells[:2] {
		f.wait("the cell to be gone on "+cell.Name, func(ctx context.Context) error {
			now, err := cell.Status(ctx)
			for _, c := range now.Cells {
				if err == nil && c.ID == status.Cell.ID && c.State != "gone" {
					err = fmt.Errorf("it is %s", c.State)
				}
			}
			return err
		})
	}
	if err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitConverged(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
}
