package gossip

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// names returns the keys in an AE_STATE or delta.
func (s sent) names(t *testing.T) []string {
	t.Helper()
	var r wire.Record
	if s.kind == wire.TypeDelta {
		if err := wire.ParseDelta(s.payload, &r); err != nil {
			t.Fatal(err)
		}
		return []string{string(r.Name)}
	}
	var names []string
	for rest := s.payload; len(rest) > 0; {
		var err error
		if rest, err = wire.NextStateRecord(rest, &r); err != nil {
			t.Fatal(err)
		}
		names = append(names, string(r.Name))
	}
	return names
}

// A lone change goes out as the delta it always was, at the next Tick, which is due at once.
func TestF42_ALoneChangeDoesNotWait(t *testing.T) {
	b := newBench(1, 2, 3, 4, 5)
	b.store["spread.a"] = []wire.Record{record("spread.a", "v", 1)}
	b.Queue(b.now, []byte("spread.a"), 0)
	if len(b.sent) != 0 || b.Deadline() > b.now {
		t.Fatalf("%d sent, deadline %v", len(b.sent), b.Deadline())
	}
	b.Tick(b.now)
	if len(b.sent) != Fanout || b.sent[0].kind != wire.TypeDelta {
		t.Fatalf("sent %+v", b.sent)
	}
	if b.Deadline() <= b.now {
		t.Fatal("still due")
	}
	b.sent = nil
	b.now = b.now.Add(time.Millisecond)
	b.Queue(b.now, []byte("spread.a"), 0)
	b.Tick(b.now)
	if len(b.sent) != 0 || b.Deadline() > b.now.Add(bundleWindow) {
		t.Fatalf("right after another one: %d sent, deadline in %v", len(b.sent), b.Deadline().Sub(b.now))
	}
	b.Tick(b.Deadline())
	if len(b.sent) != Fanout {
		t.Fatalf("%d sent", len(b.sent))
	}
}

// Changes that are there together go to the same three cells, several in one datagram; one
// acknowledgement answers for all that travelled in it, and what is lost is repeated one by one.
func TestF42_ChangesTravelTogether(t *testing.T) {
	const changes = 40
	b := newBench(1, 2, 3, 4, 5)
	for i := range changes {
		name := fmt.Sprintf("spread.w%02d", i)
		b.store[name] = []wire.Record{record(name, "a value of some thirty bytes ...", 1)}
		b.Queue(b.now, []byte(name), 0)
		b.Queue(b.now, []byte(name), 0) // said twice, sent once
	}
	b.Tick(b.now)
	got := make(map[wire.CellID]map[string]int)
	for _, s := range b.sent {
		if len(s.payload) > wire.SealedPayloadMax {
			t.Fatalf("bundle of %d bytes", len(s.payload))
		}
		if got[s.to] == nil {
			got[s.to] = make(map[string]int)
		}
		for _, name := range s.names(t) {
			got[s.to][name]++
		}
	}
	if len(got) != Fanout || got[1] == nil {
		t.Fatalf("targets %v: want the ring successor 1 and two more", got)
	}
	for to, names := range got {
		if len(names) != changes {
			t.Fatalf("cell %v got %d of %d changes", to, len(names), changes)
		}
	}
	if len(b.sent) > Fanout*changes/5 {
		t.Fatalf("%d datagrams for %d changes", len(b.sent), changes)
	}
	first := b.sent[0]
	pending := b.Stats().Pending
	if !b.Ack(b.now, first.to, first.nonce) || b.Ack(b.now, first.to, first.nonce) {
		t.Fatal("a bundle is acknowledged once")
	}
	if now := b.Stats().Pending; now != pending-len(first.names(t)) {
		t.Fatalf("%d pending before, %d after the acknowledgement of %d", pending, now, len(first.names(t)))
	}
	b.sent = nil
	b.now = b.now.Add(2 * retryBase)
	b.Tick(b.now)
	for _, s := range b.sent {
		if s.kind != wire.TypeDelta {
			t.Fatalf("a repetition of type %v", s.kind)
		}
	}
}

// A change is never sent back to the cell it came from, and still goes to three others.
func TestF42_BundlesSpareTheirSource(t *testing.T) {
	for source := wire.CellID(1); source <= 5; source++ {
		b := newBench(1, 2, 3, 4, 5)
		for i := range 6 {
			name := fmt.Sprintf("spread.w%d", i)
			b.store[name] = []wire.Record{record(name, "v", 1)}
			b.Queue(b.now, []byte(name), source*wire.CellID(i%2))
		}
		b.Tick(b.now)
		copies := make(map[string]int)
		for _, s := range b.sent {
			for _, name := range s.names(t) {
				copies[name]++
				if s.to == source && (name[8]-'0')%2 == 1 {
					t.Fatalf("%s went back to %v", name, source)
				}
			}
		}
		for name, n := range copies {
			if n != Fanout {
				t.Fatalf("source %v: %s went to %d cells", source, name, n)
			}
		}
	}
}

// The queue is bounded; what does not fit makes it go out early.
func TestQueueIsBounded(t *testing.T) {
	b := newBench(1, 2, 3)
	for i := range queueMax + 1 {
		name := fmt.Sprintf("spread.w%d", i)
		b.store[name] = []wire.Record{record(name, "v", 1)}
		b.Queue(b.now, []byte(name), 0)
	}
	if len(b.sent) == 0 || len(b.queue) != 1 {
		t.Fatalf("%d sent, %d queued", len(b.sent), len(b.queue))
	}
}

// Bundles allocate nothing once the tables have grown.
func TestRES1_BundlesAllocateNothing(t *testing.T) {
	b := newBench(1, 2, 3, 4, 5)
	b.options.Send = func(wire.CellID, wire.Type, uint32, []byte) {}
	names := make([][]byte, 20)
	for i := range names {
		names[i] = fmt.Appendf(nil, "spread.w%d", i)
		b.store[string(names[i])] = []wire.Record{record(string(names[i]), "v", 1)}
	}
	round := func() {
		b.now = b.now.Add(bundleWindow)
		for _, name := range names {
			b.Queue(b.now, name, 0)
		}
		b.Tick(b.now)
	}
	for range 50 {
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
