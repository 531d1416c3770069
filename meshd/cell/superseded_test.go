package cell

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell that heard that a contact is superseded, before it hears by what, goes on with the one it knows: its cell stays a
// member with its path and its homes (F45). For a moment it was a stranger, and whoever punched to it punched alone.
func TestF45_ASupersededContactIsNoStranger(t *testing.T) {
	c := lonely(t)
	now := clock.Instant(time.Hour)
	v := newVoice(t, c, 20)
	v.introduce(now)
	m := c.members.Get(20)
	if m == nil || !m.Address.IsValid() {
		t.Fatal("no member")
	}
	name := []byte(state.ContactKey(20))
	superseded := wire.Record{KeyHash: c.store.Hash(name), Name: name,
		Context: wire.AppendDot(nil, wire.Dot{Actor: 20, Sequence: v.counter + 1})}
	v.counter++
	c.mergeSession(now, 20, &superseded)
	c.drain()
	if register, found := c.store.Get(name); !found || register.EntryCount() != 0 {
		t.Fatal("the test does not test: the contact is still there")
	}
	if c.members.Get(20) != m {
		t.Error("it is no member any more")
	}
	v.delta(now, name, state.AppendCellContact(nil, state.CellContact{
		SecretHash: 20, Candidates: []state.Candidate{{Address: v.address}}, Hostname: "next",
	}))
	if view := c.views.cells[20]; !view.hasContact || view.contact.Hostname != "next" || c.members.Get(20) != m {
		t.Error("the next contact does not count")
	}
}
