package sim

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// inVersion counts what is sent in each version of the protocol.
func inVersion(w *World) *[256]int {
	counts := new([256]int)
	w.AddChecker(&Checker{Name: "count", Datagram: func(_ *World, _, _ *Node, datagram []byte) error {
		if !wire.Type(datagram[1]).Joining() {
			counts[datagram[0]]++
		}
		return nil
	}})
	return counts
}

// metric returns one counter of a cell.
func metric(t *testing.T, n *Node, name string) (value float64) {
	t.Helper()
	n.Command(cell.Request{Code: uds.CodeStatus, Payload: []byte{1}}, func(r cell.Response) {
		var status uds.Status
		if err := json.Unmarshal(r.Payload, &status); err != nil {
			t.Fatal(err)
		}
		for _, m := range status.Metrics {
			if m.Name == name {
				value = m.Value
			}
		}
	})
	return value
}

// alarmed reports whether a cell warns of something that contains a text.
func alarmed(t *testing.T, n *Node, text string) (found bool) {
	t.Helper()
	n.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
		var status uds.Status
		if err := json.Unmarshal(r.Payload, &status); err != nil {
			t.Fatal(err)
		}
		for _, alarm := range status.Alarms {
			found = found || strings.Contains(alarm.Text, text)
		}
	})
	return found
}

