package antientropy

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// TestBothBeginAtOnce: two BEGINs that cross make one session; the bootstrap wish of the side that
// gives way is fulfilled and reported.
func TestBothBeginAtOnce(t *testing.T) {
	for _, bootstrapping := range []wire.CellID{1, 2} {
		for gap := range 12 {
			n := newNetwork(t, uint64(gap), 2)
			n.cells[1].write("spread.one", "1")
			n.cells[2].write("spread.two", "2")
			n.cells[1].sessions.Start(n.now, 2, bootstrapping == 1)
			n.now = n.now.Add(time.Duration(gap) * time.Millisecond)
			n.cells[2].sessions.Start(n.now, 1, bootstrapping == 2)
			n.settle(time.Minute)
			n.equal()
			for _, p := range n.cells {
				if len(p.completed) == 0 {
					t.Fatalf("gap %d: cell %v completed nothing", gap, p.id)
				}
			}
			if gap < 5 && n.cells[bootstrapping].bootstrap == 0 {
				t.Fatalf("gap %d: bootstrap of cell %v was not reported", gap, bootstrapping)
			}
		}
	}
}

// TestF52_TwoIncomingSessions: a third one waits until there is room, and completes then.
func TestF52_TwoIncomingSessions(t *testing.T) {
	n := newNetwork(t, 1, 5)
	load(n.cells[1].store, 2000, 1)
	for id := wire.CellID(2); id <= 5; id++ {
		n.cells[id].write(fmt.Sprintf("spread.of%d", id), "v")
		n.cells[id].sessions.Start(n.now, 1, true)
	}
	if n.cells[2].sessions.Start(n.now, 3, false) {
		t.Fatal("two outgoing sessions")
	}
	n.settle(time.Minute)
	for id := wire.CellID(2); id <= 5; id++ {
		if n.cells[id].bootstrap != 1 {
			t.Fatalf("cell %v did not complete", id)
		}
		if _, has := n.cells[1].store.Get(fmt.Appendf(nil, "spread.of%d", id)); !has {
			t.Fatalf("cell 1 lacks the key of cell %v", id)
		}
	}
	if n.cells[1].sessions.Stats().Busy == 0 {
		t.Fatal("nobody had to wait")
	}
}

// TestSilentPeer: a session with nobody ends after 8 BEGINs and leaves nothing to wait for.
func TestSilentPeer(t *testing.T) {
	n := newNetwork(t, 1, 1)
	a := n.cells[1].sessions
	if !a.Start(n.now, 77, false) || a.Start(n.now, 78, false) || !a.Running(77) {
		t.Fatal("start")
	}
	begun := n.now
	n.settle(time.Minute)
	if n.datagrams != beginAttemptsMax || a.Stats().Failed != 1 || a.Running(77) {
		t.Fatalf("%d datagrams, %+v", n.datagrams, a.Stats())
	}
	if took := n.now.Sub(begun); took > silenceMax {
		t.Fatalf("gave up after %v", took)
	}
	if a.Start(n.now, 1, false) || a.Start(n.now, 0, false) {
		t.Fatal("began with itself or with nobody")
	}
	if !a.Start(n.now, 78, false) {
		t.Fatal("cannot begin again")
	}
	a.Forget(78)
	if a.Deadline() != clock.Never {
		t.Fatal("forgotten but still waiting")
	}
}

// TestPeerRestartsInTheMiddle: the one that lost the session begins anew, and is not made to wait for
// the other's patience to end.
func TestPeerRestartsInTheMiddle(t *testing.T) {
	for _, restarting := range []wire.CellID{1, 2} {
		n := newNetwork(t, 1, 2)
		load(n.cells[1].store, 3000, 1)
		load(n.cells[2].store, 3000, 1_000_000)
		n.cells[1].sessions.Start(n.now, 2, false)
		for range 300 {
			n.step(clock.Never - 1)
		}
		p := n.cells[restarting]
		n.renew(p)
		began := n.now
		p.sessions.Start(n.now, 3-restarting, true)
		for p.bootstrap == 0 && n.step(began.Add(time.Minute)) {
		}
		if took := n.now.Sub(began); p.bootstrap == 0 || took > 45*time.Second {
			t.Fatalf("cell %v restarted: completed %d after %v", restarting, p.bootstrap, took)
		}
		n.settle(11 * time.Minute)
		n.equal()
	}
}

