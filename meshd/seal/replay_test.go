package seal

import (
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

// slowWindow is the definition of the replay window: a set of everything ever seen.
type slowWindow struct {
	seen map[uint64]bool
	top  uint64
}

func (w *slowWindow) accept(counter uint64) bool {
	if counter == 0 || w.seen[counter] || counter <= w.top && w.top-counter >= WindowSize {
		return false
	}
	w.seen[counter] = true
	w.top = max(w.top, counter)
	return true
}

// TestF13_WindowAgainstDefinition walks counters in steps of all sizes, the ends of the range included.
func TestF13_WindowAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fast := window{}
		slow := slowWindow{seen: make(map[uint64]bool)}
		at := rapid.SampledFrom([]uint64{1, 1 << 40, 1<<64 - 20000, 1<<64 - 1}).Draw(t, "start")
		step := rapid.OneOf(rapid.Int64Range(-3, 3), rapid.Int64Range(-200, 200), rapid.Int64Range(-9000, 9000),
			rapid.SampledFrom([]int64{-WindowSize - 1, -WindowSize, 1 - WindowSize, 63, 64, 65, WindowSize - 1,
				WindowSize,
				WindowSize + 1, 1 << 40}))
		for _, by := range rapid.SliceOfN(step, 1, 300).Draw(t, "steps") {
			fastSays := fast.fresh(at)
			if fastSays {
				fast.mark(at)
			}
			if slowSays := slow.accept(at); fastSays != slowSays {
				t.Fatalf("counter %d with newest %d: window says %t, definition %t", at, slow.top, fastSays, slowSays)
			}
			at += uint64(by) // may wrap, which a hostile sender may do too
		}
	})
}

// TestF13_WindowForgetsOldLaps fills the window, then strides on: every counter that was stepped over
// must be fresh still, in every word and across all borders.
func TestF13_WindowForgetsOldLaps(t *testing.T) {
	for _, stride := range []uint64{1, 2, 63, 64, 65, 100, 127, 128, 129, 1000,
		WindowSize - 1, WindowSize, WindowSize + 1} {
		w := window{}
		at := uint64(1)
		for ; at < WindowSize+37; at++ {
			w.mark(at)
		}
		for range 2*WindowSize/stride + 3 {
			last := w.top
			at = last + stride
			w.mark(at)
			for skipped := last + 1; skipped < at; skipped++ {
				if inside := at-skipped < WindowSize; w.fresh(skipped) != inside {
					t.Fatalf("stride %d, newest %d: counter %d fresh %t", stride, at, skipped, !inside)
				}
			}
			if w.fresh(at) || last+WindowSize > at && w.fresh(last) {
				t.Fatalf("stride %d: %d and %d were seen", stride, last, at)
			}
		}
	}
}

// sealWith returns a datagram of sender with a chosen counter.
func sealWith(k Key, sender wire.CellID, counter uint64) []byte {
	s := NewSealer(k, sender, uint32(counter>>wire.CounterBits))
	s.counter, s.last = counter-1, 1<<64-1
	return s.Seal(datagram(sender, wire.TypeDelta, "payload"))
}

func TestF13_ReplaysAreRefused(t *testing.T) {
	opener := NewOpener(testKey(1), 4)
	const base = uint64(1) << wire.CounterBits
	accept := func(counter uint64, want error) {
		t.Helper()
		if _, _, err := opener.Open(sealWith(testKey(1), cellA, counter)); err != want {
			t.Fatalf("counter %x: %v, want %v", counter, err, want)
		}
	}
	accept(base+10, nil)
	accept(base+10, ErrReplayed)
	accept(base+5, nil) // late but new
	accept(base+5, ErrReplayed)
	accept(base+10+WindowSize, nil)
	accept(base+10, ErrReplayed)
	accept(base+11, nil) // the oldest place of the window
	accept(base+11, ErrReplayed)
	accept(base+5, ErrReplayed)
	accept(2*base+1, nil) // restarted
	accept(base+10+WindowSize+1, ErrReplayed)
	accept(2*base+1, ErrReplayed)
	// Another sender's counters are its own.
	if _, _, err := opener.Open(sealWith(testKey(1), cellB, base+10)); err != nil {
		t.Fatal(err)
	}
}

