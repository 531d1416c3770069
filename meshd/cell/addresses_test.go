package cell_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

func tell(n *sim.Node, addresses ...netip.AddrPort) {
	var candidates []state.Candidate
	for _, address := range addresses {
		candidates = append(candidates, state.Candidate{Address: address})
	}
	n.Input(func(now clock.Instant) { n.Cell().SetAddresses(now, candidates) })
}

// F101, F158: a cell whose host got another address says so itself: status, contact, endpoints and class are those
// of the new one on every cell, and nothing speaks of a router.
func TestF158_AHostThatMovesSaysSo(t *testing.T) {
	for name, moved := range map[string]netip.AddrPort{
		"IPv4": netip.AddrPortFrom(netip.MustParseAddr("20.99.0.7"), wire.Port),
		"IPv6": netip.AddrPortFrom(netip.MustParseAddr("2600::99:7"), wire.Port),
	} {
		t.Run(name, func(t *testing.T) {
			w := cluster(t, sim.Options{Seed: 1, Cells: 3, Version6: name == "IPv6"})
			w.Run(15 * time.Second)
			digest(t, ask(t, w, w.Node(0), write(uds.CodeSet, "spread.web", spec(t, 3), uds.ExpectAny)))
			w.Run(10 * time.Second)
			n := w.Node(1)
			n.Move(moved)
			tell(n, moved)
			w.Run(8 * time.Second)
			for i := range 3 {
				from := w.Node(i)
				s := statusOf(t, w, from)
				for _, c := range s.Cells {
					if c.ID == n.ID().String() && (c.Address != moved.String() || c.State != "alive") {
						t.Errorf("n%d: cell is %s at %s", i, c.State, c.Address)
					}
				}
				for _, instance := range s.Workloads[0].Instances {
					if instance.Cell == n.ID().String() && instance.Address != moved.Addr().String() {
						t.Errorf("n%d: its instance is at %s", i, instance.Address)
					}
				}
			}
			s := statusOf(t, w, n)
			if s.Cell.Address != moved.String() || s.Network.Translated || s.Network.Reach == "punched" {
				t.Errorf("the cell says %s, %+v", s.Cell.Address, s.Network)
			}
			for _, c := range s.Network.Candidates {
				if c.Address != moved.String() {
					t.Errorf("it still lists %s", c.Address)
				}
			}
		})
	}
}

// An address that comes and goes costs at most one contact and one round of endpoints in ten seconds, and what is back
// by then nothing.
func TestF158_FlapsDoNotStorm(t *testing.T) {
	w := cluster(t, sim.Options{Seed: 1, Cells: 3})
	w.Run(30 * time.Second)
	n := w.Node(1)
	home, other := n.Address, netip.AddrPortFrom(netip.MustParseAddr("20.99.0.7"), wire.Port)
	key := []byte(state.ContactKey(n.ID()))
	last, writes := "", -1 // the first one was before
	look := func() {
		register, _ := n.Cell().Store().Get(key)
		if dot, _, _ := register.Latest(); fmt.Sprint(dot) != last {
			last, writes = fmt.Sprint(dot), writes+1
		}
	}
	look()
	for range 100 { // over 60 s
		tell(n, other, home)
		w.Run(300 * time.Millisecond)
		look()
		tell(n, home)
		w.Run(300 * time.Millisecond)
		look()
	}
	w.Run(15 * time.Second)
	look()
	if t.Logf("%d contacts", writes); writes > 2*6+2 {
		t.Errorf("an address that flapped for a minute was written %d times", writes)
	}
	if s := statusOf(t, w, n); strings.Contains(s.Cell.Address, other.Addr().String()) || len(s.Network.Candidates) != 1 {
		t.Errorf("it ends at %s, %+v", s.Cell.Address, s.Network.Candidates)
	}
}
