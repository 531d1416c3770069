package cell

import (
	"testing"
	"time"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// A cell is written to in the greatest version that both speak; in the one in which it was heard for ten seconds, which
// what is heard meanwhile does not prolong; and not at all where there is none (F26).
func TestF26_WhichVersionIsSpoken(t *testing.T) {
	c := lonely(t)
	newVoice(t, c, 20).introduce(c.now)
	c.config.Versions = wire.Versions{Min: 2, Max: 4}
	m := c.members.Get(20)
	if m == nil {
		t.Fatal("20 is no member")
	}
	for _, test := range []struct {
		theirs wire.Versions
		want   uint8
		ok     bool
	}{
		{wire.Versions{Min: 1, Max: 2}, 2, true}, {wire.Versions{Min: 1, Max: 3}, 3, true},
		{wire.Versions{Min: 1, Max: 9}, 4, true}, {wire.Versions{Min: 4, Max: 5}, 4, true},
		{wire.Versions{Min: 1, Max: 1}, 0, false}, {wire.Versions{Min: 5, Max: 6}, 0, false},
	} {
		m.Versions = test.theirs
		if got, ok := c.versionFor(20); ok != test.ok || ok && got != test.want {
			t.Errorf("theirs %v: %d, %t", test.theirs, got, ok)
		}
	}
	m.Versions = wire.Versions{Min: 2, Max: 4}
	begin := c.now
	for c.now = begin; c.now < begin.Add(spokenFor); c.now = c.now.Add(time.Second) {
		c.heardVersion(20, 3)
		if got, _ := c.versionFor(20); got != 3 {
			t.Fatalf("%v after it was heard in 3 it is written to in %d", c.now.Sub(begin), got)
		}
	}
	c.heardVersion(20, 3) // both may say so because the other does: for a second the contact counts
	if got, _ := c.versionFor(20); got != 4 {
		t.Errorf("after %v the contact does not count: %d", spokenFor, got)
	}
	c.now = c.now.Add(spokenPause)
	c.heardVersion(20, 3)
	if got, _ := c.versionFor(20); got != 3 {
		t.Errorf("heard in 3 again after a pause: written to in %d", got)
	}
	c.heardVersion(20, 4)
	if got, _ := c.versionFor(20); got != 4 {
		t.Errorf("heard in what its contact says: written to in %d", got)
	}
}

// Whoever is to be empty keeps what it runs and gets nothing new, this cell as well as others (F68).
func TestF68_DrainedCellsTakeNothingNew(t *testing.T) {
	c := lonely(t)
	for _, id := range []wire.CellID{7, 8} {
		view := &cellView{id: id, hasContact: true, hasStatus: true, status: state.CellStatus{Life: state.Alive, Incarnation: 1}}
		if got := c.healthOf(view); got != healthFull {
			t.Fatalf("cell %v: %d before", id, got)
		}
		c.views.drained[id] = struct{}{}
		if got := c.healthOf(view); got != healthKeep {
			t.Errorf("cell %v: %d while it is drained", id, got)
		}
	}
}

// Ready is what has the wanted digest in the wanted slot, and says so (F75); a slot is occupied by whatever is in it on
// a cell that counts, and on no other (SAFE-5).
func TestF75_SAFE5_ReadyAndOccupied(t *testing.T) {
	c := lonely(t)
	const hash = 99
	c.views.byHash[hash] = &workloadView{key: "stateful.db", hash: hash}
	view := &cellView{id: 8, hasContact: true, hasStatus: true, status: state.CellStatus{Life: state.Alive, Incarnation: 1}}
	c.views.cells[8], c.views.ids = view, append(c.views.ids, 8)
	instance := state.EndpointInstance{Slot: 1, Digest: 5, State: state.EndpointReady}
	endpoint := &state.CellEndpoint{KeyHash: hash, Instances: []state.EndpointInstance{instance}}
	c.views.endpoints[endpointID{8, "db"}] = endpoint
	ready := func(slot uint16, digest uint64) bool { return c.isReady(hash, 8, slot, digest) }
	if !ready(1, 5) || !ready(1, 0) || ready(1, 6) || ready(0, 5) || c.isReady(hash, 9, 1, 5) {
		t.Error("ready is not what it should be")
	}
	serves := func() bool { return c.serves(hash, 8, 1, 5) && c.serves(hash, 8, 1, 0) }
	if !serves() {
		t.Error("what is ready does not serve")
	}
	if view.status.Life = state.Suspect; serves() || !ready(1, 5) {
		t.Error("what a suspected cell said is a reason to end what serves elsewhere")
	}
	view.status.Life = state.Alive
	endpoint.Instances[0].State = state.EndpointDraining
	if ready(1, 5) || ready(1, 0) {
		t.Error("what leaves service is ready")
	}
	if !c.isOccupied(hash, 1) || c.isOccupied(hash, 0) {
		t.Error("occupied is not what it should be")
	}
	view.status.Life = state.Dead
	if c.isOccupied(hash, 1) {
		t.Error("a dead cell occupies a slot")
	}
	endpoint.KeyHash, view.status.Life = hash+1, state.Alive
	if c.isOccupied(hash, 1) || ready(1, 5) {
		t.Error("an endpoint of another cluster counts")
	}
}

// A door over which operators disagree is shut (D1), and a contact under this cell's id with another secret is another
// machine (F2).
func TestD1_F2_TheSaferReading(t *testing.T) {
	c := lonely(t)
	put := func(actor wire.CellID, key string, value []byte) {
		dot := wire.Dot{Actor: actor, Sequence: 1 << wire.CounterBits}
		record := wire.Record{KeyHash: c.store.Hash([]byte(key)), Name: []byte(key), EntryCount: 1,
			Entries: wire.AppendEntry(nil, dot, value), Context: wire.AppendDot(nil, dot)}
		c.store.Merge(&record)
		c.view([]byte(key))
	}
	put(20, state.DoorKey, nil)
	if c.views.doorShut {
		t.Error("a deleted lock shuts the door")
	}
	put(21, state.DoorKey, []byte("shut"))
	if !c.views.doorShut {
		t.Error("one says shut, one says nothing: open")
	}
	mine := state.CellContact{SecretHash: 9}
	c.viewIdentity(&cellView{id: 7, hasContact: true, contact: mine})
	if c.twinSeen != 0 {
		t.Fatal("the cell takes itself for another one")
	}
	mine.SecretHash = 10
	c.viewIdentity(&cellView{id: 8, hasContact: true, contact: mine})
	if c.twinSeen != 0 {
		t.Fatal("another cell is taken for a twin")
	}
	c.viewIdentity(&cellView{id: 7, hasContact: true, contact: mine})
	if c.twinSeen == 0 {
		t.Error("a twin is not noticed")
	}
}
