package sim

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// warnings are the texts of the alarms of a severity.
func warnings(n *Node, severity string) (texts []string) {
	n.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
		var status uds.Status
		if json.Unmarshal(r.Payload, &status) == nil {
			for _, alarm := range status.Alarms {
				if alarm.Severity == severity {
					texts = append(texts, alarm.Text+": "+alarm.Hint)
				}
			}
		}
	})
	return texts
}

// command gives an operator's command and returns the answer to it once it is there.
func command(t *testing.T, w *World, n *Node, request cell.Request) (answer cell.Response) {
	t.Helper()
	answered := false
	n.Command(request, func(r cell.Response) { answer, answered = r, true })
	until(t, w, time.Minute, "an answer", func() bool { return answered })
	return answer
}

// A cell on its own whose log is damaged stops nothing, lets nobody in and takes no configuration, for as long as
// nobody has said that what is left is all (F157).
func TestF157_LonelyCellDoesNotActOnALoss(t *testing.T) {
	for _, seed := range seeds(5) {
		w := world(t, Options{Seed: seed, Cells: 2})
		n, stranger := w.Node(0), w.Node(1)
		n.Boot()
		stranger.Boot()
		run(t, w, time.Second)
		n.Set("spread.a", Spec(1, "/bin/a"), uds.ExpectAny, nil)
		n.Set("spread.b", Spec(1, "/bin/b"), uds.ExpectAny, nil)
		command(t, w, n, cell.Request{Code: uds.CodeDoor, Payload: []byte{1}})
		run(t, w, 20*time.Second)
		if len(n.Running()) != 2 {
			t.Fatalf("seed %d: runs %v", seed, n.Running())
		}
		n.Kill()
		n.disk.lose()
		for range 2 { // the second start has no damaged file any more
			n.Boot()
			run(t, w, 10*time.Minute)
			if n.cell.Phase() != cell.Booting || len(n.Running()) != 2 {
				t.Fatalf("seed %d: %s, runs %v", seed, n.cell.Phase(), n.Running())
			}
			if texts := strings.Join(warnings(n, "critical"), "\n"); !strings.Contains(texts, "writes.log") ||
				!strings.Contains(texts, "accept-loss") {
				t.Fatalf("seed %d: alarms %q", seed, texts)
			}
			in := cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{n.Address}}
			if r := command(t, w, stranger, in); r.Status == uds.OK {
				t.Fatalf("seed %d: the locked door is open", seed)
			}
			write := uds.WriteRequest{Expect: uds.ExpectAny, Key: "spread.c", Value: Spec(1, "/bin/c")}
			if r := command(t, w, n, cell.Request{Code: uds.CodeSet, Payload: write.Append(nil)}); r.Status == uds.OK {
				t.Fatalf("seed %d: configuration is taken", seed)
			}
			n.Kill()
		}
		n.Boot()
		if r := command(t, w, n, cell.Request{Code: uds.CodeAcceptLoss}); r.Status != uds.OK {
			t.Fatalf("seed %d: %s", seed, r.Text)
		}
		run(t, w, 20*time.Second)
		if n.cell.Phase() != cell.Active || n.disk.lost != "" || len(warnings(n, "critical")) > 0 {
			t.Fatalf("seed %d: %s, lost %q, alarms %q", seed, n.cell.Phase(), n.disk.lost, warnings(n, "critical"))
		}
		if r := command(t, w, n, cell.Request{Code: uds.CodeAcceptLoss}); r.Status == uds.OK {
			t.Fatalf("seed %d: a loss that is none is accepted", seed)
		}
	}
}

// A member whose files are damaged has everything again from the others, and says nothing of it any more (F157).
func TestF157_MemberRecoversFromTheOthers(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		n.Set("spread.a", Spec(3, "/bin/a"), uds.ExpectAny, nil)
		run(t, w, 20*time.Second)
		n.Kill()
		n.disk.lose()
		stops := n.host.Stops
		n.Boot()
		until(t, w, 30*time.Second, "active again", func() bool { return phases(w) == 3 && settled(w) })
		run(t, w, 30*time.Second)
		if entries, _ := value(n, "spread.a"); entries != 1 || n.host.Stops != stops || n.disk.lost != "" {
			t.Fatalf("seed %d: %d entries, %d stops, lost %q", seed, entries, n.host.Stops-stops, n.disk.lost)
		}
		if texts := warnings(n, "critical"); len(texts) > 0 {
			t.Fatalf("seed %d: alarms %q", seed, texts)
		}
	}
}

