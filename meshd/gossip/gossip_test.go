package gossip

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

type wireCellID = wire.CellID

// shelf is a store with prepared frames by key.
type shelf map[string][]wire.Record

func (s shelf) Frames(name []byte, _ int, yield func(*wire.Record) bool) {
	records := s[string(name)]
	for i := range records {
		if !yield(&records[i]) {
			return
		}
	}
}

func record(name, value string, sequence uint64) wire.Record {
	dot := wire.Dot{Actor: 7, Sequence: sequence}
	return wire.Record{KeyHash: hashOf([]byte(name)), Name: []byte(name), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, []byte(value)), Context: wire.AppendDot(nil, dot)}
}

type sent struct {
	to      wire.CellID
	kind    wire.Type
	nonce   uint32
	payload []byte
}

type bench struct {
	*Gossip
	now     clock.Instant
	members *overlay.Members
	store   shelf
	sent    []sent
}

func newBench(ids ...wire.CellID) *bench {
	b := &bench{now: clock.Instant(time.Hour), members: overlay.NewMembers(100), store: shelf{}}
	for _, id := range ids {
		b.members.Upsert(id).Address = netip.MustParseAddrPort("192.0.2.1:12421")
	}
	b.Gossip = New(Options{Self: 100, Random: rand.New(rand.NewPCG(1, 1)), Members: b.members, Store: b.store,
		Send: func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
			b.sent = append(b.sent, sent{to, kind, nonce, bytes.Clone(payload)})
		}})
	return b
}

func (b *bench) put(name string, records ...wire.Record) { b.store[name] = records }

func (b *bench) take() []sent {
	out := b.sent
	b.sent = nil
	return out
}

// TestF42_Targets: ring successor and two others, never the sender, nobody DEAD or GONE, nobody twice.
func TestF42_Targets(t *testing.T) {
	b := newBench(50, 200, 300, 400, 500, 600)
	b.members.Get(200).Life = state.Dead
	b.members.Get(300).Life = state.Gone
	b.put("spread.web", record("spread.web", "v", 1))
	for i := range 100 {
		b.Spread(b.now, []byte("spread.web"), 400)
		out := b.take()
		if len(out) != 3 || out[0].to != 500 {
			t.Fatalf("run %d: %d targets, first %v, want 3 with 500 first", i, len(out), out[0].to)
		}
		seen := map[wire.CellID]bool{}
		for _, s := range out {
			if s.to == 200 || s.to == 300 || s.to == 400 || seen[s.to] || s.kind != wire.TypeDelta {
				t.Fatalf("run %d: sent %v to %v", i, s.kind, s.to)
			}
			seen[s.to] = true
		}
	}
}

// TestF28_RetriesAndMovesOn follows one unanswered write: the ring edge tries four times with growing
// pauses and goes from successor to successor, twelve at most; random targets are tried once.
func TestF28_RetriesAndMovesOn(t *testing.T) {
	const last = 200 + 100*(SuccessorsMax-1) // where the ring edge must end
	var ids []wire.CellID
	for id := wire.CellID(200); id <= 3000; id += 100 {
		ids = append(ids, id)
	}
	b := newBench(ids...)
	missed := map[wire.CellID]int{}
	b.Gossip.options.Missed = func(id wire.CellID) { missed[id]++ }
	b.put("spread.web", record("spread.web", "v", 1))
	b.Spread(b.now, []byte("spread.web"), 0)
	attempts, times := map[wire.CellID]int{}, map[wire.CellID][]clock.Instant{}
	for {
		for _, s := range b.take() {
			attempts[s.to]++
			times[s.to] = append(times[s.to], b.now)
		}
		due := b.Deadline()
		if due == clock.Never {
			break
		}
		b.now = due
		b.Tick(b.now)
	}
	for id, n := range attempts {
		if id > last && n != attemptsRandom {
			t.Errorf("%d attempts at the random target %v, want %d", n, id, attemptsRandom)
		}
		if id > last {
			continue
		}
		if n != attemptsMax {
			t.Errorf("%d attempts at %v, want %d", n, id, attemptsMax)
		}
		for i, base := range []time.Duration{retryBase, 2 * retryBase, 4 * retryBase} {
			if wait := times[id][i+1].Sub(times[id][i]); wait < base*8/10 || wait > base*12/10 {
				t.Errorf("pause %d at %v is %v, want %v +-20 %%", i+1, id, wait, base)
			}
		}
	}
	for id := wire.CellID(200); id <= last; id += 100 {
		if attempts[id] == 0 {
			t.Errorf("the ring edge did not reach successor %v", id)
		}
		if missed[id] != 1 {
			t.Errorf("%v: reported %d times as without the news", id, missed[id])
		}
	}
	if len(missed) != SuccessorsMax {
		t.Errorf("reported as without the news: %v", missed)
	}
	if len(attempts) > SuccessorsMax+2 {
		t.Errorf("%d peers were tried", len(attempts))
	}
	if s := b.Stats(); s.Pending != 0 || s.GivenUp != SuccessorsMax+2 || s.Moved != SuccessorsMax-1 {
		t.Errorf("in the end %+v", s)
	}
}

