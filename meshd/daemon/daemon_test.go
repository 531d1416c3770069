package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/control"
	"colloid.net/meshd/reactor"
	"colloid.net/workload"
)

// running is a daemon of this process with a real socket and a real directory.
type running struct {
	t       testing.TB
	options Options
	daemon  *Daemon
	cancel  context.CancelFunc
	done    chan error
}

// launch starts a daemon on a free loopback port.
func launch(t testing.TB, driver string) *running {
	t.Helper()
	return launchWith(t, driver, reactor.Options{
		QueueEntries: 256, ReceiveBuffers: 128, SendQueue: 64, ReceiveBuffer: 1 << 20,
	})
}

// launchWith is launch with a reactor of chosen sizes.
func launchWith(t testing.TB, driver string, sizes reactor.Options) *running {
	t.Helper()
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	address := free.LocalAddr().(*net.UDPAddr).AddrPort()
	free.Close()
	directory := t.TempDir()
	r := &running{t: t, options: Options{
		Directory: filepath.Join(directory, "state"), Socket: filepath.Join(directory, "s", "colloid.sock"),
		Bind: address, Driver: driver, Software: "test", SupplyFD: -1, Quiet: true,
		Reactor: sizes,
	}}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *running) start() {
	r.t.Helper()
	d, err := Open(r.options)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.daemon, r.cancel, r.done = d, cancel, make(chan error, 1)
	go func() { r.done <- d.Run(ctx) }()
}

func (r *running) stop() {
	if r.daemon == nil {
		return
	}
	r.cancel()
	if err := <-r.done; err != nil {
		r.t.Errorf("run: %v", err)
	}
	r.daemon = nil
}

