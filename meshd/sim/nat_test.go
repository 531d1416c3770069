package sim

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// behindAll is one or two machines of each kind behind two that are public.
func behindAll(each int) []NATKind {
	kinds := []NATKind{Public, Public}
	for k := FullCone; k < NATKinds; k++ {
		for range each {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func formBehind(t *testing.T, seed uint64, kinds []NATKind, options NetworkOptions) *World {
	t.Helper()
	w := New(Options{Seed: seed, Cells: len(kinds), NAT: kinds, Network: options})
	if err := w.Form(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	return w
}

// Machines with addresses of IP version 6 need no translation, but their firewalls let in nothing but answers: two of
// them go direct all the same, since both send at once, at the first attempt, and stay so after their firewalls have
// forgotten everything (F33, F35).
func TestF33_F35_Version6BehindFirewalls(t *testing.T) {
	for _, seed := range seeds(3) {
		w := New(Options{Seed: seed, Cells: 6, NAT: []NATKind{Public, Public, Firewall, Firewall, Firewall, Firewall}, Version6: true})
		if err := w.Form(2 * time.Minute); err != nil {
			t.Fatal(err)
		}
		run(t, w, 60*time.Second)
		check := func(attempts int) {
			for _, a := range w.Nodes() {
				want := map[NATKind]wire.Reach{Public: wire.ReachPublic, Firewall: wire.ReachPunched}[a.NAT]
				if f := a.cell.Finding(); f.Reach != want || f.Translated || f.Scope != "global IPv6" {
					t.Errorf("seed %d: n%d, %v: %+v", seed, a.Index, a.NAT, f)
				}
				for _, b := range w.Nodes() {
					report, _ := a.cell.PathTo(b.ID())
					if a != b && (report.Kind != nat.KindDirect && report.Kind != nat.KindPunched || report.Attempts > attempts) {
						t.Errorf("seed %d: n%d (%v) to n%d (%v): %+v", seed, a.Index, a.NAT, b.Index, b.NAT, report)
					}
				}
			}
		}
		check(1)
		for _, n := range w.Nodes()[2:] {
			n.Rebind()
		}
		run(t, w, 45*time.Second)
		check(3)
	}
}

// The class comes from dial-backs and from votes of observers, per scope (F31, F32): a machine that joins a
// cluster which is there already is classified as what its router is, and everybody else reads in its contact at
// which address the others see it, if that is not its own (BOOT-4).
func TestBOOT4_F31_F32_ClassOfEveryRouter(t *testing.T) {
	want := map[NATKind]wire.Reach{
		Public: wire.ReachPublic, FullCone: wire.ReachPublic, OneToOne: wire.ReachPublic,
		RestrictedCone: wire.ReachPunched, PortRestricted: wire.ReachPunched, NoHairpin: wire.ReachPunched,
		DoubleNAT: wire.ReachPunched, Symmetric: wire.ReachRelayed, Blocked: wire.ReachUnknown,
		Firewall: wire.ReachPunched,
	}
	for kind := Public; kind < NATKinds; kind++ {
		w := formBehind(t, uint64(kind)+1, []NATKind{Public, Public, Public}, NetworkOptions{})
		run(t, w, 30*time.Second)
		w.options.NAT = append(w.options.NAT, kind)
		n := w.AddNode()
		n.Boot()
		w.rejoin(n)
		run(t, w, 40*time.Second)
		finding := n.cell.Finding()
		if finding.Reach != want[kind] {
			t.Errorf("%v: %v (%+v), want %v", kind, finding.Reach, finding, want[kind])
		}
		if homes := len(n.cell.Homes()); (want[kind] == wire.ReachPublic) != (homes == 0) {
			t.Errorf("%v: %d homes", kind, homes)
		}
		raw, _ := w.Node(0).cell.Store().Get([]byte(state.ContactKey(n.ID())))
		value, _ := raw.Live()
		contact, err := state.ParseCellContact(value)
		seen := slices.ContainsFunc(contact.Candidates, func(c state.Candidate) bool {
			return c.Address.Addr() == finding.Observed.Addr()
		})
		if err != nil || finding.Translated != (kind != Public && kind != Firewall) || !seen {
			t.Errorf("%v: seen at %v, its contact says %v (%v)", kind, finding.Observed, contact.Candidates, err)
		}
	}
}

// A cell behind a symmetric router is a full member: ten idle minutes see no write about anybody's life, and
// then a write reaches it within two seconds (F36).
func TestF36_IdleRelayedCellStaysAMember(t *testing.T) {
	kinds := []NATKind{Public, Public, Public, Symmetric, Symmetric, Blocked, PortRestricted}
	for _, seed := range seeds(4) {
		w := formBehind(t, seed, kinds, NetworkOptions{})
		run(t, w, 30*time.Second)
		writes := 0
		w.AddChecker(&Checker{Name: "idle", Write: func(_ *World, n *Node, record *wire.Record) error {
			if _, field, ok := state.HealthKey(string(record.Name)); ok && (field == "status" || field == "contact") {
				writes++
				return fmt.Errorf("n%d writes %s", n.Index, record.Name)
			}
			return nil
		}})
		before, _ := w.Traffic()
		run(t, w, 10*time.Minute)
		after, _ := w.Traffic()
		rate := float64(after-before) / 600 / float64(len(kinds))
		t.Logf("idle: %.1f datagrams per cell and second", rate)
		if writes != 0 || rate > 10 {
			t.Errorf("%d writes, %.1f datagrams per cell and second while idle", writes, rate)
		}
		for i, n := range w.Nodes() {
			key := fmt.Sprintf("spread.k%d", i)
			n.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 2*time.Second, key+" everywhere", func() bool { return heldBy(w, key) == len(kinds) })
		}
	}
}

// A router that forgets its mappings, or is switched off for some seconds, costs its cell at most 10 s, and
// nobody is declared dead because of a mapping (F36).
func TestF36_RebindingAndRebootRecover(t *testing.T) {
	slowest := time.Duration(0)
	defer func() { t.Logf("slowest write behind a router that forgot or came back: %v", slowest) }()
	for _, kind := range []NATKind{FullCone, PortRestricted, Symmetric, DoubleNAT} {
		for _, seed := range seeds(3) {
			w := formBehind(t, seed, []NATKind{Public, Public, Public, kind, PortRestricted, Symmetric}, NetworkOptions{})
			deaths := countDeaths(w)
			run(t, w, 45*time.Second)
			n := w.Node(3)
			for round := range 6 {
				if round%2 == 0 {
					n.Rebind()
				} else {
					n.setRouters(true)
					run(t, w, 2*time.Second)
					n.setRouters(false)
				}
				key := fmt.Sprintf("spread.k%d", round)
				w.Node(round%3).Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				took := until(t, w, 10*time.Second, key+" behind the router", func() bool {
					entries, _ := value(n, key)
					return entries > 0
				})
				slowest = max(slowest, took)
				key = fmt.Sprintf("spread.r%d", round)
				n.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				until(t, w, 10*time.Second, key+" everywhere", func() bool { return heldBy(w, key) == 6 })
				run(t, w, 40*time.Second)
			}
			// A full cone is reached by anybody, so anybody accuses it: two seconds without router and five
			// accusers are a death like any other.
			if len(*deaths) != 0 && kind != FullCone {
				t.Errorf("%v, seed %d: declared dead: %v", kind, seed, *deaths)
			}
		}
	}
}

// A home dies: its clients go on through the other one, find a new one, and nobody takes them for dead.
// Without any public cell left but one, everybody is still reached through it (AVAIL-5).
func TestAVAIL5_F36_OnePublicCellIsEnough(t *testing.T) {
	for _, seed := range seeds(3) {
		w := formBehind(t, seed, []NATKind{Public, Public, Public, Symmetric, PortRestricted, Symmetric}, NetworkOptions{})
		run(t, w, 45*time.Second)
		var wrong []string
		w.AddChecker(&Checker{Name: "dead", Write: func(w *World, n *Node, record *wire.Record) error {
			id, field, ok := state.HealthKey(string(record.Name))
			_, raw, _, _ := wire.NextEntry(record.Entries)
			status, err := state.ParseCellStatus(raw)
			if ok && field == "status" && err == nil && status.Life == state.Dead {
				for _, target := range w.Nodes() {
					if target.ID() == id && target.Up() {
						wrong = append(wrong, fmt.Sprintf("n%d by n%d at %v", target.Index, n.Index, w.Now()))
					}
				}
			}
			return nil
		}})
		for i := range 2 {
			w.Node(i).PowerOff()
			run(t, w, 90*time.Second)
			key := fmt.Sprintf("spread.k%d", i)
			w.Node(3).Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			until(t, w, 3*time.Second, key+" on the living", func() bool { return heldBy(w, key) == 5-i })
		}
		if len(wrong) != 0 {
			t.Errorf("seed %d: declared dead while up: %v", seed, wrong)
		}
		for _, n := range w.Nodes()[3:] {
			for _, other := range w.Nodes()[2:] {
				if report, known := n.cell.PathTo(other.ID()); other != n && (!known || report.Kind == nat.KindNone) {
					t.Errorf("seed %d: %v has no way to %v", seed, n.NAT, other.NAT)
				}
			}
		}
	}
}

// A crash of a relayed cell is found through its homes, by nobody else (F36).
func TestF36_OnlyHomesAccuseARelayedCell(t *testing.T) {
	for _, seed := range seeds(3) {
		w := formBehind(t, seed, []NATKind{Public, Public, Public, Public, Symmetric, Symmetric, PortRestricted}, NetworkOptions{})
		run(t, w, 45*time.Second)
		victim := w.Node(4)
		homes := victim.cell.Homes()
		w.AddChecker(&Checker{Name: "accuse", Write: func(_ *World, n *Node, record *wire.Record) error {
			id, field, ok := state.HealthKey(string(record.Name))
			if ok && field == "status" && id == victim.ID() && n != victim && n.ID() != homes[0] && n.ID() != homes[1] {
				return fmt.Errorf("n%d accuses a relayed cell whose homes are %v", n.Index, homes)
			}
			return nil
		}})
		victim.PowerOff()
		took := until(t, w, 15*time.Second, "dead everywhere", func() bool {
			for _, n := range w.Nodes() {
				if n.Up() && !believesDead(n, victim) {
					return false
				}
			}
			return true
		})
		t.Logf("seed %d: known everywhere after %v", seed, took)
	}
}

// A home that a cell does not reach any more is replaced by one that answers, and nothing is published while
// nobody does (F36).
func TestF36_LostHomeIsReplaced(t *testing.T) {
	for _, kind := range []NATKind{Symmetric, PortRestricted} {
		w := formBehind(t, 3, []NATKind{Public, Public, Public, Public, kind, Symmetric}, NetworkOptions{})
		run(t, w, 45*time.Second)
		n := w.Node(4)
		lost := n.cell.Homes()[0]
		for _, other := range w.Nodes() {
			if other.ID() == lost {
				w.Cut(n, other)
				w.Cut(other, n)
			}
		}
		took := until(t, w, 15*time.Second, "two other homes", func() bool {
			homes := n.cell.Homes()
			return len(homes) == 2 && homes[0] != lost && homes[1] != lost
		})
		t.Logf("%v: replaced after %v", kind, took)
		before := n.cell.Homes()
		n.setRouters(true)
		run(t, w, time.Minute)
		n.setRouters(false)
		run(t, w, 10*time.Second)
		if after := n.cell.Homes(); len(after) != 2 || after[0] != before[0] || after[1] != before[1] {
			t.Errorf("%v: a minute without network changed the homes from %v to %v", kind, before, after)
		}
	}
}

// What comes through a relay teaches nobody an address: nobody is ever looked for where its relay is (F155).
func TestF155_RelayedDatagramsTeachNoAddress(t *testing.T) {
	w := formBehind(t, 1, behindAll(1), NetworkOptions{})
	places := make(map[wire.CellID]map[string]bool) // by cell: where it may be looked for
	for _, n := range w.Nodes() {
		host := n.Address.Addr().String()
		places[n.ID()] = map[string]bool{host: true}
		for r := n.router; r != nil; r = r.outer {
			places[n.ID()][r.external.String()] = true
		}
	}
	for range 60 {
		run(t, w, time.Second)
		for _, n := range w.Nodes() {
			for _, other := range w.Nodes() {
				if at := n.cell.AddressOf(other.ID()); at.IsValid() && !places[other.ID()][at.Addr().String()] {
					t.Fatalf("n%d looks for n%d at %v", n.Index, other.Index, at)
				}
			}
		}
	}
}

// What a cell behind a router says in a stream reaches every other cell, and theirs reach it, whatever is between
// them: straight, through a home of either, or through both (STREAM-3, F36).
func TestSTREAM3_F36_StreamsThroughAnyRouter(t *testing.T) {
	kinds := []NATKind{Public, Public, Public, Symmetric, Symmetric, PortRestricted, Blocked, OneToOne}
	for _, seed := range seeds(3) {
		w := formBehind(t, seed, kinds, NetworkOptions{})
		run(t, w, 30*time.Second)
		for _, from := range w.Nodes() {
			for _, to := range w.Nodes() {
				if from == to {
					continue
				}
				const size = 1 << 20
				took := listen(t, to, wire.StreamLogs)
				begin := w.Now()
				e := dial(t, from, to, wire.StreamLogs, size)
				w.Until(20*time.Second, func() bool { return len(*took) == 1 && (*took)[0].ended })
				if len(*took) != 1 || (*took)[0].got != size {
					t.Errorf("seed %d: %v to %v: accepted %d, wrote %d, reason %v", seed, from.NAT, to.NAT, len(*took), e.wrote, e.reason)
					continue
				}
				if took := w.Now() - begin; took > 3*time.Second {
					t.Errorf("seed %d: %v to %v: 1 MiB took %v", seed, from.NAT, to.NAT, took)
				}
			}
		}
	}
}

// Behind routers, through relays and in relayed streams, nothing that was planted can be read from the wire: the
// configuration, what a stream says, the cluster's key (F17, F36, F151).
func TestF17_F36_NothingIsReadableThroughRelays(t *testing.T) {
	w := formBehind(t, 1, []NATKind{Public, Public, Symmetric, Symmetric, PortRestricted, Blocked}, NetworkOptions{})
	run(t, w, 20*time.Second)
	key := w.Node(0).disk.cluster.Key
	planted := map[string][]byte{
		"the configuration": []byte("planted-in-the-specification"), "the name of a workload": []byte("spread.hidden"),
		"a stream": []byte("planted-in-a-stream-planted-in-a-stream"), "the cluster's key": key[:],
	}
	relayed, bulk := 0, 0
	w.network.tap = func(_, _ *Node, datagram []byte) {
		if wire.IsRelay(datagram) {
			relayed++
		} else if len(datagram) > 1100 {
			bulk++
		}
		for name, secret := range planted {
			if bytes.Contains(datagram, secret) {
				t.Fatalf("a datagram shows %s", name)
			}
		}
	}
	w.Node(2).Set("spread.hidden", Spec(2, "/bin/"+string(planted["the configuration"])), uds.ExpectAny, nil)
	took := listen(t, w.Node(3), wire.StreamLogs)
	e := &talker{t: t, hold: true}
	w.Node(2).Input(func(clock.Instant) {
		s, err := w.Node(2).cell.Streams().Open(w.Node(3).ID(), wire.StreamLogs, []byte("spread.hidden"), nil, e)
		if err != nil {
			t.Fatal(err)
		}
		e.s = s
		for range 1000 {
			if n, err := s.Write(planted["a stream"]); err != nil || n == 0 {
				break
			}
		}
		s.CloseWrite()
	})
	var seen []byte
	w.Until(20*time.Second, func() bool {
		if len(*took) == 1 && (*took)[0].onRead == nil {
			(*took)[0].onRead = func(piece []byte) { seen = append(seen, piece...) }
		}
		return len(*took) == 1 && (*took)[0].ended
	})
	if !bytes.Contains(seen, planted["a stream"]) || len(seen) < 30000 {
		t.Fatalf("%d bytes of the stream arrived", len(seen))
	}
	w.Node(4).PowerOff()
	w.Node(4).Wipe()
	w.Node(4).Boot()
	run(t, w, 10*time.Millisecond)
	w.Node(4).Connect(w.Node(0))
	run(t, w, time.Minute)
	if entries, _ := value(w.Node(4), "spread.hidden"); entries != 1 || relayed < 100 || bulk < 30 {
		t.Fatalf("too little happened: %d entries, %d relayed, %d long datagrams", entries, relayed, bulk)
	}
}

// In a cluster of more cells than a cell hears from in ten seconds, routers that forget or fail cost their cells
// no longer, whatever is going on (F36).
func TestF36_RebindingAmongMany(t *testing.T) {
	slowest := time.Duration(0)
	for _, seed := range seeds(2) {
		w := formBehind(t, seed, behindAll(2), NetworkOptions{DelayMin: 100 * time.Microsecond, DelayMax: 30 * time.Millisecond})
		run(t, w, 60*time.Second)
		victims := []*Node{w.Node(2), w.Node(6), w.Node(8), w.Node(14)} // one of each kind that has mappings
		for round := range 6 {
			for _, n := range victims {
				if round%2 == 0 {
					n.Rebind()
				} else {
					n.setRouters(true)
				}
			}
			if round%2 == 1 {
				run(t, w, 2*time.Second)
				for _, n := range victims {
					n.setRouters(false)
				}
			}
			run(t, w, 20*time.Millisecond)
			key := fmt.Sprintf("spread.k%d", round)
			w.Node(0).Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			slowest = max(slowest, until(t, w, 10*time.Second, key+" behind the routers", func() bool {
				for _, n := range victims {
					if entries, _ := value(n, key); entries == 0 {
						return false
					}
				}
				return true
			}))
			run(t, w, 8*time.Second)
		}
	}
	t.Logf("slowest write behind a router that forgot or came back: %v", slowest)
}