// A running cluster is upgraded cell by cell while operators write and 5 % of the datagrams are lost, then
// taken back to the old version: no instance is touched, nobody is taken for dead, every write is everywhere.
func TestF26_D12_RollingUpgradeThereAndBack(t *testing.T) {
	for _, seed := range seeds(4) {
		w := form(t, Options{Seed: seed, Cells: 5, Network: NetworkOptions{Loss: 0.05, DelayMax: 5 * time.Millisecond}})
		for _, c := range Checkers() {
			w.AddChecker(c)
		}
		counts := inVersion(w)
		run(t, w, 15*time.Second)
		w.Node(0).Set("spread.web", spec(t, 4, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 20*time.Second, "4 replicas", func() bool { return running(w) == 4 })
		run(t, w, 15*time.Second)
		for round, versions := range []wire.Versions{NextVersions, wire.Spoken} {
			for i, n := range w.Nodes() {
				w.change(n, versions)
				run(t, w, 3*time.Second)
				key := "spread.x" + string(rune('a'+round)) + string(rune('0'+i))
				w.Node((i+2)%5).Set(key, spec(t, 0, "/bin/v"), uds.ExpectAny, nil)
				until(t, w, 40*time.Second, key+" everywhere", func() bool {
					for _, m := range w.Nodes() {
						if _, v := value(m, key); v != string(spec(t, 0, "/bin/v")) {
							return false
						}
					}
					return true
				})
				run(t, w, 7*time.Second)
			}
			run(t, w, 2*time.Minute)
			*counts = [256]int{}
			run(t, w, 20*time.Second)
			if other := wire.Version + wire.Version + 1 - versions.Max; counts[versions.Max] == 0 || counts[other] != 0 {
				t.Fatalf("seed %d: all cells speak up to %d, sent were %d in version %d and %d in %d", seed,
					versions.Max, counts[versions.Max], versions.Max, counts[other], other)
			}
		}
		for _, n := range w.Nodes() {
			if n.Host().Stops != 0 || n.Host().Starts != len(n.Running()) {
				t.Errorf("seed %d: n%d: %d starts, %d stops", seed, n.Index, n.Host().Starts, n.Host().Stops)
			}
		}
		if running(w) != 4 || !settled(w) {
			t.Errorf("seed %d: %d instances, states equal: %v", seed, running(w), settled(w))
		}
	}
}

// Half of the cluster speaks the next version: equal state, equal plans, and each pair the greatest version
// that both speak. What the newer contacts say beyond that is skipped by the older cells, kept and passed on.
func TestF26_D12_MixedVersionsConverge(t *testing.T) {
	for _, seed := range seeds(5) {
		w := world(t, Options{Seed: seed, Cells: 6})
		for i, n := range w.Nodes() {
			if i%2 == 1 {
				n.versions = NextVersions
			}
		}
		if err := w.Form(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		for _, c := range Checkers() {
			w.AddChecker(c)
		}
		counts := inVersion(w)
		run(t, w, 15*time.Second)
		w.Node(1).Set("spread.web", spec(t, 5, "/bin/a"), uds.ExpectAny, nil)
		until(t, w, 15*time.Second, "5 replicas", func() bool { return running(w) == 5 })
		run(t, w, 2*time.Minute)
		if !settled(w) || counts[1] == 0 || counts[2] == 0 || counts[0] != 0 {
			t.Fatalf("seed %d: equal %v, %d datagrams of version 1, %d of version 2", seed, settled(w), counts[1], counts[2])
		}
		for _, n := range w.Nodes() {
			register, _ := n.cell.Store().Get([]byte(state.ContactKey(w.Node(3).ID())))
			raw, _ := register.Live()
			contact, err := state.ParseCellContact(raw)
			if err != nil || contact.VersionMax != NextVersions.Max || contact.Features != nextFeature ||
				!strings.HasSuffix(string(raw), string(nextContact)) {
				t.Fatalf("seed %d: n%d knows %+v of n3, %v", seed, n.Index, contact, err)
			}
			if dropped := metric(t, n, "colloid_datagrams_other_version_total"); n.Index%2 == 0 && dropped > 20 {
				t.Errorf("seed %d: n%d dropped %v datagrams of the version it does not speak", seed, n.Index, dropped)
			}
		}
	}
}

// An operator downgrades one cell: the others go on in the version that it no longer speaks until they hear it.
func TestF26_DowngradedCellIsHeardBeforeItsContact(t *testing.T) {
	for _, seed := range seeds(5) {
		w := world(t, Options{Seed: seed, Cells: 3})
		for _, n := range w.Nodes() {
			n.versions = NextVersions
		}
		if err := w.Form(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		run(t, w, 20*time.Second)
		w.change(w.Node(1), wire.Spoken)
		run(t, w, time.Second)
		until(t, w, 5*time.Second, "active again", func() bool { return phases(w) == 3 })
		run(t, w, 30*time.Second)
		if !settled(w) {
			t.Fatalf("seed %d: states differ", seed)
		}
	}
}

// Cells without a version in common say so instead of staying silent, and send nothing that cannot be read.
func TestF26_NoCommonVersionIsAnAlarm(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 4})
	run(t, w, 20*time.Second)
	for i := range 4 { // the packages of two releases at once: the cells of the first round are cut off
		w.change(w.Node(i), wire.Versions{Min: wire.Version, Max: wire.Version + 1})
		run(t, w, 10*time.Second)
	}
	w.change(w.Node(3), wire.Versions{Min: wire.Version + 1, Max: wire.Version + 2})
	run(t, w, 30*time.Second)
	if alarmed(t, w.Node(0), "protocol versions") {
		t.Fatal("an alarm although both speak one version")
	}
	w.change(w.Node(2), wire.Spoken)
	run(t, w, time.Minute)
	for _, pair := range [][2]int{{2, 3}, {3, 2}} {
		if n := w.Node(pair[0]); !alarmed(t, n, w.Node(pair[1]).ID().String()+" speaks protocol versions") {
			t.Errorf("n%d does not say that it cannot talk to n%d", pair[0], pair[1])
		}
	}
	if metric(t, w.Node(2), "colloid_messages_no_version_total") == 0 {
		t.Error("nothing was withheld")
	}
	// The operator finishes the upgrade: the cluster is whole again.
	w.change(w.Node(2), wire.Versions{Min: wire.Version, Max: wire.Version + 1})
	until(t, w, 2*time.Minute, "whole again", func() bool { return w.Formed() && settled(w) })
	if alarmed(t, w.Node(2), "protocol versions") {
		t.Error("the alarm stays")
	}
}

// A joiner whose versions do not reach the cluster's is told so.
func TestF26_JoinerOfAnotherVersionIsToldSo(t *testing.T) {
	for _, test := range []struct {
		cluster, joiner wire.Versions
		joins           bool
	}{
		{wire.Versions{Min: 2, Max: 3}, wire.Versions{Min: 1, Max: 1}, false},
		{wire.Versions{Min: 1, Max: 1}, wire.Versions{Min: 2, Max: 3}, false},
		{wire.Versions{Min: 2, Max: 3}, wire.Versions{Min: 1, Max: 2}, true},
		{wire.Versions{Min: 1, Max: 2}, wire.Versions{Min: 2, Max: 3}, true},
	} {
		w := world(t, Options{Seed: 1, Cells: 2})
		w.Node(0).versions, w.Node(1).versions = test.cluster, test.cluster
		if err := w.Form(30 * time.Second); err != nil {
			t.Fatal(err)
		}
		joiner := w.AddNode()
		joiner.versions = test.joiner
		joiner.Boot()
		run(t, w, time.Second)
		var outcome *cell.Response
		joiner.connect(w.Node(0), false, func(r cell.Response) { outcome = &r })
		run(t, w, 20*time.Second)
		switch {
		case outcome == nil:
			t.Errorf("%v: no outcome", test)
		case test.joins != (outcome.Status == uds.OK):
			t.Errorf("%v: %v %s", test, outcome.Status, outcome.Text)
		case !test.joins && !strings.Contains(outcome.Text, "upgrade the older one"):
			t.Errorf("%v: refused with %q", test, outcome.Text)
		}
		if test.joins {
			until(t, w, time.Minute, "in step", func() bool { return w.Formed() && settled(w) })
		}
	}
}

// tell delivers a register to a cell as a member with the given id would, which is no machine of the world.
func tellRegister(w *World, from wire.CellID, to *Node, key string, sequence uint64, value, context []byte) {
	dot := wire.Dot{Actor: from, Sequence: sequence}
	record := wire.Record{KeyHash: to.cell.Store().Hash([]byte(key)), Name: []byte(key), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, value), Context: withDot(context, dot)}
	payload := wire.AppendDelta(nil, &record)
	header := wire.Header{Type: wire.TypeDelta, PayloadLength: uint16(len(payload)), Sender: from, Nonce: uint32(sequence)}
	sealer := seal.NewSealer(to.disk.cluster.Key, from, uint32(sequence>>wire.CounterBits))
	w.Inject(netip.MustParseAddrPort("192.0.2.9:12421"), to,
		sealer.Seal(append(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header), payload...)))
}