// TestF43_LargeRegisterChangingMeanwhile: a register of many frames arrives whole although it is
// written between its frames.
func TestF43_LargeRegisterChangingMeanwhile(t *testing.T) {
	n := newNetwork(t, 1, 2)
	name := []byte("kv.app.large")
	value := bytes.Repeat([]byte("v"), wire.ValueMax)
	sibling := func(actor wire.CellID, sequence uint64) {
		dot := wire.Dot{Actor: actor, Sequence: sequence}
		store := n.cells[1].store
		r := wire.Record{KeyHash: store.Hash(name), Name: name, EntryCount: 1,
			Entries: wire.AppendEntry(nil, dot, value), Context: wire.AppendDot(nil, dot)}
		if store.Merge(&r).Rejected {
			t.Fatal("rejected")
		}
	}
	supersede := func(actors ...wire.CellID) { // so that what follows moves up into earlier frames
		store := n.cells[1].store
		r := wire.Record{KeyHash: store.Hash(name), Name: name}
		for _, actor := range actors {
			r.Context = wire.AppendDot(r.Context, wire.Dot{Actor: actor, Sequence: 2})
		}
		if !store.Merge(&r).Changed {
			t.Fatal("nothing superseded")
		}
	}
	for actor := range wire.CellID(40) {
		sibling(100+actor, 1)
	}
	before := n.cells[1].store.AppendSnapshot(nil)
	n.cells[2].write("spread.other", "x")
	frames := 0
	n.tap = func(from, _ wire.CellID, kind wire.Type, _ uint32, _ []byte) bool {
		if kind == wire.TypeAEState && from == 1 {
			if frames++; frames%5 == 0 && frames < 30 {
				sibling(wire.CellID(140-frames), 3)
				supersede(wire.CellID(100+frames), wire.CellID(101+frames))
			}
		}
		return false
	}
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed %v, %v", a, b)
	}
	// Everything that stood at the beginning is there: merging it changes nothing.
	old := crdt.New(crdt.Options{Self: 9, HashKey0: 11, HashKey1: 22})
	if err := old.LoadSnapshot(before); err != nil {
		t.Fatal(err)
	}
	old.Frames(name, wire.SealedPayloadMax, func(r *wire.Record) bool {
		if n.cells[2].store.Merge(r).Changed {
			t.Fatal("a part of the register was missing")
		}
		return true
	})
	n.tap = nil
	n.session(1, 2)
	n.equal()
}

// TestF45_StaleRecordsAreAnsweredInTheSession: with loss or without, what was deleted and collected
// while a cell was away is deleted there when its vector rises.
func TestF45_StaleRecordsAreAnsweredInTheSession(t *testing.T) {
	for seed := range uint64(30) {
		n := newNetwork(t, seed, 3)
		for i := range 40 {
			n.cells[1].write(fmt.Sprintf("spread.key%d", i), "v")
		}
		n.session(1, 2)
		n.session(1, 3)
		for i := range 40 {
			n.cells[1].write(fmt.Sprintf("spread.key%d", i), "")
		}
		for _, id := range []wire.CellID{1, 2} {
			n.cells[id].sessions.SetMembers([]wire.CellID{1, 2})
		}
		n.session(1, 2)
		n.session(1, 2)
		if n.cells[1].sessions.Collect() != 40 || n.cells[2].sessions.Collect() != 40 {
			t.Fatal("not collected")
		}
		n.loss, n.duplicate = 0.3, 0.1
		for range 4 * VectorEvery {
			if n.session(3, 2); n.cells[3].store.Stable(1) > 0 {
				break
			}
		}
		if n.cells[3].store.Stable(1) != 80 {
			t.Fatalf("seed %d: vector at %d", seed, n.cells[3].store.Stable(1))
		}
		for i := range 40 {
			if r, has := n.cells[3].store.Get(fmt.Appendf(nil, "spread.key%d", i)); has && r.EntryCount() > 0 {
				t.Fatalf("seed %d: the vector rose, but key%d is alive", seed, i)
			}
		}
		if n.cells[2].store.Len() != 0 {
			t.Fatalf("seed %d: the returning cell brought %d keys back", seed, n.cells[2].store.Len())
		}
	}
}