// TestF42_RingEdgeStopsAtSelf: in a small cluster the ring edge does not go round twice.
func TestF42_RingEdgeStopsAtSelf(t *testing.T) {
	b := newBench(50, 200, 300, 400, 500)
	b.put("spread.web", record("spread.web", "v", 1))
	b.Spread(b.now, []byte("spread.web"), 0)
	for b.Deadline() != clock.Never {
		b.now = b.Deadline()
		b.Tick(b.now)
	}
	attempts := map[wire.CellID]int{}
	for _, s := range b.take() {
		attempts[s.to]++
	}
	for id, n := range attempts {
		if n < attemptsMax || n > attemptsMax+attemptsRandom || id == 200 && n != attemptsMax {
			t.Errorf("%d attempts at %d, want %d and one more at random targets", n, id, attemptsMax)
		}
	}
}

// TestF28_AckEndsRetries: the right acknowledgement from the right peer, once.
func TestF28_AckEndsRetries(t *testing.T) {
	b := newBench(200, 300)
	b.put("spread.web", record("spread.web", "v", 1))
	b.Spread(b.now, []byte("spread.web"), 0)
	out := b.take()
	if b.Ack(b.now, out[1].to, out[0].nonce) || b.Ack(b.now, out[0].to, out[0].nonce+1) {
		t.Fatal("a wrong acknowledgement was taken")
	}
	for _, s := range out {
		if !b.Ack(b.now, s.to, s.nonce) || b.Ack(b.now, s.to, s.nonce) {
			t.Fatal("an acknowledgement was not taken exactly once")
		}
	}
	if b.Deadline() != clock.Never || b.Stats().Pending != 0 {
		t.Errorf("deadline %v, stats %+v after all acknowledgements", b.Deadline(), b.Stats())
	}
}

// TestF28_NewerReplacesOlder: one entry per (peer, key, frame); the retry carries the present value, and
// an acknowledgement of the older one does not end it.
func TestF28_NewerReplacesOlder(t *testing.T) {
	b := newBench(200)
	b.put("spread.web", record("spread.web", "old", 1))
	b.Spread(b.now, []byte("spread.web"), 0)
	first := b.take()[0]
	b.put("spread.web", record("spread.web", "new", 2))
	b.Spread(b.now, []byte("spread.web"), 0)
	b.take()
	if b.Ack(b.now, 200, first.nonce) || b.Stats().Pending != 1 {
		t.Errorf("the older frame is still there: %+v", b.Stats())
	}
	b.put("spread.web", record("spread.web", "newest", 3))
	b.now = b.Deadline()
	b.Tick(b.now)
	out := b.take()
	var r wire.Record
	if len(out) != 1 || wire.ParseDelta(out[0].payload, &r) != nil {
		t.Fatalf("retry %+v", out)
	}
	if _, value, _, _ := wire.NextEntry(r.Entries); string(value) != "newest" {
		t.Errorf("retry carries %q, want the present value", value)
	}
}

