package sim

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/wire"
)

// A cell behind a router that lets everybody in calls itself PUBLIC and keeps no home, so nobody keeps its address
// for it, and among many cells that need help it rarely asks one straight where it is. When its router forgets and
// gives it another port, or is switched off for some seconds, it learns so from whoever hears it first (F31, F36).
func TestF31_F36_PublicConeComesBackAfterRebinding(t *testing.T) {
	for _, kind := range []NATKind{FullCone, OneToOne} {
		slowest, slowestBack, public := time.Duration(0), time.Duration(0), 0
		for _, seed := range seeds(8) {
			w := formBehind(t, seed, behindAll(1), NetworkOptions{DelayMin: 100 * time.Microsecond, DelayMax: 30 * time.Millisecond})
			run(t, w, 30*time.Second)
			w.options.NAT = append(w.options.NAT, kind)
			n := w.AddNode()
			n.Boot()
			w.rejoin(n)
			run(t, w, 60*time.Second)
			if n.cell.Finding().Reach == wire.ReachPublic { // else nobody was left who had never met it
				public++
			}
			for round := range 6 {
				if round%2 == 0 {
					n.Rebind()
				} else {
					n.setRouters(true)
					run(t, w, 2*time.Second)
					n.setRouters(false)
				}
				key := fmt.Sprintf("spread.k%d", round)
				w.Node(0).Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				slowest = max(slowest, until(t, w, 10*time.Second, key+" behind the router", func() bool {
					entries, _ := value(n, key)
					return entries > 0
				}))
				key = fmt.Sprintf("spread.r%d", round)
				n.Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				slowestBack = max(slowestBack, until(t, w, 10*time.Second, key+" everywhere",
					func() bool { return heldBy(w, key) == len(w.Nodes()) }))
				run(t, w, time.Duration(10+7*round)*time.Second)
			}
		}
		t.Logf("%v: %d public; slowest write towards it %v, of its own %v", kind, public, slowest, slowestBack)
		if public == 0 && len(seeds(8)) > 1 {
			t.Errorf("no %v cell found out that it is public", kind)
		}
		if slowest > 3*time.Second || slowestBack > 3*time.Second {
			t.Errorf("%v: a write took %v, one of its own %v", kind, slowest, slowestBack)
		}
	}
}

// A cell that reaches no other one than a cell that left finds it again when it is back (F66, seed 3732031993).
func TestF66_TheOnlyWayLeavesAndReturns(t *testing.T) {
	for _, kinds := range [][]NATKind{
		{Public, Public, Blocked, Symmetric, DoubleNAT, Symmetric, Public, FullCone},
		{Public, Public, Blocked}, // with a single other cell nobody is isolated (seed 915173922)
	} {
		for _, absence := range []time.Duration{0, 30 * time.Second, 20 * time.Minute} {
			for _, seed := range seeds(3) {
				w := formBehind(t, seed, kinds, NetworkOptions{})
				run(t, w, 4*time.Minute)
				w.Apply(Fault{Verb: Leave, Node: 0, For: absence})
				run(t, w, absence+20*time.Second)
				took := until(t, w, time.Minute, "the same state everywhere", func() bool { return w.Formed() && w.sameState() })
				t.Logf("%d cells, seed %d: %v after it could join again", len(kinds), seed, took-5*time.Second)
			}
		}
	}
}