// withDot adds a dot to a context, in order.
func withDot(context []byte, dot wire.Dot) (out []byte) {
	added := false
	for ; len(context) > 0; context = context[wire.DotSize:] {
		other := wire.DotAt(context)
		if !added && dot.Actor <= other.Actor {
			out, added = wire.AppendDot(out, dot), true
		}
		if other.Actor != dot.Actor {
			out = wire.AppendDot(out, other)
		}
	}
	if !added {
		out = wire.AppendDot(out, dot)
	}
	return out
}

// A field of a contact that must not be overlooked makes the cell unreadable to those that do not know it,
// and they say why. One that may be overlooked is skipped (TestF26_D12_MixedVersionsConverge).
func TestD12_CriticalFieldOfAContactIsRejectedVisibly(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 20*time.Second)
	const stranger = wire.CellID(77)
	key := state.ContactKey(stranger)
	contact := state.AppendCellContact(nil, state.CellContact{VersionMin: 1, VersionMax: 2, Hostname: "later"})
	tellRegister(w, stranger, w.Node(0), key, 1<<wire.CounterBits|1, append(contact, 200, 1, 9), nil)
	run(t, w, 2*time.Second)
	for _, n := range w.Nodes() {
		if register, found := n.cell.Store().Get([]byte(key)); !found || register.EntryCount() != 1 {
			t.Errorf("n%d does not keep and pass on what it cannot read", n.Index)
		}
		if !alarmed(t, n, stranger.String()+" demands what this version does not know") {
			t.Errorf("n%d says nothing", n.Index)
		}
		if n.cell.AliveCount() != 3 {
			t.Errorf("n%d counts %d cells", n.Index, n.cell.AliveCount())
		}
	}
}