// TestFrames: a register of several frames goes out whole; conflicts travel as AE_STATE, one record each;
// a frame that no longer exists is not retried.
func TestFrames(t *testing.T) {
	b := newBench(200)
	two := record("spread.web", "a", 1)
	two.Entries = wire.AppendEntry(two.Entries, wire.Dot{Actor: 8, Sequence: 1}, []byte("b"))
	two.Context = wire.AppendDot(two.Context, wire.Dot{Actor: 8, Sequence: 1})
	two.EntryCount = 2
	b.put("spread.web", two, record("spread.web", "c", 9))
	b.Spread(b.now, []byte("spread.web"), 0)
	out := b.take()
	if len(out) != 2 || out[0].kind != wire.TypeAEState || out[1].kind != wire.TypeDelta ||
		out[0].nonce == out[1].nonce {
		t.Fatalf("sent %+v", out)
	}
	var r wire.Record
	if rest, err := wire.NextStateRecord(out[0].payload, &r); err != nil || len(rest) != 0 || r.EntryCount != 2 {
		t.Errorf("state record %+v, %v", r, err)
	}
	b.put("spread.web", two)
	b.now = b.now.Add(time.Second)
	b.Tick(b.now)
	if out := b.take(); len(out) != 1 || b.Stats().Pending != 1 {
		t.Errorf("retried %d frames, %d pending; want the one that is left", len(out), b.Stats().Pending)
	}
}

// TestPendingIsBounded floods one dead peer and one that was tried often; the bound holds and the frames
// with most attempts go first.
func TestPendingIsBounded(t *testing.T) {
	b := newBench(200)
	name := func(i int) string { return fmt.Sprintf("kv.w.%d", i) }
	for i := range PendingMax {
		b.put(name(i), record(name(i), "v", 1))
		b.Spread(b.now, []byte(name(i)), 0)
	}
	for range 500 { // let some be tried a second time
		b.Tick(b.Deadline())
	}
	tried := map[string]bool{}
	for i := range b.pending.slots {
		if s := &b.pending.slots[i]; s.attempts > 1 {
			tried[string(s.name[:s.nameLength])] = true
		}
	}
	for i := range len(tried) {
		n := name(PendingMax + i)
		b.put(n, record(n, "v", 1))
		b.Spread(b.now, []byte(n), 0)
	}
	if s := b.Stats(); s.Pending != PendingMax || s.Displaced != uint64(len(tried)) {
		t.Errorf("%+v, want %d pending and %d displaced", s, PendingMax, len(tried))
	}
	for i := range b.pending.slots {
		if s := &b.pending.slots[i]; s.used && s.attempts > 1 {
			t.Fatal("a frame with more attempts outlived others")
		}
	}
}

// TestForget: frames to a peer that is gone end at the next tick, its ring edges go on to the next.
func TestForget(t *testing.T) {
	b := newBench(200, 300)
	b.put("spread.web", record("spread.web", "v", 1))
	b.Spread(b.now, []byte("spread.web"), 300)
	b.take()
	b.Forget(200)
	if b.Deadline() > b.now {
		t.Fatal("nothing is due after Forget")
	}
	b.Tick(b.now)
	if out := b.take(); len(out) != 0 || b.Stats().Pending != 0 {
		t.Errorf("sent %+v; the only other peer is the sender", out)
	}
	b.Spread(b.now, []byte("spread.web"), 0)
	out := b.take()
	b.Ack(b.now, 300, out[1].nonce)
	b.members.Get(200).Life = state.Dead
	b.Forget(200)
	b.Tick(b.now)
	if out := b.take(); len(out) != 1 || out[0].to != 300 {
		t.Errorf("after the successor's death sent %+v, want one frame to 300", out)
	}
}

// TestF18_TokenBucket: 200 at once, then 50 per second, per actor; other actors are not touched.
func TestF18_TokenBucket(t *testing.T) {
	b := newBench(200)
	count := func(actor wire.CellID, tries int) (n int) {
		for range tries {
			if b.Allow(b.now, actor) {
				n++
			}
		}
		return n
	}
	if n := count(7, 1000); n != ActorBurst {
		t.Errorf("%d allowed at once, want %d", n, ActorBurst)
	}
	if n := count(8, 10); n != 10 {
		t.Errorf("another actor got %d of 10", n)
	}
	for range 10 {
		b.now = b.now.Add(time.Second)
		if n := count(7, 1000); n != ActorRate {
			t.Errorf("%d allowed in a second, want %d", n, ActorRate)
		}
	}
	for actor := range wire.CellID(100000) { // the table is bounded
		b.Allow(b.now, actor+1000)
	}
	if n := len(b.buckets.table); n != actorsMax {
		t.Errorf("%d actors in the table, want %d", n, actorsMax)
	}
	if s := b.Stats(); s.Limited == 0 {
		t.Error("refusals are not counted")
	}
}

