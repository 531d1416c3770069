package cell

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// paper is a storage that takes everything down and answers when it is told to.
type paper struct {
	nowhere
	tickets      []uint64
	records      [][]byte
	incarnations []uint32
	ticket       uint64 // of the last incarnation
	snapshots    int
}

func (p *paper) AppendWrite(ticket uint64, record []byte) {
	p.tickets, p.records = append(p.tickets, ticket), append(p.records, bytes.Clone(record))
}

func (p *paper) SaveSnapshot(uint64, []byte) { p.snapshots++ }

func (p *paper) SaveIncarnation(ticket uint64, incarnation uint32) {
	p.ticket, p.incarnations = ticket, append(p.incarnations, incarnation)
}

// logged returns the sequence of this cell's last record of a key, 0 if there is none.
func (p *paper) logged(key string) (sequence uint64) {
	for _, raw := range p.records {
		for len(raw) > 0 {
			var record wire.Record
			rest, err := wire.NextStateRecord(raw, &record)
			if err != nil {
				return 0
			}
			if raw = rest; string(record.Name) == key {
				sequence = max(sequence, wire.ContextLookup(record.Context, 7))
			}
		}
	}
	return sequence
}

// onPaper is a cell alone in its cluster, with such a storage.
func onPaper(t *testing.T) (*Cell, *paper) {
	t.Helper()
	p := &paper{}
	random := rand.New(rand.NewPCG(1, 2))
	c := New(Config{
		Self: 7, Incarnation: 3, SecretHash: 9, Random: random, Network: nowhere{}, Storage: p,
		Entropy: func(b []byte) {
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		},
	})
	c.Start(clock.Instant(time.Hour))
	return c, p
}