// TestF45_VectorWaitsForTheAnswers: while the objections to a returning cell's state do not arrive, its
// vector does not rise, whichever side began.
func TestF45_VectorWaitsForTheAnswers(t *testing.T) {
	for _, initiator := range []wire.CellID{2, 3} {
		n := newNetwork(t, 1, 3)
		for i := range 40 {
			n.cells[1].write(fmt.Sprintf("spread.key%d", i), "v")
		}
		n.session(1, 3)
		for i := range 40 {
			n.cells[1].write(fmt.Sprintf("spread.key%d", i), "")
		}
		n.session(1, 2)
		n.cells[2].sessions.SetMembers([]wire.CellID{1, 2})
		if n.session(1, 2); n.cells[2].sessions.Collect() != 40 {
			t.Fatal("not collected")
		}
		n.cells[2].sessions.count, n.cells[3].sessions.count = 0, 0
		n.tap = func(from, _ wire.CellID, kind wire.Type, _ uint32, payload []byte) bool {
			return from == 2 && kind == wire.TypeAEState && payload[8] == 0
		}
		n.session(initiator, 5-initiator)
		if n.cells[3].store.Stable(1) == 80 {
			t.Fatalf("initiator %v: the vector rose although the answers were lost", initiator)
		}
		n.tap = nil
		n.cells[2].sessions.count, n.cells[3].sessions.count = 0, 0
		if n.session(initiator, 5-initiator); n.cells[3].store.Stable(1) != 80 {
			t.Fatalf("initiator %v: the vector did not rise with the answers", initiator)
		}
	}
}

// TestLostAcknowledgementOfAQuestion: a question that comes again does not send the state again.
func TestLostAcknowledgementOfAQuestion(t *testing.T) {
	frames := func(lose bool) uint64 {
		n := newNetwork(t, 1, 2)
		load(n.cells[1].store, 500, 1)
		n.tap = func(from, _ wire.CellID, kind wire.Type, _ uint32, payload []byte) bool {
			first := lose && from == 1 && kind == wire.TypeDeltaAck
			lose = lose && !first
			return first
		}
		if a, b := n.session(2, 1); !a || !b {
			t.Fatalf("completed %v, %v", a, b)
		}
		return n.cells[1].sessions.Stats().Frames
	}
	if once, again := frames(false), frames(true); once != again {
		t.Fatalf("%d frames, %d when the question was repeated", once, again)
	}
}

// TestF50_FullStoreAcknowledgesNothing: a receiver without room must not appear to have the state.
func TestF50_FullStoreAcknowledgesNothing(t *testing.T) {
	n := newNetwork(t, 1, 2)
	full := crdt.New(crdt.Options{Self: 2, HashKey0: 11, HashKey1: 22, KeysMax: 10})
	n.cells[2].store = full
	n.renew(n.cells[2])
	load(n.cells[1].store, 200, 1)
	n.cells[1].write("spread.x", "x")
	n.cells[1].sessions.Start(n.now, 2, false)
	for end := n.now.Add(2 * time.Second); n.step(end); {
	}
	if n.cells[2].sessions.Running(1) || n.cells[2].sessions.Stats().Failed != 1 {
		t.Fatal("the full cell goes on with the session")
	}
	n.settle(11 * time.Minute)
	a, b := len(n.cells[1].completed) > 0, len(n.cells[2].completed) > 0
	if a || b || full.Stable(1) != 0 || !full.Degraded() {
		t.Fatalf("completed %v, %v; vector at %d, degraded %v", a, b, full.Stable(1), full.Degraded())
	}
}

