package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
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

// theory says whether two machines can talk without a relay.
func theory(w *World, a, b *Node) bool {
	if a.NAT == Blocked || b.NAT == Blocked {
		return a == w.Node(0) || b == w.Node(0)
	}
	narrow := func(k NATKind) bool { return k == PortRestricted || k == NoHairpin || k == DoubleNAT }
	switch {
	case a.NAT == Symmetric && b.NAT == Symmetric:
		return false
	case a.NAT == Symmetric && narrow(b.NAT), b.NAT == Symmetric && narrow(a.NAT):
		return false // a birthday search would take some hundred sockets on one side
	}
	return true
}

// Every pair of kinds: those that can talk directly do after the first attempt, the others through a relay
// (F33, F35, F36).
func TestF35_F36_EveryPairOfRouters(t *testing.T) {
	for _, seed := range seeds(2) {
		w := formBehind(t, seed, behindAll(2), NetworkOptions{})
		run(t, w, 90*time.Second)
		var table strings.Builder
		for _, a := range w.Nodes() {
			fmt.Fprintf(&table, "%-16s", a.NAT)
			for _, b := range w.Nodes() {
				if a == b {
					table.WriteString("  -")
					continue
				}
				report, known := a.cell.PathTo(b.ID())
				seen := report.Kind == nat.KindDirect || report.Kind == nat.KindPunched
				fmt.Fprintf(&table, "  %c", "dprn"[report.Kind])
				if want := theory(w, a, b); !known || seen != want || report.Kind == nat.KindNone {
					table.WriteString("!")
					t.Errorf("seed %d: %v to %v: %v, can be direct: %v", seed, a.NAT, b.NAT, report.Kind, want)
				}
				if theory(w, a, b) && report.Attempts > 2 {
					t.Errorf("seed %d: %v to %v took %d attempts", seed, a.NAT, b.NAT, report.Attempts)
				}
			}
			table.WriteString("\n")
		}
		t.Logf("seed %d (d direct, p punched, r relayed)\n%s", seed, table.String())
	}
}

// The class comes from dial-backs and from votes of observers, per scope (F31, F32): a machine that joins a
// cluster which is there already is classified as what its router is.
func TestF31_F32_ClassOfEveryRouter(t *testing.T) {
	want := map[NATKind]wire.Reach{
		Public: wire.ReachPublic, FullCone: wire.ReachPublic, OneToOne: wire.ReachPublic,
		RestrictedCone: wire.ReachPunched, PortRestricted: wire.ReachPunched, NoHairpin: wire.ReachPunched,
		DoubleNAT: wire.ReachPunched, Symmetric: wire.ReachRelayed, Blocked: wire.ReachUnknown,
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
	}
}

// A cell behind a symmetric router is a full member: ten idle minutes see no write about anybody's life, and
// then a write reaches it within two seconds (F36).
func TestF36_IdleRelayedCellStaysAMember(t *testing.T) {
	kinds := []NATKind{Public, Public, Public, Symmetric, Symmetric, Blocked, PortRestricted}
	w := formBehind(t, 1, kinds, NetworkOptions{})
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