// set is an operator's write; it returns where the answer will be.
func set(t *testing.T, c *Cell, key string) *Response {
	t.Helper()
	raw, err := workload.Encode(&workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/a"})
	if err != nil {
		t.Fatal(err)
	}
	answer := &Response{Status: 255}
	write := uds.WriteRequest{Expect: uds.ExpectAny, Key: key, Value: raw}
	c.Command(c.now, Request{Code: uds.CodeSet, Payload: write.Append(nil)}, func(r Response) { *answer = r })
	return answer
}

func held(c *Cell, key string) bool {
	_, found := c.store.Get([]byte(key))
	return found
}

// An operator's write is neither visible nor acknowledged before it is on the disk, and never if it cannot get there
// (F157).
func TestF157_NobodySeesAWriteThatIsNotOnTheDisk(t *testing.T) {
	c, p := onPaper(t)
	answer := set(t, c, "spread.a")
	ticket := p.tickets[len(p.tickets)-1]
	if held(c, "spread.a") || answer.Status != 255 || p.logged("spread.a") == 0 {
		t.Fatalf("before the disk has it: held %t, answer %d, logged %d", held(c, "spread.a"), answer.Status, p.logged("spread.a"))
	}
	c.Stored(c.now, ticket, nil)
	if !held(c, "spread.a") || answer.Status != uds.OK {
		t.Fatalf("after the disk has it: held %t, answer %+v", held(c, "spread.a"), *answer)
	}
	answer = set(t, c, "spread.b")
	c.Stored(c.now, p.tickets[len(p.tickets)-1], errors.New("no space left"))
	if held(c, "spread.b") || answer.Status == uds.OK || answer.Status == 255 {
		t.Fatalf("the disk is full: held %t, answer %+v", held(c, "spread.b"), *answer)
	}
}

// What a cell says of itself is in its log as well, before anybody can hear of it: whoever counts on from the disk must
// not say something else under the same dot (F1, F157).
func TestF157_EveryFactIsLogged(t *testing.T) {
	c, p := onPaper(t)
	c.HelperHello(c.now, HelperHello{Software: "x", Flags: state.FlagProcess, Capacity: state.CellCapacity{MemoryMiB: 64}})
	c.HelperListing(c.now)
	facts := 0
	c.store.Walk("", func(r crdt.Register) bool {
		own := wire.ContextLookup(r.Context(), 7)
		if own == 0 {
			return true
		}
		facts++
		if logged := p.logged(string(r.Name())); logged < own {
			t.Errorf("%s: %d is told and %d logged", r.Name(), own, logged)
		}
		return true
	})
	if facts < 3 {
		t.Errorf("%d facts", facts)
	}
}

// A cell vouches for its own writes only when it has compared its state with somebody's, not while some of them may be
// with others only, and never for one that waits for its disk (F1, F45 i).
func TestF45_WhatACellVouchesFor(t *testing.T) {
	c, p := onPaper(t)
	vouches := func() uint64 {
		c.store = crdt.New(crdt.Options{Self: 7}) // a vector never falls
		c.ownStable()
		return c.store.Stable(7)
	}
	if got := vouches(); got != c.issued() || got == 0 {
		t.Fatalf("the founder vouches for %d of %d", got, c.issued())
	}
	set(t, c, "spread.a")
	if got, pending := vouches(), c.issued(); got != pending-1 {
		t.Errorf("with %d on its way to the disk it vouches for %d", pending, got)
	}
	c.Stored(c.now, p.tickets[len(p.tickets)-1], nil)
	c.boot.compared = false
	if got := vouches(); got != 0 {
		t.Errorf("before it has compared anything it vouches for %d", got)
	}
	c.boot.compared = true
	c.ownWritesLost()
	if got := vouches(); got != 0 {
		t.Errorf("with lost writes it vouches for %d", got)
	}
	c.now = c.now.Add(tombstoneGrace - time.Second)
	if got := vouches(); got != 0 {
		t.Errorf("within a day of the loss it vouches for %d", got)
	}
	c.now = c.now.Add(time.Second)
	if got := vouches(); got != c.issued() {
		t.Errorf("a day after the loss it vouches for %d of %d", got, c.issued())
	}
}

// A snapshot with own writes that it does not vouch for comes from a run that had lost some; one that vouches for all is
// a whole one (F45).
func TestF45_WhatASnapshotWithholds(t *testing.T) {
	c, _ := onPaper(t)
	if c.snapshotWithholds() {
		t.Error("a founder's snapshot withholds something")
	}
	c.store.Write([]byte("spread.x"), []byte("v"), c.nextDot())
	if !c.snapshotWithholds() {
		t.Error("a write that nobody vouches for is overlooked")
	}
}

// A cell that hears of writes of its own which it has not made counts on above them, once that is on the disk, and writes
// nothing before (F1).
func TestF1_CountsOnAboveItsOwnFuture(t *testing.T) {
	c, p := onPaper(t)
	before := len(p.records)
	ahead := wire.Dot{Actor: 7, Sequence: 9<<wire.CounterBits | 4}
	c.noteOwnDotAhead(&wire.Record{Context: wire.AppendDot(nil, ahead)})
	c.ownDotAhead()
	if len(p.incarnations) != 1 || p.incarnations[0] != 10 {
		t.Fatalf("incarnations saved: %v, want 10", p.incarnations)
	}
	if c.incarnation != 3 {
		t.Errorf("incarnation %d is in use before it is on the disk", c.incarnation)
	}
	if c.ownLost == 0 {
		t.Error("the cell still vouches for what its disk has forgotten")
	}
	answer := set(t, c, "spread.a")
	c.publish(state.LoadKey(7, state.LoadCPU), []byte("x"))
	if len(p.records) != before || answer.Status == uds.OK {
		t.Errorf("%d records written meanwhile, answer %d", len(p.records)-before, answer.Status)
	}
	c.Stored(c.now, p.ticket, nil)
	if c.incarnation != 10 || len(p.records) == before {
		t.Errorf("incarnation %d, %d records after it was stored", c.incarnation, len(p.records)-before)
	}
	c.noteOwnDotAhead(&wire.Record{Context: wire.AppendDot(nil, ahead)}) // old news
	c.ownDotAhead()
	if len(p.incarnations) != 1 {
		t.Errorf("incarnations saved: %v", p.incarnations)
	}
}

// While a write is on its way to the disk no snapshot is made: it would drop the write from the log (F157).
func TestF157_ASnapshotWaitsForWrites(t *testing.T) {
	c, p := onPaper(t)
	p.snapshots, c.persist.snapshotTicket = 0, 0
	set(t, c, "spread.a")
	c.SaveState(c.now)
	if p.snapshots != 0 {
		t.Fatal("a snapshot beside a write that waits")
	}
	c.Stored(c.now, p.tickets[len(p.tickets)-1], nil)
	if p.snapshots != 1 {
		t.Errorf("%d snapshots after the write", p.snapshots)
	}
}

// Who holds up the collection of tombstones: members that are alive or died less than a day ago, not those that left
// (F46).
func TestF46_WhoHoldsUpTombstones(t *testing.T) {
	c, p := onPaper(t)
	gone := func(name string) bool {
		set(t, c, name)
		c.Stored(c.now, p.tickets[len(p.tickets)-1], nil)
		write := uds.WriteRequest{Expect: uds.ExpectAny, Key: name}
		c.Command(c.now, Request{Code: uds.CodeDelete, Payload: write.Append(nil)}, func(Response) {})
		c.Stored(c.now, p.tickets[len(p.tickets)-1], nil)
		if !held(c, name) {
			t.Fatalf("%s left no tombstone", name)
		}
		c.collectGarbage()
		return !held(c, name)
	}
	if !gone("spread.a") {
		t.Error("alone in its cluster a cell keeps a tombstone")
	}
	newVoice(t, c, 20).introduce(c.now)
	view := c.views.cells[20]
	if view == nil || !view.hasContact {
		t.Fatal("20 is no member")
	}
	if gone("spread.b") {
		t.Error("a member that said nothing does not hold up a tombstone")
	}
	view.status.Life = state.Suspect
	if gone("spread.s") {
		t.Error("one that is only suspected, or paused, does not hold up a tombstone")
	}
	view.status.Life = state.Leaving
	if gone("spread.l") {
		t.Error("one that is about to leave does not hold up a tombstone")
	}
	view.status.Life, view.outSince = state.Dead, c.now.Add(-tombstoneGrace+time.Minute)
	if gone("spread.c") {
		t.Error("one that died less than a day ago does not hold up a tombstone")
	}
	view.outSince = c.now.Add(-tombstoneGrace - time.Second)
	if !gone("spread.d") {
		t.Error("one that died more than a day ago holds up a tombstone")
	}
	view.outSince, view.status.Life = 0, state.Gone
	if !gone("spread.e") {
		t.Error("one that left holds up a tombstone")
	}
}

// Whatever an operator writes supersedes all values that this cell has seen under the key, however many have written
// there, and in every part of it: a sibling that is left out comes back everywhere, and the conflict with it (SAFE-3, F49).
func TestSAFE3_F49_AWriteSupersedesEverySibling(t *testing.T) {
	c, _ := onPaper(t)
	for _, siblings := range []int{0, 1, 2, 3, wire.FrameContextMax - 2, wire.FrameContextMax - 1, wire.FrameContextMax,
		wire.FrameContextMax + 1, 3*wire.FrameContextMax + 5} {
		dot := wire.Dot{Actor: 7, Sequence: 100}
		var context []byte
		want := map[wire.CellID]uint64{7: 100}
		for i := range siblings {
			other := wire.Dot{Actor: wire.CellID(2 + 3*i), Sequence: uint64(1000 + i)}
			if other.Actor >= 7 {
				other.Actor += 3
			}
			context, want[other.Actor] = wire.AppendDot(context, other), other.Sequence
		}
		covered, entries := map[wire.CellID]uint64{}, 0
		for raw := c.composeOver([]byte("spread.a"), []byte("x"), dot, context); len(raw) > 0; {
			var record wire.Record
			rest, err := wire.NextStateRecord(raw, &record)
			if err != nil {
				t.Fatalf("%d siblings: %v", siblings, err)
			}
			raw = rest
			entries += record.EntryCount
			for dots := record.Context; len(dots) > 0; dots = dots[wire.DotSize:] {
				covered[wire.DotAt(dots).Actor] = wire.DotAt(dots).Sequence
			}
		}
		if entries != 1 || !maps.Equal(covered, want) {
			t.Errorf("%d siblings: %d entries, which supersede %d of %d writes", siblings, entries, len(covered), len(want))
		}
	}
}