// TestStateOutsideOfSessions: gossip's AE_STATE is merged and acknowledged or, if stale, answered.
func TestStateOutsideOfSessions(t *testing.T) {
	n := newNetwork(t, 1, 2)
	p := n.cells[1]
	r := wire.Record{Name: []byte("spread.x"), EntryCount: 1,
		Entries: wire.AppendEntry(nil, wire.Dot{Actor: 9, Sequence: 3}, []byte("old")),
		Context: wire.AppendDot(nil, wire.Dot{Actor: 9, Sequence: 3})}
	r.KeyHash = p.store.Hash(r.Name)
	var sent []wire.Type
	n.tap = func(_, to wire.CellID, kind wire.Type, nonce uint32, payload []byte) bool {
		sent = append(sent, kind)
		if kind == wire.TypeDeltaAck && nonce != 5 {
			t.Fatalf("acknowledged nonce %d", nonce)
		}
		return true
	}
	payload := wire.AppendStateRecord(nil, &r)
	header := wire.Header{Type: wire.TypeAEState, Nonce: 5}
	p.sessions.Receive(n.now, 2, header, payload)
	if _, has := p.store.Get(r.Name); !has || fmt.Sprint(sent) != "[CRDT_DELTA_ACK]" {
		t.Fatalf("sent %v", sent)
	}
	q := n.cells[2]
	q.store.RaiseStable(r.Context)
	sent = nil
	q.sessions.Receive(n.now, 1, header, payload)
	if fmt.Sprint(sent) != "[AE_STATE]" || q.store.Len() != 0 {
		t.Fatalf("sent %v", sent)
	}
}

// TestRES1_NoAllocationPerDatagram: an AE_STATE of known and of newer records, its acknowledgement,
// and a whole session over equal stores allocate nothing.
func TestRES1_NoAllocationPerDatagram(t *testing.T) {
	store := crdt.New(crdt.Options{Self: 1, HashKey0: 11, HashKey1: 22})
	load(store, 1000, 1)
	n := newNetwork(t, 1, 1)
	var nonce uint32
	options := Options{Self: 1, Store: store, Random: n.random,
		Send: func(_ wire.CellID, _ wire.Type, sent uint32, _ []byte) { nonce = sent }}
	a := New(options)
	dot := wire.Dot{Actor: 9, Sequence: 3}
	r := wire.Record{Name: []byte("spread.x"), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, []byte("value")), Context: wire.AppendDot(nil, dot)}
	r.KeyHash = store.Hash(r.Name)
	payload := wire.AppendStateRecord(nil, &r)
	payload = wire.AppendStateRecord(payload, &r)
	header := wire.Header{Type: wire.TypeAEState, Nonce: 5}
	now := clock.Instant(1)
	receive := func() { a.Receive(now, 2, header, payload) }
	if allocations := testing.AllocsPerRun(1000, receive); allocations != 0 {
		t.Errorf("%v allocations per AE_STATE", allocations)
	}
	begin := wire.AppendBegin(nil, wire.Begin{KeyCount: 1, Root: store.Root()})
	session := func() {
		if !a.Start(now, 2, false) {
			t.Fatal("not started")
		}
		a.Receive(now, 2, wire.Header{Type: wire.TypeAEBegin, Nonce: nonce}, begin)
	}
	session()
	if allocations := testing.AllocsPerRun(100, session); allocations != 0 {
		t.Errorf("%v allocations per session of equal stores", allocations)
	}
	// A session that sends all its state: BEGIN with another root, then an acknowledgement for each frame.
	begin = wire.AppendBegin(nil, wire.Begin{KeyCount: 1})
	exchange := func() {
		session()
		for range 300 {
			now = now.Add(20 * time.Millisecond)
			a.Tick(now)
			a.Receive(now, 2, wire.Header{Type: wire.TypeDeltaAck, Nonce: nonce}, payload[:8])
		}
		a.Forget(2)
	}
	exchange()
	if allocations := testing.AllocsPerRun(5, exchange); allocations != 0 {
		t.Errorf("%v allocations per session of 200 frames", allocations)
	}
}

