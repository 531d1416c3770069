package cell_test

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/join"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// The tests of this file talk to cells as the command line does. The cells live in the simulator, where
// disks take time and networks lose datagrams.

// ask sends one request and lets virtual time pass until it is answered.
func ask(t *testing.T, w *sim.World, n *sim.Node, request cell.Request) cell.Response {
	t.Helper()
	var got *cell.Response
	n.Command(request, func(r cell.Response) {
		if got != nil {
			t.Fatalf("command 0x%02x answered twice", request.Code)
		}
		got = &r
	})
	if _, ok := w.Until(2*time.Minute, func() bool { return got != nil }); !ok {
		t.Fatalf("command 0x%02x was not answered", request.Code)
	}
	return *got
}

func write(code uds.Code, key string, value []byte, expect uint64) cell.Request {
	return cell.Request{Code: code, Payload: uds.WriteRequest{Expect: expect, Key: key, Value: value}.Append(nil)}
}

func spec(t *testing.T, replicas int) []byte {
	t.Helper()
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: uint16(replicas), Image: "/bin/web",
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func cluster(t *testing.T, options sim.Options) *sim.World {
	t.Helper()
	w := sim.New(options)
	if err := w.Form(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.Run(time.Second)
	return w
}

func digest(t *testing.T, r cell.Response) uint64 {
	t.Helper()
	if r.Status != uds.OK || len(r.Payload) != 8 {
		t.Fatalf("write: status %d, %s", r.Status, r.Text)
	}
	return binary.BigEndian.Uint64(r.Payload)
}

func entries(t *testing.T, raw []byte) uds.Entries {
	t.Helper()
	var e uds.Entries
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// A write supersedes only what its author saw: whoever read before another write gets CONFLICT with the
// present values instead of erasing them (F55, SAFE-4).
func TestF55_WriteNamesWhatItSupersedes(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 2})
	a, b := w.Node(0), w.Node(1)
	first := digest(t, ask(t, w, a, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
	w.Run(time.Second)
	second := digest(t, ask(t, w, b, write(uds.CodeSet, "spread.web", spec(t, 2), first)))
	w.Run(time.Second)
	for _, code := range []uds.Code{uds.CodeSet, uds.CodeResolve, uds.CodeDelete} {
		r := ask(t, w, a, write(code, "spread.web", spec(t, 3), first))
		if r.Status != uds.Conflict {
			t.Fatalf("command 0x%02x with an old digest: status %d %s", code, r.Status, r.Text)
		}
		if e := entries(t, r.Payload); len(e.Entries) != 1 || !strings.Contains(e.Entries[0].Text, "replicas=2") {
			t.Fatalf("the answer does not show what is there: %+v", e)
		}
	}
	if r := ask(t, w, a, write(uds.CodeSet, "spread.web", spec(t, 3), uds.ExpectAbsent)); r.Status != uds.Conflict {
		t.Fatalf("expected absent: status %d", r.Status)
	}
	if r := ask(t, w, a, write(uds.CodeResolve, "spread.web", spec(t, 3), uds.ExpectAny)); r.Errno != uds.ErrorInvalid {
		t.Fatalf("resolve without expect: %d %s", r.Status, r.Text)
	}
	digest(t, ask(t, w, a, write(uds.CodeDelete, "spread.web", nil, second)))
	if r := ask(t, w, a, write(uds.CodeDelete, "spread.web", nil, uds.ExpectAny)); r.Status != uds.NotFound {
		t.Fatalf("second delete: status %d", r.Status)
	}
	digest(t, ask(t, w, a, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
}

// Two writes of one key at the same moment through one cell: the second is told, not lost (F55).
func TestF55_SecondWriteDoesNotPassTheFirst(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 2, Cells: 1})
	var first, second *cell.Response
	w.Node(0).Command(write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent), func(r cell.Response) { first = &r })
	w.Node(0).Command(write(uds.CodeSet, "spread.web", spec(t, 2), uds.ExpectAbsent), func(r cell.Response) { second = &r })
	w.Until(time.Second, func() bool { return first != nil && second != nil })
	if first.Status != uds.OK || second.Status == uds.OK {
		t.Fatalf("first %+v, second %+v", first, second)
	}
}

// A cell that has not caught up refuses to write (F56).
func TestF56_NoWriteBeforeTheFirstSync(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 3, Cells: 2})
	w.Run(15 * time.Second)
	n := w.Node(1)
	n.Kill()
	w.Isolate(n)
	w.Run(time.Second)
	n.Boot()
	w.Run(time.Second)
	r := ask(t, w, n, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent))
	if r.Errno != uds.ErrorBusy || !strings.Contains(r.Text, "syncing") {
		t.Fatalf("%d %s", r.Errno, r.Text)
	}
	w.Heal()
	w.Run(70 * time.Second)
	digest(t, ask(t, w, n, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
}

// What a write may be: everything else is refused with a reason, and nothing is changed.
func TestF82_F61_WritesAreChecked(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 4, Cells: 1})
	n := w.Node(0)
	before := n.Cell().Store().Root()
	cases := []struct {
		key    string
		value  []byte
		reason string
	}{
		{"", spec(t, 1), "1 to 96"},
		{strings.Repeat("x", 97), spec(t, 1), "1 to 96"},
		{"health." + n.ID().String() + ".status", spec(t, 1), "written by the cells"},
		{"ep." + n.ID().String() + ".web", spec(t, 1), "written by the cells"},
		{"cluster.door", []byte("locked"), "written by the cells"},
		{"note.a", []byte("x"), "no workload key"},
		{"spread.UPPER", spec(t, 1), "a-z"},
		{"spread.a/b", spec(t, 1), "a-z"},
		{"spread.a\x00", spec(t, 1), "a-z"},
		{"stateful.web", spec(t, 1), "stateful"},
		{"wasm.web", spec(t, 1), "wasm"},
		{"spread.web", make([]byte, 513), "at most 512"},
		{"spread.web", []byte{9, 9, 9}, "spread.web"},
		{"spread.web", nil, "delete"},
	}
	for _, c := range cases {
		r := ask(t, w, n, write(uds.CodeSet, c.key, c.value, uds.ExpectAny))
		if r.Status != uds.Error || r.Errno != uds.ErrorInvalid || !strings.Contains(r.Text, c.reason) {
			t.Errorf("%q, %d bytes: status %d, %q: want %q", c.key, len(c.value), r.Status, r.Text, c.reason)
		}
	}
	for _, payload := range [][]byte{nil, {1, 2, 3}, append(make([]byte, 8), 200)} {
		if r := ask(t, w, n, cell.Request{Code: uds.CodeSet, Payload: payload}); r.Errno != uds.ErrorInvalid {
			t.Errorf("payload %x: %+v", payload, r)
		}
	}
	if n.Cell().Store().Root() != before {
		t.Fatal("a refused write changed the store")
	}
}