func (r *running) join(seed *running) {
	r.t.Helper()
	client, err := uds.Dial(r.options.Socket)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Do(uds.CodeConnect, append([]byte{0}, seed.options.Bind.String()...)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) inspect(f func(c *cell.Cell)) {
	r.t.Helper()
	if !r.daemon.Inspect(f) {
		r.t.Fatal("the daemon has stopped")
	}
}

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func allSee(cells []*running, n int) func() bool {
	return func() bool {
		for _, r := range cells {
			alive := 0
			r.inspect(func(c *cell.Cell) { alive = c.AliveCount() })
			if alive != n {
				return false
			}
		}
		return true
	}
}

// Real sockets, files and time on both drivers: cells join, a write reaches all, a restarted daemon is in
// its cluster again with what it knew (BOOT-1, BOOT-2, F4, F125).
func TestBOOT1_BOOT2_F4_CellsOfOneProcess(t *testing.T) {
	for _, driver := range []string{reactor.DriverAuto, reactor.DriverEpoll} {
		t.Run(driver, func(t *testing.T) {
			cells := []*running{launch(t, driver), launch(t, driver), launch(t, driver)}
			cells[1].join(cells[0])
			cells[2].join(cells[1])
			eventually(t, "three cells see each other", allSee(cells, 3))
			writeEverywhere(t, cells, "spread.first")

			var id uint64
			cells[1].inspect(func(c *cell.Cell) { id = c.ClusterID() })
			cells[1].stop()
			cells[1].start()
			eventually(t, "the restarted cell is back", allSee(cells, 3))
			cells[1].inspect(func(c *cell.Cell) {
				if c.ClusterID() != id {
					t.Errorf("cluster %x before, %x after", id, c.ClusterID())
				}
				if _, found := c.Store().Get([]byte("spread.first")); !found {
					t.Error("the restarted cell has forgotten")
				}
			})
			writeEverywhere(t, cells, "spread.second")
		})
	}
}

func writeEverywhere(t *testing.T, cells []*running, key string) {
	t.Helper()
	value, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := uds.Dial(cells[1].options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	write := uds.WriteRequest{Expect: uds.ExpectAbsent, Key: key, Value: value}
	if _, err := client.Do(uds.CodeSet, write.Append(nil)); err != nil {
		t.Fatal(err)
	}
	eventually(t, key+" is everywhere", func() bool {
		all := true
		for _, r := range cells {
			r.inspect(func(c *cell.Cell) {
				register, found := c.Store().Get([]byte(key))
				if !found {
					all = false
					return
				}
				got, _ := register.Live()
				all = all && bytes.Equal(got, value)
			})
		}
		return all
	})
}

// A daemon that is told a seed joins it by itself, also when the seed comes later (F4).
func TestF4_SeedsAreTriedUntilOneAnswers(t *testing.T) {
	seed, joiner := launch(t, ""), launch(t, "")
	joiner.stop()
	seed.stop()
	target, err := control.ParseTarget(seed.options.Bind.String())
	if err != nil {
		t.Fatal(err)
	}
	joiner.options.Join = []control.Target{target}
	joiner.start()
	time.Sleep(300 * time.Millisecond)
	seed.start()
	eventually(t, "two cells", allSee([]*running{seed, joiner}, 2))
}

// A daemon that is told to stop while it starts has stopped as it should, and leaves its directory to the next one.
func TestStopDuringTheStartIsNoFailure(t *testing.T) {
	r := launch(t, "")
	for range 20 {
		r.stop() // fails the test on an error
		r.start()
	}
	r.stop()
	d, err := Open(r.options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil {
		t.Errorf("stopped before it ran: %v", err)
	}
}

// Only one daemon may use a directory, and it says who has it.
func TestDirectoryIsLocked(t *testing.T) {
	r := launch(t, "")
	options := r.options
	options.Bind = netip.AddrPortFrom(options.Bind.Addr(), options.Bind.Port()+1)
	if d, err := Open(options); err == nil {
		d.close()
		t.Fatal("two daemons share a directory")
	}
	eventually(t, "the first one lives on", allSee([]*running{r}, 1))
}

// What status says of the process itself is true.
func TestStatusNamesDriverAndDirectory(t *testing.T) {
	r := launch(t, reactor.DriverEpoll)
	client, err := uds.Dial(r.options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	raw, err := client.Do(uds.CodeStatus, []byte{0})
	if err != nil {
		t.Fatal(err)
	}
	var status uds.Status
	if err := json.Unmarshal(raw, &status); err != nil {
		t.Fatal(err)
	}
	if status.Cell.Driver != "epoll" || status.Cell.StateDirectory != r.options.Directory ||
		status.Cell.Address != r.options.Bind.String() || status.Cell.State != "active" {
		t.Errorf("%+v", status.Cell)
	}
	if entries, err := os.ReadDir(r.options.Directory); err != nil || len(entries) == 0 {
		t.Errorf("state directory: %v %v", entries, err)
	}
}

// Load is read from this very host.
func TestF59_LoadOfThisHost(t *testing.T) {
	before := readProcessorTime()
	for end := time.Now().Add(60 * time.Millisecond); time.Now().Before(end); {
	}
	now := readProcessorTime()
	if now.total <= before.total || now.since(before) <= 0 || now.since(before) > 10000 {
		t.Errorf("processor: %+v, %+v: %d", before, now, now.since(before))
	}
	if m := memoryInUse(); m <= 0 || m >= 10000 {
		t.Errorf("memory: %d", m)
	}
	if d := diskInUse(t.TempDir()); d < 0 || d > 10000 {
		t.Errorf("disk: %d", d)
	}
}

// The state directory and the command socket of a running daemon are deleted: it answers again, its status shows
// both, and a restart finds everything that was written before and after (F135, F157).
func TestF135_F157_EverythingIsDeletedUnderARunningDaemon(t *testing.T) {
	r := launch(t, reactor.DriverAuto)
	set := func(key string) {
		t.Helper()
		spec := workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/true", Replicas: 1}
		encoded, err := workload.Encode(&spec)
		if err != nil {
			t.Fatal(err)
		}
		request := uds.WriteRequest{Key: key, Value: encoded}
		response := r.daemon.Command(cell.Request{Code: uds.CodeSet, Payload: request.Append(nil)})
		if response.Status != uds.OK {
			t.Fatalf("%s: %+v", key, response)
		}
	}
	eventually(t, "active", func() bool {
		phase := cell.Booting
		r.inspect(func(c *cell.Cell) { phase = c.Phase() })
		return phase == cell.Active
	})
	var id string
	r.inspect(func(c *cell.Cell) { id = c.Self().String() })
	set("spread.before")
	if err := os.RemoveAll(r.options.Directory); err != nil {
		t.Log(err) // it is being filled again
	}
	if err := os.RemoveAll(filepath.Dir(r.options.Socket)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both alarms over the socket", func() bool {
		client, err := uds.Dial(r.options.Socket)
		if err != nil {
			return false
		}
		defer client.Close()
		raw, err := client.Do(uds.CodeStatus, []byte{0})
		if err != nil {
			return false
		}
		var status uds.Status
		if err := json.Unmarshal(raw, &status); err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, alarm := range status.Alarms {
			if alarm.Severity == "critical" && (strings.Contains(alarm.Text, "written again") || strings.Contains(alarm.Text, "made again")) {
				found++
			}
		}
		return found == 2 && status.NeedsHuman
	})
	set("spread.after")
	r.stop()
	r.start()
	r.inspect(func(c *cell.Cell) {
		if c.Self().String() != id {
			t.Errorf("%s has become %v", id, c.Self())
		}
		for _, key := range []string{"spread.before", "spread.after"} {
			if _, found := c.Store().Get([]byte(key)); !found {
				t.Errorf("%s is lost", key)
			}
		}
	})
}