// TestSameSeedSameRun: the trace of all datagrams depends on the seed alone.
func TestSameSeedSameRun(t *testing.T) {
	trace := func() uint64 {
		n := newNetwork(t, 5, 4)
		n.loss = 0.2
		hash := fnv.New64a()
		n.tap = func(from, to wire.CellID, kind wire.Type, nonce uint32, payload []byte) bool {
			fmt.Fprint(hash, n.now, from, to, kind, nonce, payload)
			return false
		}
		for i := range 60 {
			n.cells[wire.CellID(1+i%4)].write(fmt.Sprintf("spread.key%d", i/2), fmt.Sprint(i))
		}
		for _, id := range n.ids {
			n.cells[id].sessions.SetMembers(n.ids)
			n.cells[id].sessions.Start(n.now, id%4+1, false)
		}
		n.settle(11 * time.Minute)
		return hash.Sum64()
	}
	if trace() != trace() {
		t.Fatal("two runs differ")
	}
}

// TestF52_WritesDuringASession: one pass over what differed at the beginning, whatever happens meanwhile.
func TestF52_WritesDuringASession(t *testing.T) {
	n := newNetwork(t, 1, 2)
	load(n.cells[1].store, 2000, 1)
	load(n.cells[2].store, 2000, 1)
	n.cells[1].write("spread.start", "1")
	count := 0
	n.tap = func(from, _ wire.CellID, _ wire.Type, _ uint32, _ []byte) bool {
		count++
		n.cells[from].write(fmt.Sprintf("spread.during%d", count), "x")
		return false
	}
	if a, b := n.session(1, 2); !a || !b {
		t.Fatalf("completed %v, %v", a, b)
	}
	if count > 40 {
		t.Fatalf("%d datagrams: the session chases the writes", count)
	}
	if _, has := n.cells[2].store.Get([]byte("spread.start")); !has {
		t.Fatal("the difference of the beginning was not repaired")
	}
	if n.cells[2].store.Stable(1) != 1 {
		t.Fatalf("vector at %d, but only the write before the session was stated", n.cells[2].store.Stable(1))
	}
}

// TestAbandonEndsSilentSessions: whoever learns that its router gave it another place gives up what is under
// way, both what it began itself and what a peer began that has been silent since, so that it can ask that
// very peer; a session in which something was just heard goes on.
func TestAbandonEndsSilentSessions(t *testing.T) {
	n := newNetwork(t, 1, 3)
	load(n.cells[2].store, 5000, 1)
	load(n.cells[3].store, 5000, 2)
	a := n.cells[1].sessions
	n.cells[2].sessions.Start(n.now, 1, false)
	for steps := 0; !a.Running(2); steps++ {
		if n.step(n.now.Add(time.Second)); steps > 100 {
			t.Fatal("the session of the other one never came")
		}
	}
	a.Abandon(n.now)
	if !a.Running(2) || a.Start(n.now, 2, false) {
		t.Fatal("a session in which something was just heard was given up")
	}
	a.Abandon(n.now.Add(time.Second))
	if a.Running(2) || !a.Start(n.now, 2, false) {
		t.Fatal("a session that is silent keeps its peer from being asked")
	}
	a.Abandon(n.now)
	if a.Running(2) {
		t.Fatal("what was begun here was not given up")
	}
}