func TestF13_ForgedCountersDoNotMoveTheWindow(t *testing.T) {
	opener := NewOpener(testKey(1), 4)
	const base = uint64(1) << wire.CounterBits
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, base+1)); err != nil {
		t.Fatal(err)
	}
	forged := sealWith(testKey(2), cellA, 1<<63)
	if _, _, err := opener.Open(forged); err != ErrForged {
		t.Fatal(err)
	}
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, base+2)); err != nil {
		t.Fatalf("after a forged counter: %v", err)
	}
}

// TestF13_EvictedSendersCannotBeReplayed: the table is bounded, the memory of what was accepted is not
// lost with a row.
func TestF13_EvictedSendersCannotBeReplayed(t *testing.T) {
	const senders, room = 20, 3
	const base = uint64(1) << wire.CounterBits
	opener := NewOpener(testKey(1), room)
	var sent [][]byte
	for round := range uint64(4) {
		for i := range wire.CellID(senders) {
			d := sealWith(testKey(1), i+1, base+round*10+1)
			sent = append(sent, clone(d))
			if _, _, err := opener.Open(d); err != nil {
				t.Fatalf("round %d sender %d: %v", round, i+1, err)
			}
			if len(opener.senders) > room || len(opener.index) != len(opener.senders) ||
				len(opener.floors) > room*floorsPerSender || len(opener.floorsRing) > room*floorsPerSender {
				t.Fatalf("%d rows, %d floors", len(opener.senders), len(opener.floors))
			}
		}
	}
	for i, d := range sent {
		if _, _, err := open(opener, d); err != ErrReplayed {
			t.Fatalf("datagram %d replayed: %v", i, err)
		}
	}
}

// TestF13_FloorsAreBounded: far more senders than the table and the floors hold. The bound stays; the
// last ones are still protected.
func TestF13_FloorsAreBounded(t *testing.T) {
	const room = 2
	const base = uint64(1) << wire.CounterBits
	opener := NewOpener(testKey(1), room)
	const senders = room * (floorsPerSender + 1) * 3
	for i := range wire.CellID(senders) {
		// The first one comes back all the time, which must not push others out faster.
		if _, _, err := opener.Open(sealWith(testKey(1), 1, base+uint64(i)+1)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := opener.Open(sealWith(testKey(1), i+2, base+1)); err != nil {
			t.Fatal(err)
		}
		if len(opener.floors) > room*floorsPerSender || len(opener.senders) > room {
			t.Fatalf("%d floors, %d rows", len(opener.floors), len(opener.senders))
		}
	}
	for i := wire.CellID(senders - room*floorsPerSender + 2); i <= senders+1; i++ {
		if _, _, err := opener.Open(sealWith(testKey(1), i, base+1)); err != ErrReplayed {
			t.Errorf("sender %d replayed: %v", i, err)
		}
	}
}

// TestOpenerAgainstModel: any order of senders, counters, evictions. With floors for all, an opener of
// any size accepts no datagram twice; and what a big one refuses, a small one refuses.
func TestOpenerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small, big := NewOpener(testKey(1), 2), NewOpener(testKey(1), 8)
		type sent struct {
			sender  wire.CellID
			counter uint64
		}
		accepted := make(map[sent]bool)
		for range rapid.IntRange(1, 60).Draw(t, "datagrams") {
			s := sent{wire.CellID(rapid.IntRange(1, 6).Draw(t, "sender")), rapid.Uint64Range(1, 12).Draw(t, "counter")}
			d := sealWith(testKey(1), s.sender, s.counter)
			_, _, errBig := open(big, d)
			_, _, errSmall := open(small, d)
			if (errBig == nil) == accepted[s] {
				t.Fatalf("%v: big table says %v", s, errBig)
			}
			if errSmall == nil && errBig != nil {
				t.Fatalf("%v: refused by the big table, accepted by the small one", s)
			}
			accepted[s] = true
			checkList(t, small)
		}
	})
}

// checkList walks the list of rows both ways.
func checkList(t *rapid.T, o *Opener) {
	forward := 0
	for at := o.oldest; at >= 0; at = o.senders[at].newer {
		if forward++; forward > len(o.senders) || o.index[o.senders[at].id] != at {
			t.Fatal("broken list")
		}
	}
	backward := 0
	for at := o.newest; at >= 0; at = o.senders[at].older {
		if backward++; backward > len(o.senders) {
			t.Fatal("broken list")
		}
	}
	if forward != len(o.senders) || backward != forward {
		t.Fatalf("%d rows, %d forward, %d backward", len(o.senders), forward, backward)
	}
}

