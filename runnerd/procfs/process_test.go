package procfs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	command := exec.Command("/bin/sh", "-c", script)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command.Process.Kill(); command.Wait() })
	return command
}

func TestF134_IdentityIsPIDAndStartTime(t *testing.T) {
	command := start(t, "sleep 100")
	p, err := Find(command.Process.Pid)
	if err != nil || !p.Alive() {
		t.Fatal(p, err)
	}
	other := Process{p.PID, p.StartTicks + 1}
	if other.Alive() {
		t.Fatal("another process of the same id counts as this one")
	}
	if err := other.Signal(unix.SIGKILL); err != nil || !p.Alive() {
		t.Fatal("the signal reached a process that only has the id", err)
	}
	if p.Wait(20*time.Millisecond, nil) {
		t.Fatal("has not ended")
	}
	cancel := make(chan struct{})
	close(cancel)
	if p.Wait(-1, cancel) {
		t.Fatal("has not ended")
	}
	go func() { time.Sleep(50 * time.Millisecond); p.Signal(unix.SIGKILL) }()
	if !p.Wait(5*time.Second, nil) {
		t.Fatal("has ended")
	}
	if p.Alive() { // a zombie until Cleanup waits
		t.Fatal("a zombie counts as alive")
	}
	if age := p.Age(); age > time.Minute {
		t.Fatal(age)
	}
}

func TestTreeKillReachesGrandchildrenThatLeftTheSession(t *testing.T) {
	command := start(t, "setsid sleep 321 & sleep 321 & (sleep 321 & sleep 321) & wait")
	root, err := Find(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{Session: root.PID, Root: root, Keep: os.Getpid()}
	deadline := time.Now().Add(5 * time.Second)
	for len(tree.Members()) < 5 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	members := tree.Members()
	if len(members) < 5 {
		t.Fatalf("%d members", len(members))
	}
	if !tree.Kill() {
		t.Fatal("something is left")
	}
	for _, p := range members {
		if p.Alive() {
			t.Fatalf("%v lives", p)
		}
	}
}

func TestParseStatSurvivesHostileNames(t *testing.T) {
	name := "a) R 1 1 1 (b\n"
	text := fmt.Sprintf("12 (%s) S 34 56 78%s 999 0", name, strings.Repeat(" 0", 15))
	s, err := parseStat(12, []byte(text))
	if err != nil || s.state != 'S' || s.parent != 34 || s.session != 78 || s.StartTicks != 999 {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "12 (x", "12 (x) S 1", "12 (x) S a b c" + strings.Repeat(" 0", 20)} {
		if _, err := parseStat(1, []byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestHostFigures(t *testing.T) {
	if MemoryMiB() < 16 || len(BootID()) != 36 {
		t.Fatal(MemoryMiB(), BootID())
	}
}