// TestGossipAllocatesNothing: spread, retry and acknowledgement in steady state.
func TestGossipAllocatesNothing(t *testing.T) {
	b := newBench(200, 300, 400, 500)
	var nonces [8]sent
	n := 0
	b.options.Send = func(to wire.CellID, _ wire.Type, nonce uint32, _ []byte) {
		nonces[n%len(nonces)] = sent{to: to, nonce: nonce}
		n++
	}
	b.put("spread.web", record("spread.web", "v", 1))
	name := []byte("spread.web")
	round := func() {
		b.now = b.now.Add(time.Millisecond)
		n = 0
		b.Spread(b.now, name, 400)
		b.now = b.now.Add(400 * time.Millisecond)
		b.Tick(b.now)
		for _, s := range nonces[:n] {
			b.Ack(b.now, s.to, s.nonce)
		}
		b.Allow(b.now, 7)
	}
	for range 100 {
		round()
	}
	if allocs := testing.AllocsPerRun(1000, round); allocs != 0 {
		t.Errorf("%v allocations per change, want 0", allocs)
	}
}

// TestPendingAgainstModel drives the indices with random operations and compares them with a plain list.
func TestPendingAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	var p pending
	p.init(9)
	type entry struct {
		at    int32
		peer  wire.CellID
		key   uint64
		nonce uint32
		due   clock.Instant
	}
	var model []entry
	for step := range 20000 {
		switch op := random.IntN(4); {
		case op == 0 && len(model) < 200:
			e := entry{peer: wire.CellID(random.IntN(5) + 1), key: uint64(step)}
			e.at = p.add(e.peer, e.key, 0)
			e.nonce, e.due = random.Uint32(), clock.Instant(random.IntN(1000))
			p.sent(e.at, e.nonce, 1, e.due)
			model = append(model, e)
		case op == 1 && len(model) > 0:
			i := random.IntN(len(model))
			p.remove(model[i].at)
			model = append(model[:i], model[i+1:]...)
		case op == 2 && len(model) > 0:
			e := &model[random.IntN(len(model))]
			e.nonce, e.due = random.Uint32(), clock.Instant(random.IntN(1000))
			p.sent(e.at, e.nonce, uint8(random.IntN(attemptsMax)+1), e.due)
		case op == 3 && len(model) > 0:
			e := &model[random.IntN(len(model))]
			e.peer = wire.CellID(random.IntN(5) + 1)
			p.readdress(e.at, e.peer)
		}
		earliest := clock.Never
		for _, e := range model {
			earliest = min(earliest, e.due)
			if p.byNonce(e.peer, e.nonce) != e.at || p.byKey(e.peer, e.key, 0) != e.at {
				t.Fatalf("step %d: slot %d not found", step, e.at)
			}
		}
		if first := p.first(); len(model) != p.count || len(model) > 0 && p.slots[first].due != earliest {
			t.Fatalf("step %d: first %d, count %d, want %d", step, first, p.count, len(model))
		}
	}
}

// An acknowledgement counts for the cell that was written to and for no other, even under the same nonce
// (F28).
func TestF28_OnlyTheReceiverAcknowledges(t *testing.T) {
	b := newBench(200, 300, 400)
	b.options.Nonce = func() uint32 { return 77 }
	b.put("spread.web", record("spread.web", "v", 1))
	b.Spread(b.now, []byte("spread.web"), 0)
	out := b.take()
	if b.Ack(b.now, out[0].to, 78) {
		t.Error("another nonce acknowledges")
	}
	for id := range wire.CellID(1000) { // so many that some share a place in the table with what is pending
		if b.Ack(b.now, 1000+id, 77) {
			t.Fatalf("the stranger %v acknowledges", 1000+id)
		}
	}
	for i, s := range out {
		if pending := b.Stats().Pending; pending != len(out)-i {
			t.Fatalf("%d pending before acknowledgement %d", pending, i)
		}
		if !b.Ack(b.now, s.to, s.nonce) || b.Ack(b.now, s.to, s.nonce) {
			t.Errorf("%v: acknowledged not exactly once", s.to)
		}
	}
}