// A cell on its own that gets a new id, for the files of the old one are damaged, has nobody to ask and needs nobody.
func TestF1_LonelyCellWithANewID(t *testing.T) {
	for _, seed := range seeds(5) {
		w := world(t, Options{Seed: seed, Cells: 1})
		n := w.Node(0)
		n.Boot()
		run(t, w, time.Second)
		n.Set("spread.a", Spec(1, "/bin/a"), uds.ExpectAny, nil)
		run(t, w, 20*time.Second)
		former, stops := n.ID(), n.host.Stops
		n.Kill()
		n.disk.renewed = true
		n.Boot()
		run(t, w, 5*time.Second)
		if n.ID() == former || n.cell.Phase() != cell.Active || n.cell.AliveCount() != 1 {
			t.Fatalf("seed %d: %v, %s, %d alive", seed, n.ID(), n.cell.Phase(), n.cell.AliveCount())
		}
		n.Set("spread.b", Spec(1, "/bin/b"), uds.ExpectAny, nil)
		run(t, w, 30*time.Second)
		if len(n.Running()) != 2 || n.host.Stops != stops {
			t.Fatalf("seed %d: runs %v, %d stops", seed, n.Running(), n.host.Stops-stops)
		}
	}
}

// The same in a cluster: what the cell was before does not stay in the list as dead.
func TestF1_MemberWithANewIDRetiresTheOldOne(t *testing.T) {
	for _, seed := range seeds(5) {
		w := form(t, Options{Seed: seed, Cells: 3})
		run(t, w, 15*time.Second)
		n := w.Node(1)
		former := n.ID()
		n.Kill()
		n.disk.renewed = true
		n.Boot()
		until(t, w, time.Minute, "three cells, and the old id is gone", func() bool {
			for _, m := range w.Nodes() {
				register, found := m.cell.Store().Get([]byte(state.StatusKey(former)))
				if !found || m.cell.AliveCount() != 3 {
					return false
				}
				_, raw, _ := register.Latest()
				if status, err := state.ParseCellStatus(raw); err != nil || status.Life != state.Gone {
					return false
				}
			}
			return true
		})
	}
}

// A datagram of its own that comes back proves nothing. One that this cell cannot have sent does, for as long as
// there is further proof (F2, F3).
func TestF2_OwnDatagramThrownBackIsNoProof(t *testing.T) {
	w := form(t, Options{Seed: 1, Cells: 3})
	run(t, w, 15*time.Second)
	n := w.Node(1)
	thief := netip.MustParseAddrPort("192.0.2.7:4000")
	var captured [][]byte
	w.network.tap = func(from, _ *Node, datagram []byte) {
		if from == n && len(captured) < 3000 && wire.Type(datagram[1]) != wire.TypeJoinReply {
			captured = append(captured, append([]byte(nil), datagram...))
		}
	}
	run(t, w, 10*time.Minute)
	for i, datagram := range captured {
		if i%20 == 0 || i > len(captured)-20 {
			w.Inject(thief, n, datagram)
		}
	}
	run(t, w, 5*time.Second)
	if texts := warnings(n, "critical"); len(texts) > 0 {
		t.Fatalf("after %d datagrams: %q", len(captured), texts)
	}
	for _, incarnation := range []uint32{n.disk.incarnation, n.disk.incarnation + 1} {
		twin := seal.NewSealer(n.disk.cluster.Key, n.ID(), incarnation)
		header := wire.Header{Version: wire.Spoken.Max, Type: wire.TypePing, Sender: n.ID(), Nonce: 7}
		for range 3 { // the counters of a twin that runs for as long
			w.Inject(thief, n, twin.Seal(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header)))
		}
		if incarnation > n.disk.incarnation {
			run(t, w, 5*time.Second)
			if texts := warnings(n, "critical"); len(texts) != 1 || !strings.Contains(texts[0], "id of this cell") {
				t.Fatalf("a twin is not noticed: %q", texts)
			}
		}
	}
	run(t, w, 12*time.Minute)
	if texts := warnings(n, "critical"); len(texts) > 0 {
		t.Fatalf("the alarm stays without proof: %q", texts)
	}
}

// A machine that sends back whatever it gets is no colloid, and not this cell.
func TestConnectToAnEcho(t *testing.T) {
	w := world(t, Options{Seed: 1, Cells: 1})
	n := w.Node(0)
	n.Boot()
	run(t, w, time.Second)
	echo := netip.MustParseAddrPort("192.0.2.7:4000")
	var request []byte
	var answer cell.Response
	w.network.foreignTap = func(to netip.AddrPort, datagram []byte) {
		if to == echo {
			request = append([]byte(nil), datagram...)
		}
	}
	n.Command(cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{echo}}, func(r cell.Response) { answer = r })
	n.Input(func(now clock.Instant) { n.cell.Receive(now, echo, request) })
	if !strings.Contains(answer.Text, "sends back") || strings.HasPrefix(answer.Text, "that is this cell itself") {
		t.Errorf("%q", answer.Text)
	}
	n.Command(cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{n.Address}}, func(r cell.Response) { answer = r })
	run(t, w, 2*time.Second)
	if !strings.HasPrefix(answer.Text, "that is this cell itself") {
		t.Errorf("%q", answer.Text)
	}
}
