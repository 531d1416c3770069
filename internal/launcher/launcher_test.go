package launcher

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func testContext() context.Context { return context.Background() }

func testProgram(directory, name, role string) Program {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Program{Name: name, Path: self, Environment: []string{
		roleVariable + "=" + role, nameVariable + "=" + name,
		journalVariable + "=" + filepath.Join(directory, "journal"),
	}}
}

func testOptions(directory, meshdRole string, helperRole string) Options {
	return Options{
		Directory:    filepath.Join(directory, "state"),
		RunDirectory: filepath.Join(directory, "state", "run"),
		Meshd:        testProgram(directory, "meshd", meshdRole),
		Helpers:      []Program{testProgram(directory, "runnerd", helperRole)},
		Log:          log.New(io.Discard, "", 0),
		BackoffMin:   5 * time.Millisecond, BackoffMax: 40 * time.Millisecond,
		StopGrace: 10 * time.Second,
	}
}

// running is a launcher under test.
type runningLauncher struct {
	t         *testing.T
	directory string
	cancel    context.CancelFunc
	result    chan error
}

func launch(t *testing.T, change func(*Options), meshdRole, helperRole string) *runningLauncher {
	t.Helper()
	directory := t.TempDir()
	options := testOptions(directory, meshdRole, helperRole)
	if change != nil {
		change(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningLauncher{t: t, directory: directory, cancel: cancel, result: make(chan error, 1)}
	go func() { r.result <- Run(ctx, options) }()
	t.Cleanup(cancel)
	return r
}

func (r *runningLauncher) stop() error {
	r.cancel()
	return r.wait()
}

func (r *runningLauncher) wait() error {
	r.t.Helper()
	select {
	case err := <-r.result:
		return err
	case <-time.After(20 * time.Second):
		r.t.Fatal("the launcher does not end")
		return nil
	}
}

// events returns the journal as fields: name, pid, event.
func events(directory string) [][3]string {
	text, _ := os.ReadFile(filepath.Join(directory, "journal"))
	var all [][3]string
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(strings.TrimSpace(line), " ", 3); len(parts) == 3 {
			all = append(all, [3]string{parts[0], parts[1], parts[2]})
		}
	}
	return all
}

// await waits until count events of a process have the given beginning and returns their pids.
func await(t *testing.T, directory, name, event string, count int) []int {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		var pids []int
		for _, e := range events(directory) {
			if e[0] == name && strings.HasPrefix(e[2], event) {
				pid, _ := strconv.Atoi(e[1])
				pids = append(pids, pid)
			}
		}
		if len(pids) >= count {
			return pids
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d times %q by %s in %v", len(pids), count, event, name, events(directory))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestF134_MeshdAndHelperAreConnectedAfterEveryRestart(t *testing.T) {
	r := launch(t, nil, "meshd", "runnerd")
	meshd := await(t, r.directory, "meshd", "as runnerd meets runnerd ", 1)
	helper := await(t, r.directory, "runnerd", "as meshd meets meshd ", 1)

	kill(t, meshd[0])
	await(t, r.directory, "meshd", "as runnerd meets runnerd "+strconv.Itoa(helper[0]), 2)
	second := await(t, r.directory, "meshd", "starts", 2)
	await(t, r.directory, "runnerd", "as meshd meets meshd "+strconv.Itoa(second[1]), 1)

	kill(t, helper[0])
	await(t, r.directory, "runnerd", "as meshd meets meshd "+strconv.Itoa(second[1]), 2)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := await(t, r.directory, "runnerd", "starts", 2); len(got) != 2 {
		t.Errorf("runnerd was started %d times, want 2: a restart of meshd must not touch it", len(got))
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestStopEndsMeshdBeforeItsHelpers(t *testing.T) {
	r := launch(t, nil, "meshd", "runnerd")
	await(t, r.directory, "meshd", "as runnerd", 1)
	await(t, r.directory, "runnerd", "as meshd", 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, e := range events(r.directory) {
		if e[2] == "stops" || e[2] == "orphaned" {
			order = append(order, e[0]+" "+e[2])
		}
	}
	if got := strings.Join(order, ", "); got != "meshd stops, runnerd stops" {
		t.Errorf("order of stopping: %s", got)
	}
	for _, e := range events(r.directory) {
		if pid, _ := strconv.Atoi(e[1]); alive(pid) {
			t.Errorf("%s (process %d) is still alive", e[0], pid)
		}
	}
}

func TestControlCOfTheTerminalReachesTheLauncherAlone(t *testing.T) {
	r := launch(t, nil, "meshd", "runnerd")
	for name, pids := range map[string][]int{"meshd": await(t, r.directory, "meshd", "starts", 1),
		"runnerd": await(t, r.directory, "runnerd", "starts", 1)} {
		if group, err := unix.Getpgid(pids[0]); err != nil || group == unix.Getpgrp() {
			t.Errorf("%s is in the launcher's process group %d (%v)", name, group, err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestStopKillsAChildThatIgnoresIt(t *testing.T) {
	r := launch(t, func(o *Options) { o.StopGrace = 50 * time.Millisecond }, "stubborn", "runnerd")
	pids := await(t, r.directory, "meshd", "as runnerd", 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if alive(pids[0]) {
		t.Error("a child that ignores SIGTERM survived the stop")
	}
}

func TestF134_KilledLauncherTakesItsChildrenAlong(t *testing.T) {
	directory := t.TempDir()
	program := testProgram(directory, "launcher", "launcher")
	command := exec.Command(program.Path)
	command.Env = append(os.Environ(), program.Environment...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	meshd := await(t, directory, "meshd", "as runnerd", 1)
	helper := await(t, directory, "runnerd", "as meshd", 1)
	command.Process.Kill()
	command.Wait()
	await(t, directory, "meshd", "orphaned", 1)
	await(t, directory, "runnerd", "orphaned", 1)
	for deadline := time.Now().Add(10 * time.Second); alive(meshd[0]) || alive(helper[0]); {
		if time.Now().After(deadline) {
			t.Fatal("children survive the launcher")
		}
		time.Sleep(2 * time.Millisecond)
	}
	// The lock died with the launcher: the directory can be used at once.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Run(ctx, testOptions(directory, "meshd", "runnerd")); err != nil {
		t.Fatal(err)
	}
}

func TestSecondLauncherIsRefusedAndToldWho(t *testing.T) {
	r := launch(t, nil, "meshd", "runnerd")
	await(t, r.directory, "meshd", "starts", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := Run(ctx, testOptions(r.directory, "meshd", "runnerd"))
	if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("second launcher: %v, want an error that names process %d", err, os.Getpid())
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCrashingHelperIsStartedAgainWithoutTouchingMeshd(t *testing.T) {
	r := launch(t, nil, "meshd", "crash")
	await(t, r.directory, "runnerd", "crashes", 4)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if starts := await(t, r.directory, "meshd", "starts", 1); len(starts) != 1 {
		t.Errorf("meshd was started %d times", len(starts))
	}
}

// TestF134_APanicIsACrash: Go ends a program that panics, or gets SIGQUIT or SIGABRT, with status 2. That is
// not what a program says that cannot run with its configuration: it is started again, and meshd hears how
// often and why.
func TestF134_APanicIsACrash(t *testing.T) {
	r := launch(t, nil, "meshd", "panic")
	await(t, r.directory, "runnerd", "panics", 4)
	await(t, r.directory, "meshd", "hears that runnerd ended 3 times, down false: exit status 2: panic: the invariant does not hold", 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = launch(t, nil, "panic", "runnerd")
	await(t, r.directory, "meshd", "panics", 3)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestANewMeshdHearsOfItsOwnEnds: also what the one before it could not be told any more.
func TestANewMeshdHearsOfItsOwnEnds(t *testing.T) {
	r := launch(t, nil, "meshd", "misconfigured")
	pids := await(t, r.directory, "meshd", "hears that runnerd ended 0 times, down true: no such policy", 1)
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, r.directory, "meshd", "hears that meshd ended 1 times, down false: signal: killed", 1)
	await(t, r.directory, "meshd", "hears that runnerd ended 0 times, down true: no such policy", 2)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestMisconfiguredHelperStaysDownAndMeshdRuns(t *testing.T) {
	r := launch(t, nil, "meshd", "misconfigured")
	await(t, r.directory, "meshd", "starts", 1)
	select {
	case err := <-r.result:
		t.Fatalf("the launcher ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestMisconfiguredMeshdEndsTheLauncher(t *testing.T) {
	r := launch(t, nil, "misconfigured", "runnerd")
	if err := r.wait(); !errors.Is(err, ErrMisconfigured) {
		t.Fatalf("got %v, want ErrMisconfigured", err)
	}
}

func TestMeshdStoppedByHandIsStartedAgain(t *testing.T) {
	r := launch(t, nil, "meshd", "runnerd")
	pids := await(t, r.directory, "meshd", "as runnerd", 1)
	if err := unix.Kill(pids[0], unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, r.directory, "meshd", "as runnerd", 2)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestLeavingCellEndsTheLauncher(t *testing.T) {
	r := launch(t, nil, "leave", "runnerd")
	if err := r.wait(); err != nil {
		t.Fatal(err)
	}
	for _, e := range events(r.directory) {
		if pid, _ := strconv.Atoi(e[1]); alive(pid) {
			t.Errorf("%s (process %d) is still alive", e[0], pid)
		}
	}
}

func TestMissingMeshdIsReportedAtOnce(t *testing.T) {
	options := testOptions(t.TempDir(), "meshd", "runnerd")
	options.Meshd.Path = "/nonexistent/meshd"
	if err := Run(context.Background(), options); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestBackoffDoublesIsBoundedAndStartsOver(t *testing.T) {
	b := backoff{min: BackoffMin, max: BackoffMax, reset: BackoffReset}
	var got []time.Duration
	for range 10 {
		got = append(got, b.after(time.Second))
	}
	for i := 1; i < len(got); i++ {
		if got[i] != min(2*got[i-1], BackoffMax) {
			t.Fatalf("pauses %v", got)
		}
	}
	if got[0] != BackoffMin || got[9] != BackoffMax {
		t.Fatalf("pauses %v", got)
	}
	if pause := b.after(BackoffReset); pause != BackoffMin {
		t.Fatalf("after a long run the pause is %v", pause)
	}
}

func TestF12_MeshdHasNoPrivilegeAndHelperOnlyWhatItKeeps(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: drops privileges")
	}
	meshd := Confinement{Identity: &Identity{User: nobody, Group: nobody, Name: "nobody"}, Bounded: true,
		NoNewPrivileges: true}
	status := confinedStatus(t, meshd)
	for field, want := range map[string]string{
		"Uid": "65534\t65534\t65534\t65534", "Gid": "65534\t65534\t65534\t65534", "Groups": "",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
		"CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1",
	} {
		if status[field] != want {
			t.Errorf("meshd: %s is %q, want %q", field, status[field], want)
		}
	}
	helper := Confinement{Bounded: true, Capabilities: []uintptr{unix.CAP_KILL, unix.CAP_CHOWN}}
	status = confinedStatus(t, helper)
	for field, want := range map[string]string{
		"Uid": "0\t0\t0\t0", "CapPrm": "0000000000000021", "CapEff": "0000000000000021",
		"CapBnd": "0000000000000021", "NoNewPrivs": "0",
	} {
		if status[field] != want {
			t.Errorf("helper: %s is %q, want %q", field, status[field], want)
		}
	}
	// The launcher's own threads keep theirs: the next child must not be poorer.
	if own, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SETUID, 0, 0, 0); err != nil || own != 1 {
		t.Errorf("the launcher lost CAP_SETUID: %d, %v", own, err)
	}
}

func confinedStatus(t *testing.T, c Confinement) map[string]string {
	t.Helper()
	var output strings.Builder
	command := exec.Command("/bin/cat", "/proc/self/status")
	command.Stdout = &output
	command.SysProcAttr = &syscall.SysProcAttr{}
	if err := c.start(command); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(output.String()) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}
