package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
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

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "meshd" {
		os.Exit(playMeshd())
	}
	RunKeeper()
	os.Exit(m.Run())
}

// startKeeper runs a shell script under a keeper, the way a cell's launcher is run.
func startKeeper(t *testing.T, group, script string) membership {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	command := exec.Command(self, "/bin/sh", "-c", script)
	command.Env = append(os.Environ(), keeperVariable+"=1")
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startInGroup(group, command, command.Start); err != nil {
		t.Fatal(err)
	}
	go command.Wait()
	m := membership{keeper: command.Process.Pid, directory: directory, group: group}
	t.Cleanup(func() { m.killAll() })
	return m
}

// waitCount waits until a cell has so many processes.
func waitCount(t *testing.T, m membership, count int) {
	t.Helper()
	var ids []int
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ids = m.find(); len(ids) == count {
			return
		}
	}
	t.Fatalf("processes %v, want %d of them", ids, count)
}

const detached = `setsid sh -c 'setsid sleep 1000 & setsid sleep 1001 &' & exit 0`

func TestKeeperFindsProcessesThatDetachThemselves(t *testing.T) {
	m := startKeeper(t, "", detached)
	waitCount(t, m, 3) // the keeper and two sleeps whose parents have ended
	if err := m.killAll(); err != nil {
		t.Fatal(err)
	}
	waitCount(t, m, 0)
}

func TestKeeperEndsWithTheLastProcess(t *testing.T) {
	m := startKeeper(t, "", "sleep 0.05 & exit 3")
	waitCount(t, m, 0)
}

func TestKillAllOutrunsAForkBomb(t *testing.T) {
	m := startKeeper(t, "", "while true; do sleep 1000 & sleep 0.002; done")
	time.Sleep(50 * time.Millisecond)
	if err := m.killAll(); err != nil {
		t.Fatal(err)
	}
	waitCount(t, m, 0)
}

func TestPauseAndResume(t *testing.T) {
	m := startKeeper(t, "", "sleep 1000 & wait")
	waitCount(t, m, 3)
	for _, c := range []struct {
		signal unix.Signal
		want   string
	}{{unix.SIGSTOP, "T"}, {unix.SIGCONT, "S"}} {
		m.signalAll(c.signal)
		for _, id := range m.find() {
			waitState(t, id, c.want)
		}
	}
}

func waitState(t *testing.T, id int, want string) {
	t.Helper()
	got := ""
	for range 1000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if got, _, _ = strings.Cut(rest, " "); got == want {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("process %d is in state %s, want %s", id, got, want)
}

func TestControlGroupHoldsACellAndCanBeRemoved(t *testing.T) {
	directory := filepath.Join(t.TempDir(), fmt.Sprintf("colloid-test-%d", os.Getpid()))
	group := controlGroup(directory, "cell-1")
	if group == "" {
		t.Skip("needs a writable control group (version 2)")
	}
	t.Cleanup(func() { removeControlGroups(directory) })
	m := startKeeper(t, group, detached)
	m.keeper = 0 // the group alone must be enough
	waitCount(t, m, 3)
	if err := m.killAll(); err != nil {
		t.Fatal(err)
	}
	if len(controlGroups(directory)) != 2 {
		t.Fatalf("groups %v", controlGroups(directory))
	}
	if err := removeControlGroups(directory); err != nil {
		t.Fatal(err)
	}
	if left := Leftovers(directory); len(left) != 0 {
		t.Fatalf("left: %v", left)
	}
}

func TestBridgedCellsReachEachOtherUntilCut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	b, err := newBridged(filepath.Join(t.TempDir(), "network"), 2, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.close() })
	address := net.JoinHostPort(b.address(1).String(), "8080")
	var listener net.Listener
	if err := InNamespace(b.cellName(1), func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))

	c := &Cluster{network: b}
	client := c.HTTP(2 * time.Second)
	if body, err := fetch(client, "http://"+address); err != nil || body != "ok" {
		t.Fatalf("from the switch: %q, %v", body, err)
	}
	if err := b.setLink(1, false); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(c.HTTP(200*time.Millisecond), "http://"+address); err == nil {
		t.Fatal("a cut cell answers")
	}
	if err := b.setLink(1, true); err != nil {
		t.Fatal(err)
	}
	if err := WaitFor(context.Background(), 10*time.Second, "the healed link", func(context.Context) error {
		_, err := fetch(client, "http://"+address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if m := (membership{namespace: b.namespaceLink(1)}); !strings.HasPrefix(m.namespace, "net:[") {
		t.Errorf("namespace link %q", m.namespace)
	}
	if left, err := os.ReadDir(b.directory); err != nil || len(left) != 3 {
		t.Errorf("three namespaces exist, but %v are listed", left)
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(b.directory); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func fetch(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestLoopbackAddressesAndPorts(t *testing.T) {
	n := loopback{}
	if got := n.address(2); got != netip.MustParseAddr("127.0.0.3") {
		t.Errorf("address %v", got)
	}
	taken, err := net.ListenPacket("udp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.LocalAddr().(*net.UDPAddr).Port
	if got, err := freePort(port, 3); err != nil || got == port {
		t.Errorf("port %d is taken on the second cell, got %d, %v", port, got, err)
	}
	if err := n.setLink(0, false); err != ErrNoLink {
		t.Errorf("cut: %v", err)
	}
}

func TestParseStatSurvivesHostileNames(t *testing.T) {
	if p, ok := parseStat(7, []byte("7 (a) R 1 (x) S 42 0 0")); !ok || p.parent != 42 {
		t.Errorf("%+v, %v", p, ok)
	}
	for _, text := range []string{"", "7 (a", "7 (a)", "7 (a) Z 1", "7 (a) S x"} {
		if p, ok := parseStat(7, []byte(text)); ok {
			t.Errorf("%q was read as %+v", text, p)
		}
	}
}

func TestStopRefusesOthersDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a directory of another user")
	}
	directory := t.TempDir()
	if err := os.Chown(directory, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := Stop(directory); err == nil || !strings.Contains(err.Error(), "12345") {
		t.Fatalf("got %v", err)
	}
}

func TestWaitForReportsTheLastReason(t *testing.T) {
	n := 0
	err := WaitFor(context.Background(), 120*time.Millisecond, "nothing", func(context.Context) error {
		n++
		return fmt.Errorf("attempt %s", strconv.Itoa(n))
	})
	if err == nil || !strings.Contains(err.Error(), "waited 120ms for nothing: attempt ") {
		t.Fatalf("got %v", err)
	}
}