// Commands that are malformed or unknown are answered, whatever they hold.
func TestF136_EveryRequestIsAnswered(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 5, Cells: 1})
	for code := range 256 {
		if uds.Code(code) == uds.CodeLeave {
			continue // two bytes of it are a valid command
		}
		for _, payload := range [][]byte{nil, {0}, {255}, []byte("spread.x"), make([]byte, 300)} {
			ask(t, w, w.Node(0), cell.Request{Code: uds.Code(code), Payload: payload})
		}
	}
}

// A cell with configuration of its own does not join another cluster, unless it is told to merge; then
// what differs is a CONFLICT, and nothing is lost (F7, SAFE-4).
func TestF7_ForeignClusterIsRefused(t *testing.T) {
	w := sim.New(sim.Options{Seed: 6, Cells: 2})
	a, b := w.Node(0), w.Node(1)
	a.Boot()
	b.Boot()
	w.Run(time.Second)
	digest(t, ask(t, w, a, write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
	digest(t, ask(t, w, b, write(uds.CodeSet, "spread.web", spec(t, 2), uds.ExpectAbsent)))
	digest(t, ask(t, w, b, write(uds.CodeSet, "spread.own", spec(t, 3), uds.ExpectAbsent)))
	connect := cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{a.Address}}
	r := ask(t, w, b, connect)
	if r.Errno != uds.ErrorExists || !strings.Contains(r.Text, "--merge") {
		t.Fatalf("%d %s", r.Errno, r.Text)
	}
	if a.Cell().ClusterID() == b.Cell().ClusterID() {
		t.Fatal("refused, and yet joined")
	}
	connect.Merge = true
	if r := ask(t, w, b, connect); r.Status != uds.OK {
		t.Fatalf("merge: %s", r.Text)
	}
	w.Run(5 * time.Second)
	for _, n := range w.Nodes() {
		if n.Cell().ClusterID() != a.Cell().ClusterID() {
			t.Fatal("not in one cluster")
		}
		if r := ask(t, w, n, cell.Request{Code: uds.CodeGet, Payload: []byte("spread.own")}); r.Status != uds.OK {
			t.Fatalf("what was brought along is missing: %d", r.Status)
		}
		e := entries(t, ask(t, w, n, cell.Request{Code: uds.CodeGet, Payload: []byte("spread.web")}).Payload)
		if len(e.Entries) != 2 {
			t.Fatalf("want both values of spread.web, have %+v", e.Entries)
		}
	}
	connect.Merge = false
	if r := ask(t, w, b, connect); r.Status != uds.OK {
		t.Fatalf("connecting to the own cluster: %s", r.Text)
	}
}

// Nobody answers at the address: one line says so, and the cell goes on as it was.
func TestBOOT2_ConnectToNobody(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 7, Cells: 1})
	id := w.Node(0).Cell().ClusterID()
	r := ask(t, w, w.Node(0), cell.Request{
		Code: uds.CodeConnect, Addresses: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:12421")},
	})
	if r.Errno != uds.ErrorTimeout || !strings.Contains(r.Text, "192.0.2.1:12421") {
		t.Fatalf("%d %s", r.Errno, r.Text)
	}
	if w.Node(0).Cell().ClusterID() != id {
		t.Fatal("the cluster changed")
	}
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 1), uds.ExpectAbsent)))
}

