package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
)

// Every frame on the links of three real cells is looked at while a cell joins, a secret and a file are distributed,
// logs are read, a program runs and files are copied, each with a text of its own in it: none shows, nor the
// cluster's key. That the look sees what is plain is shown by an answer over HTTP (F12, F17, F83, F154).
func TestF12_F17_CapturedDatagramsHoldNoSecrets(t *testing.T) {
	needRoot(t, "reads what passes the network")
	line := operatorKey(t, "anna")
	f := startWith(t, cluster.Options{Cells: 3, PolicyLines: "exec *\n" + line})
	first, last := f.Cells[0], f.Cells[2]
	raw, err := os.ReadFile(filepath.Join(first.Directory, "meshd", "cluster"))
	if err != nil || len(raw) != 16+32+1 {
		t.Fatalf("the cluster's key in %d bytes: %v", len(raw), err)
	}
	texts := [][]byte{raw[16:32], raw[32:48]}
	for _, kind := range []string{"argument", "input", "output", "file", "name", "log", "variable", "secret"} {
		texts = append(texts, []byte("planted-"+kind))
	}
	var leaks []func() string
	for _, cell := range f.Cells {
		leaks = append(leaks, f.capture(cell, texts...))
	}
	plain := f.capture(first, []byte("hello from cell"))

	if err := last.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(last.Directory); err != nil { // it joins as somebody new
		t.Fatal(err)
	}
	if err := last.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wait("the new cell", func(ctx context.Context) error {
		if raw, err := os.ReadFile(filepath.Join(last.Directory, "meshd", "cluster")); err != nil || len(raw) < 33 {
			return fmt.Errorf("%d bytes: %w", len(raw), err)
		}
		return last.WaitActive(ctx, patience)
	})
	directory := t.TempDir()
	secret := filepath.Join(directory, "secret")
	for path, content := range map[string]string{secret: "planted-secret", filepath.Join(directory, "planted-name"): "planted-file"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.run(first, 0, "apply", "-f", f.config(3, "env PLAIN planted-variable\n secret PASSWORD from file "+secret+
		"\n file /etc/key from file "+secret+" mode=0440"))
	f.run(first, 0, "apply", "-f", f.file(fmt.Sprintf("spread talk {\n process %s\n args say planted-log\n replicas 3\n}\n",
		f.Program("misbehave"))))
	f.answers(first, 3)
	f.wait("all three logs", func(ctx context.Context) error {
		result, err := first.Run(ctx, "logs", "talk")
		if err == nil && strings.Count(result.Output, "planted-log") != 3 {
			err = fmt.Errorf("exit %d: %s%s", result.Exit, result.Output, result.Errors)
		}
		return err
	})
	for _, replica := range []string{"hello/0", "hello/1", "hello/2"} { // at least two of them are elsewhere
		run := f.background(first, "exec", "-i", replica, "--", "sh", "-c", "echo planted-$1put; cat; env", "planted-argument", "out")
		run.input.Write([]byte("planted-input\n"))
		run.input.Close()
		f.ends(run, 0, "planted-input")
		for _, want := range []string{"planted-output", "PLAIN=planted-variable", "PASSWORD=planted-secret"} {
			if !strings.Contains(run.seen(), want) {
				t.Fatalf("%s: no %s in:\n%s", replica, want, run.seen())
			}
		}
		f.run(first, 0, "cp", filepath.Join(directory, "planted-name"), replica+":planted-name")
		f.run(first, 0, "cp", replica+":planted-name", filepath.Join(directory, "back"))
		if back, err := os.ReadFile(filepath.Join(directory, "back")); string(back) != "planted-file" {
			t.Fatalf("%q %v", back, err)
		}
	}
	for i, leaked := range leaks {
		if seen := leaked(); seen != "" {
			t.Errorf("%s: on the wire: %q", f.Cells[i].Name, seen)
		}
	}
	if plain() != "hello from cell" {
		t.Error("the look at the wire sees nothing")
	}
}

// apart makes a cell's host refuse everything to some others, which it cannot talk to then: it stands behind a
// router that lets nobody in.
func apart(t *testing.T, cell *cluster.Cell, others ...*cluster.Cell) {
	t.Helper()
	for _, other := range others {
		err := cell.Do(func() error {
			return netlink.RouteAdd(&netlink.Route{Type: unix.RTN_UNREACHABLE,
				Dst: &net.IPNet{IP: other.Address.AsSlice(), Mask: net.CIDRMask(32, 32)}})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// received is how many bytes have arrived at a cell's link.
func received(cell *cluster.Cell) (bytes int) {
	_ = cell.Do(func() error {
		file, err := os.Open("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if name, rest, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":"); ok && name != "lo" {
				count, _ := strconv.Atoi(strings.Fields(rest)[0])
				bytes += count
			}
		}
		return nil
	})
	return bytes
}

// A copy between two cells behind symmetric routers, one of which talks to the cells 1 and 2 alone and the other to 3
// and 4, so that all of it passes two relays; these are killed on the way, on either side in turn, and come back
// later. The copy ends well and every byte is as it was (STREAM-3, F36, F150).
func TestSTREAM3_F36_CopyThroughTwoRelaysThatAreKilled(t *testing.T) {
	needRoot(t, "makes namespaces with routers between them")
	if !long() {
		t.Skip("takes most of a minute: set COLLOID_E2E_LONG=1")
	}
	const size, deaths = 1 << 30, 6
	line := operatorKey(t, "anna")
	f := startWith(t, cluster.Options{Denied: []int{0, 1, 2, 3, 4}, PolicyLines: "exec *\n" + line,
		Routers: []cluster.Router{cluster.NoRouter, cluster.NoRouter, cluster.NoRouter, cluster.NoRouter, cluster.Symmetric,
			cluster.Symmetric}})
	relays, source, target := f.Cells[:4], f.Cells[4], f.Cells[5]
	apart(t, source, relays[2], relays[3])
	apart(t, target, relays[0], relays[1])
	f.run(relays[0], 0, "apply", "-f", f.config(1, ""))
	f.wait("the copy on the last cell, through two relays", func(ctx context.Context) error {
		before := [4]int{}
		for i, relay := range relays {
			before[i] = received(relay)
		}
		result, err := source.Run(ctx, "exec", "hello/0", "--", "head", "-c", "300000", "/dev/zero")
		if err == nil && len(result.Output) != 300000 {
			err = fmt.Errorf("exit %d: %.300s", result.Exit, result.Errors)
		}
		passed := [2]bool{}
		for i, relay := range relays {
			passed[i/2] = passed[i/2] || received(relay)-before[i] > 250000
		}
		if err == nil && passed != [2]bool{true, true} {
			err = errors.New("it took another way")
		}
		return err
	})
	path := filepath.Join(t.TempDir(), "data")
	sum := randomFile(t, path, size)
	begin, base := time.Now(), received(target)
	transfer := f.background(source, "cp", path, "hello/0:copy")
	for i := range deaths {
		f.waitReceived(transfer, target, base+(i+1)*size/(deaths+1))
		victim := busiest(relays[2*(i%2) : 2*(i%2)+2])
		t.Logf("after %v and %d MB: %s dies", time.Since(begin).Round(time.Second), (received(target)-base)/1e6, victim.Name)
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		f.waitReceived(transfer, target, base+(i+1)*size/(deaths+1)+size/50) // it goes on without
		if err := victim.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-transfer.done:
	case <-time.After(10 * time.Minute):
		t.Fatalf("the copy does not end:\n%s", transfer.seen())
	}
	took := time.Since(begin)
	if exit := transfer.ProcessState.ExitCode(); exit != 0 {
		t.Fatalf("exit %d:\n%s", exit, transfer.seen())
	}
	t.Logf("%d MB in %v with %d deaths: %.1f MB/s", size/1000000, took.Round(time.Second), deaths, size/took.Seconds()/1e6)
	if out := f.run(source, 0, "exec", "hello/0", "--", "sha256sum", "copy"); !strings.HasPrefix(out, sum) {
		t.Fatalf("%s arrived, %s was sent", out, sum)
	}
}

// randomFile writes a file and returns its SHA-256.
func randomFile(t *testing.T, path string, size int) string {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	hash, piece := sha256.New(), make([]byte, 1<<20)
	for range size / len(piece) {
		rand.Read(piece)
		hash.Write(piece)
		if _, err := file.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

// waitReceived waits until so much has arrived at a cell.
func (f *fixture) waitReceived(transfer *command, cell *cluster.Cell, bytes int) {
	f.t.Helper()
	last, since := 0, time.Now()
	for {
		now := received(cell)
		switch {
		case now >= bytes:
			return
		case now > last+1<<20:
			last, since = now, time.Now()
		case time.Since(since) > 90*time.Second:
			f.t.Fatalf("%d of %d bytes, and nothing more for 90 s:\n%s", now, bytes, transfer.seen())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// busiest is the cell at whose link most arrives now.
func busiest(cells []*cluster.Cell) *cluster.Cell {
	before := make([]int, len(cells))
	for i, cell := range cells {
		before[i] = received(cell)
	}
	time.Sleep(300 * time.Millisecond)
	best, most := cells[0], -1
	for i, cell := range cells {
		if got := received(cell) - before[i]; got > most {
			best, most = cell, got
		}
	}
	return best
}
