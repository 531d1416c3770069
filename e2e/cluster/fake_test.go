package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/supply"
	"colloid.net/ipc/uds"
)

// The test binary also plays meshd, so that launcher, helper, keeper, networks and cleaning up are
// tested with real processes without depending on what the real meshd does. The fake believes alive
// whoever accepts connections on a neighbour's command socket.
func playMeshd() int {
	flags := flag.NewFlagSet("meshd", flag.ContinueOnError)
	descriptor := flags.Int("supply-fd", -1, "")
	flags.String("directory", "", "")
	socket := flags.String("socket", "", "")
	bind := flags.String("bind", "", "")
	flags.String("join", "", "")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return supply.ExitMisconfigured
	}
	receiver, err := supply.NewReceiver(*descriptor)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Remove(*socket)
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go serveStatus(listener, *socket, *bind)
	for {
		name, connection, err := receiver.Next()
		if err != nil {
			return 0
		}
		fmt.Printf("fake meshd got a connection to %s\n", name)
		defer connection.Close()
	}
}

func serveStatus(listener net.Listener, socket, bind string) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			buffer := make([]byte, 4096)
			if n, err := connection.Read(buffer); err != nil || n == 0 {
				return
			}
			text, err := json.Marshal(fakeStatus(socket, bind, uds.Code(buffer[0]) == uds.CodeStatus))
			if err != nil {
				return
			}
			frame := []byte{0, byte(len(text) >> 16), byte(len(text) >> 8), byte(len(text))}
			connection.Write(append(append(frame, text...), 0, 0, 0, 0))
		}()
	}
}

func fakeStatus(socket, bind string, neighbours bool) uds.Status {
	status := uds.Status{Cell: uds.CellSelf{ID: bind, State: "active"}}
	base := filepath.Dir(filepath.Dir(filepath.Dir(socket)))
	entries, err := os.ReadDir(base)
	if err != nil || !neighbours {
		return status
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), "cell-") {
			continue
		}
		info := uds.CellInfo{ID: entry.Name(), State: "dead"}
		if connection, err := net.Dial("unix", filepath.Join(base, entry.Name(), "run", "colloid.sock")); err == nil {
			connection.Close()
			info.State = "alive"
		}
		status.Cells = append(status.Cells, info)
	}
	return status
}

// fakeBinaries builds the real colloid and runnerd and adds the fake meshd.
func fakeBinaries(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := Build(t.Context(), directory, "./cmd/colloid", "./cmd/runnerd", "./cmd/runnerd-shim", "./cmd/runnerd-wasm", "./examples/hello"); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(self, filepath.Join(directory, "meshd")); err != nil {
		t.Fatal(err)
	}
	return directory
}

func TestF134_CellsDieComeBackAndLeaveNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs and starts processes: not with -short")
	}
	binaries := fakeBinaries(t)
	networks := map[string]bool{"loopback": true}
	if os.Geteuid() == 0 {
		networks["namespaces"] = false
	} else {
		t.Log("network namespaces need root: only loopback is tested")
	}
	for name, loopback := range networks {
		t.Run(name, func(t *testing.T) {
			c, err := Start(t.Context(), Options{Name: "colloid-test-" + name, Binaries: binaries,
				Programs: []string{"hello"}, Loopback: loopback, Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			checkLife(t, c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if left := Leftovers(c.Directory); len(left) != 0 {
				t.Fatalf("left behind: %v", left)
			}
		})
	}
}

func checkLife(t *testing.T, c *Cluster) {
	t.Helper()
	victim := c.Cells[1]
	// Keeper, launcher, meshd, runnerd; each helper found a meshd.
	await(t, victim, 4)
	if err := WaitFor(t.Context(), 10*time.Second, "runnerd to be connected", func(context.Context) error {
		if !strings.Contains(victim.LogTail(10000), "connection to runnerd") {
			return errors.New("the log does not say so")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	checkIdentities(t, c, victim)
	if n, err := victim.KillProgram("meshd"); err != nil || n != 1 {
		t.Fatalf("killed %d meshd, %v", n, err)
	}
	if err := victim.WaitActive(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, victim, 0)
	if err := c.WaitConverged(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitConverged(t.Context(), 10*time.Second); err != nil {
		t.Fatalf("%v%s", err, c.lastWords())
	}
	// A launcher that is killed takes its children along (F134).
	if n, err := victim.KillProgram("colloid"); err != nil || n != 1 {
		t.Fatalf("killed %d launchers, %v", n, err)
	}
	await(t, victim, 0)
}

func await(t *testing.T, cell *Cell, count int) {
	t.Helper()
	if err := WaitFor(t.Context(), 10*time.Second, "processes", func(context.Context) error {
		if ids := cell.Processes(); len(ids) != count {
			return fmt.Errorf("%d of %d: %v", len(ids), count, ids)
		}
		return nil
	}); err != nil {
		t.Fatalf("%v\n%s", err, cell.LogTail(4000))
	}
}

// checkIdentities proves who runs as whom: as root, meshd is somebody without capabilities and
// runnerd keeps only what it needs (F12).
func checkIdentities(t *testing.T, c *Cluster, cell *Cell) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	var seen []string
	for _, id := range cell.Processes() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		uid, _, _ := strings.Cut(fields["Uid"], "\t")
		seen = append(seen, fmt.Sprintf("%s uid %s effective %s", fields["Name"], uid, fields["CapEff"]))
		rights, err := strconv.ParseUint(fields["CapEff"], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		// The launcher has a test of the list itself; root's own set has 41.
		if n := bits.OnesCount64(rights); fields["Name"] == "runnerd" && (n == 0 || n > 16) {
			t.Errorf("runnerd has %d capabilities: %x", n, rights)
		}
	}
	for _, want := range []string{"runnerd uid 0 effective", "effective 0000000000000000"} {
		if !slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no process has %q: %q", want, seen)
		}
	}
}