// A locked cluster takes only who has the key (decision D1).
func TestD1_LockedDoor(t *testing.T) {
	w := sim.New(sim.Options{Seed: 8, Cells: 4})
	for _, n := range w.Nodes() {
		n.Boot()
	}
	w.Run(time.Second)
	var door uds.DoorReply
	r := ask(t, w, w.Node(0), cell.Request{Code: uds.CodeDoor, Payload: []byte{1}})
	if err := json.Unmarshal(r.Payload, &door); err != nil || !door.Locked || door.Key == "" {
		t.Fatalf("lock: %+v %v", door, err)
	}
	key, err := join.ParseDoorKey(door.Key)
	if err != nil {
		t.Fatal(err)
	}
	wrong := seal.Key{1, 2, 3}
	seed := []netip.AddrPort{w.Node(0).Address}
	for _, c := range []struct {
		key    *seal.Key
		reason string
	}{{nil, "locked"}, {&wrong, "key"}} {
		r := ask(t, w, w.Node(1), cell.Request{Code: uds.CodeConnect, Addresses: seed, JoinKey: c.key})
		if r.Status != uds.Error || !strings.Contains(r.Text, c.reason) {
			t.Fatalf("key %v: %d %s", c.key != nil, r.Status, r.Text)
		}
	}
	if r := ask(t, w, w.Node(1), cell.Request{Code: uds.CodeConnect, Addresses: seed, JoinKey: &key}); r.Status != uds.OK {
		t.Fatalf("right key: %s", r.Text)
	}
	w.Run(2 * time.Second)
	// The new member locks out strangers as well.
	r = ask(t, w, w.Node(2), cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{w.Node(1).Address}})
	if r.Status != uds.Error {
		t.Fatal("a stranger came in through the second cell")
	}
	ask(t, w, w.Node(1), cell.Request{Code: uds.CodeDoor, Payload: []byte{0}})
	w.Run(time.Second)
	if r := ask(t, w, w.Node(3), cell.Request{Code: uds.CodeConnect, Addresses: seed}); r.Status != uds.OK {
		t.Fatalf("after unlock: %s", r.Text)
	}
}

// Only who is dead or leaving can be forgotten, and nobody forgets oneself.
func TestForgetIsForTheDead(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 9, Cells: 3})
	forget := func(id wire.CellID) cell.Response {
		return ask(t, w, w.Node(0), cell.Request{
			Code: uds.CodeForget, Payload: binary.BigEndian.AppendUint64(nil, uint64(id)),
		})
	}
	victim := w.Node(2)
	if r := forget(victim.ID()); r.Errno != uds.ErrorInvalid || !strings.Contains(r.Text, "alive") {
		t.Fatalf("forgot a living cell: %+v", r)
	}
	if r := forget(w.Node(0).ID()); r.Errno != uds.ErrorInvalid {
		t.Fatalf("forgot itself: %+v", r)
	}
	if r := forget(12345); r.Status != uds.NotFound {
		t.Fatalf("forgot a stranger: %+v", r)
	}
	victim.PowerOff()
	w.Run(15 * time.Second)
	if r := forget(victim.ID()); r.Status != uds.OK {
		t.Fatalf("forget: %+v", r)
	}
	w.Run(2 * time.Second)
	for _, n := range w.Nodes()[:2] {
		if n.Cell().AliveCount() != 2 {
			t.Fatalf("n%d counts %d", n.Index, n.Cell().AliveCount())
		}
	}
}

// R = 0 is scale-to-zero, not deletion; more replicas than cells is reported, not hidden (F78).
func TestF78_StatusTellsWhatIsMissing(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 10, Cells: 2})
	w.Run(15 * time.Second)
	state := func() uds.WorkloadStatus {
		var status uds.Status
		r := ask(t, w, w.Node(0), cell.Request{Code: uds.CodeStatus, Payload: []byte{1}})
		if err := json.Unmarshal(r.Payload, &status); err != nil {
			t.Fatal(err)
		}
		if len(status.Workloads) != 1 || len(status.Metrics) == 0 {
			t.Fatalf("%+v", status)
		}
		return status.Workloads[0]
	}
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 5), uds.ExpectAny)))
	w.Run(5 * time.Second)
	if s := state(); s.State != "unsatisfied" || s.Ready != 2 || s.Serving != 2 || s.Replicas != 5 || s.Reason == "" {
		t.Fatalf("%+v", s)
	}
	// While another version starts, the old copies serve and count.
	next, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Replicas: 2, Image: "/bin/next"})
	if err != nil {
		t.Fatal(err)
	}
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", next, uds.ExpectAny)))
	if s := state(); s.Ready != 0 || s.Serving != 2 {
		t.Fatalf("%+v", s)
	}
	digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 0), uds.ExpectAny)))
	w.Run(5 * time.Second)
	if s := state(); s.State != "ok" || s.Ready != 0 || len(s.Instances) != 0 {
		t.Fatalf("%+v", s)
	}
}
