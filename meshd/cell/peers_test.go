package cell

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// peersKept is a Storage that keeps the last peers.
type peersKept struct {
	nowhere
	peers []wire.Contact
}

func (p *peersKept) SavePeers(_ uint64, peers []wire.Contact) { p.peers = slices.Clone(peers) }

// F4: of more cells than are remembered those count that were heard last, whatever their ids; the dead come when there
// is room.
func TestF4_PeersHeardLastAreRemembered(t *testing.T) {
	c, kept := lonely(t), &peersKept{}
	c.config.Storage = kept
	add := func(id wire.CellID, heard time.Duration, life state.Life) {
		m := c.members.Upsert(id)
		m.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)}), 12421)
		m.Heard, m.Life = clock.Instant(time.Hour+heard), life
	}
	for id := wire.CellID(100); id < 200; id++ {
		add(id, time.Duration(id)*time.Second, state.Alive)
	}
	add(50, time.Hour, state.Dead)
	c.savePeers()
	if len(kept.peers) != peersMax {
		t.Fatalf("%d peers", len(kept.peers))
	}
	for i, peer := range kept.peers {
		if want := wire.CellID(200 - peersMax + i); peer.ID != want {
			t.Fatalf("peer %d is %v, expected %v", i, peer.ID, want)
		}
	}
	c = lonely(t)
	c.config.Storage = kept
	add(60, 0, state.Alive)
	add(50, time.Hour, state.Dead)
	c.savePeers()
	if len(kept.peers) != 2 || kept.peers[0].ID != 60 || kept.peers[1].ID != 50 {
		t.Errorf("%+v", kept.peers)
	}
}