func TestF13_RefuseBefore(t *testing.T) {
	const base = uint64(1) << wire.CounterBits
	opener := NewOpener(testKey(1), 4)
	opener.RefuseBefore(cellA, 3)
	opener.RefuseBefore(cellA, 2) // never lowers
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, 3*base-1)); err != ErrReplayed {
		t.Fatalf("stranger of an older incarnation: %v", err)
	}
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, 3*base+1)); err != nil {
		t.Fatal(err)
	}
	opener.RefuseBefore(cellA, 4)
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, 3*base+2)); err != ErrReplayed {
		t.Fatalf("known sender of an older incarnation: %v", err)
	}
	opener.RefuseBefore(cellA, 2) // never lowers
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, 3*base+3)); err != ErrReplayed {
		t.Fatalf("floor was lowered: %v", err)
	}
	if _, _, err := opener.Open(sealWith(testKey(1), cellA, 4*base+1)); err != nil {
		t.Fatal(err)
	}
	opener.RefuseBefore(cellB, 1<<24) // out of range, ignored
	if _, _, err := opener.Open(sealWith(testKey(1), cellB, base)); err != nil {
		t.Fatal(err)
	}
}

// TestKeyRotation: all orders in which two cells learn a new key keep them talking.
func TestKeyRotation(t *testing.T) {
	old, new := testKey(1), testKey(2)
	opener := NewOpener(old, 4)
	sealer := NewSealer(old, cellA, 1)
	late := NewSealer(old, cellB, 1)
	send := func(s *Sealer, id wire.CellID, want error) {
		t.Helper()
		if _, payload, err := opener.Open(s.Seal(datagram(id, wire.TypeDelta, "payload"))); err != want ||
			err == nil && string(payload) != "payload" {
			t.Fatalf("%q, %v, want %v", payload, err, want)
		}
	}
	send(sealer, cellA, nil)
	recorded := late.Seal(datagram(cellB, wire.TypeDelta, "payload"))
	opener.Rekey(new)
	opener.Rekey(new) // again changes nothing
	send(sealer, cellA, nil)
	sealer.Rekey(new)
	send(sealer, cellA, nil)
	sealer.Rekey(old) // one that was slow, mixed
	send(sealer, cellA, nil)
	sealer.Rekey(new)
	if _, payload, err := open(opener, recorded); err != nil || string(payload) != "payload" {
		t.Fatalf("stranger under the previous key: %q, %v", payload, err)
	}
	send(late, cellB, nil)
	late.Rekey(new)
	send(late, cellB, nil)
	if _, _, err := open(opener, recorded); err != ErrReplayed {
		t.Fatalf("recorded under the old key: %v", err)
	}
	opener.Rekey(testKey(3))
	opener.Rekey(testKey(4)) // two steps: the key before last is gone
	send(late, cellB, ErrForged)
	late.Rekey(testKey(3))
	send(late, cellB, nil)
	late.Rekey(testKey(4))
	send(late, cellB, nil)
}

func FuzzOpen(f *testing.F) {
	f.Add(NewSealer(testKey(1), cellA, 1).Seal(datagram(cellA, wire.TypeDelta, "payload")), false)
	f.Add(NewSealer(testKey(2), cellB, 1).Seal(datagram(cellB, wire.TypeLeave, "")), true)
	f.Add(datagram(cellA, wire.TypePing, "unsealed"), false)
	real := sealWith(testKey(1), cellA, 1<<40|5)
	f.Fuzz(func(t *testing.T, d []byte, overlap bool) {
		opener := NewOpener(testKey(1), 2)
		if overlap {
			opener.Rekey(testKey(2))
		}
		size := len(d)
		header, payload, err := open(opener, d)
		if err != nil {
			if len(opener.senders) != 0 || payload != nil {
				t.Fatal("a refused datagram left a trace")
			}
			if _, payload, err := open(opener, real); err != nil || string(payload) != "payload" {
				t.Fatalf("afterwards a real datagram is refused: %v", err)
			}
			return
		}
		// The fuzzer knows the keys only from the corpus, so whatever opens must be one of those.
		if size != wire.HeaderSize+len(payload)+wire.TrailerSize || int(header.PayloadLength) != len(payload) {
			t.Fatalf("%d bytes opened to %d", size, len(payload))
		}
		if _, _, err := open(opener, d); err != ErrReplayed {
			t.Fatalf("replayed: %v", err)
		}
	})
}