// A workload with an informative record of a later version runs. One with a critical record is frozen
// everywhere: what runs of it goes on, and status says that an upgrade is missing (F57, F82).
func TestD12_WorkloadsOfALaterVersion(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	informative := []byte{0x70, 2, 'x', 'y'}
	w.Node(0).Set("spread.web", append(spec(t, 2, "/bin/a"), informative...), uds.ExpectAny, nil)
	until(t, w, 15*time.Second, "2 replicas", func() bool { return running(w) == 2 })
	run(t, w, 15*time.Second)
	if _, raw := value(w.Node(2), "spread.web"); !strings.HasSuffix(raw, string(informative)) {
		t.Fatal("the record of a later version was not passed on")
	}
	refused := ""
	critical := append(spec(t, 3, "/bin/b"), 0xf0, 2, 'x', 'y')
	w.Node(0).Set("spread.web", critical, uds.ExpectAny, func(r cell.Response) {
		refused = r.Text
	})
	if !strings.Contains(refused, "unknown to this version") {
		t.Fatalf("a cell answers %q to a record that it does not understand", refused)
	}
	register, _ := w.Node(0).cell.Store().Get([]byte("spread.web"))
	tellRegister(w, 77, w.Node(0), "spread.web", 1<<wire.CounterBits|1, critical, register.Context())
	run(t, w, time.Minute)
	if running(w) != 2 {
		t.Fatalf("%d instances", running(w))
	}
	for _, n := range w.Nodes() {
		if _, raw := value(n, "spread.web"); raw != string(critical) {
			t.Errorf("n%d does not hold the value it cannot read", n.Index)
		}
		if len(n.Running()) > 0 && n.Host().Stops > 0 {
			t.Errorf("n%d stopped something", n.Index)
		}
		if !alarmed(t, n, "spread.web: ") {
			t.Errorf("n%d does not say why spread.web stands still", n.Index)
		}
	}
}

// What a cell drops because it does not know the type is counted for each type, what it drops for its version
// beside that, and neither does anything else.
func TestF26_DropsAreCountedByType(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	n := w.Node(0)
	root := n.cell.Store().Root()
	for i := range 30 {
		datagram := wire.AppendHeader(nil, wire.Header{Type: wire.TypeLeave, Sender: w.Node(1).ID()})
		switch {
		case i < 10:
			datagram[1] = 0x77
		case i < 15:
			datagram[1] = 0x78
		default:
			datagram[0] = 9
		}
		w.Inject(netip.MustParseAddrPort("192.0.2.9:12421"), n, append(datagram, make([]byte, wire.TrailerSize)...))
	}
	run(t, w, 100*time.Millisecond)
	for name, want := range map[string]float64{"messages_unknown_type_77_total": 10, "messages_unknown_type_78_total": 5,
		"datagrams_other_version_total": 15} {
		if got := metric(t, n, "colloid_"+name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if n.cell.Store().Root() != root {
		t.Error("the state changed")
	}
}

// A machine that lost its disk is another cell at the same address. What the others still send to the dead one arrives
// there, in the version that the dead one spoke, and must not tell the new one what they speak.
func TestF26_EarlierIdentityOfAMachineSaysNothingOfVersions(t *testing.T) {
	for _, seed := range seeds(3) {
		w := form(t, Options{Seed: seed, Cells: 4})
		w.AddChecker(checkVersions())
		run(t, w, 15*time.Second)
		w.Apply(Fault{Verb: Wipe, Node: 3, For: 2 * time.Second})
		run(t, w, 30*time.Second)
		w.change(w.Node(3), NextVersions)
		w.change(w.Node(1), NextVersions)
		run(t, w, 4*time.Minute)
	}
}
