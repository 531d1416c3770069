package swim

import (
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// successorOf returns the cell after c on the ring.
func (w *world) successorOf(c *simulated) *simulated {
	return w.byID[c.members.Successor(c.id, nil).ID]
}

// TestF60_IdleTraffic counts what an idle cluster says: one PING and one PONG per second and cell, sent
// and received, make four.
func TestF60_IdleTraffic(t *testing.T) {
	for _, n := range []int{2, 3, 50} {
		w := newWorld(7, n, 0)
		w.run(time.Minute)
		before := w.datagrams
		w.run(10 * time.Minute)
		perCell := 2 * float64(w.datagrams-before) / 600 / float64(n)
		if perCell > 4 || perCell < 3.9 {
			t.Errorf("%d cells: %.2f datagrams per second and cell, want 4", n, perCell)
		}
		if len(w.writes) != 0 {
			t.Errorf("%d cells: %d status writes in an idle cluster", n, len(w.writes))
		}
	}
}

// TestIdleDetectorSleeps holds that the deadline is exact: a cell wakes once a second for its probe.
func TestIdleDetectorSleeps(t *testing.T) {
	w := newWorld(8, 3, 0)
	w.run(10 * time.Second)
	c := w.cells[0]
	before := c.ticks
	w.run(1000 * time.Second)
	if ticks := c.ticks - before; ticks < 999 || ticks > 1001 {
		t.Errorf("%d wake-ups in 1000 s, want one per second", ticks)
	}
	if due := c.detector.Deadline(); due <= w.now {
		t.Errorf("deadline %v is not after %v although nothing is due", due, w.now)
	}
	lone := newWorld(9, 1, 0)
	if due := lone.cells[0].detector.Deadline(); due != clock.Never {
		t.Errorf("a cell alone has deadline %v, want never", due)
	}
}

// TestF62_DesignatedProber: the ring predecessor sends every cell a PING at least every two seconds, and
// the others come by as well.
func TestF62_DesignatedProber(t *testing.T) {
	w := newWorld(10, 30, 0)
	last, others := map[*simulated]clock.Instant{}, map[*simulated]int{}
	w.onPing = func(from, to *simulated) {
		if w.successorOf(from) != to {
			others[to]++
			return
		}
		if gap := w.now.Sub(last[to]); last[to] != 0 && gap > slotInterval {
			t.Errorf("%v between two PINGs of the designated prober, want at most %v", gap, slotInterval)
		}
		last[to] = w.now
	}
	w.run(5 * time.Minute)
	for _, c := range w.cells {
		if w.now.Sub(last[c]) > slotInterval || others[c] < 90 {
			t.Errorf("cell %v: last PING of its prober %v ago, %d of others in 300 s",
				c.id, w.now.Sub(last[c]), others[c])
		}
	}
}

// TestF62_AccuserDiesToo kills the victim and, as soon as it has accused, the first accuser; then the
// first two; then all five ring predecessors together with the victim.
func TestF62_AccuserDiesToo(t *testing.T) {
	for _, kill := range []int{1, 2, 3} {
		for seed := range uint64(10) {
			w := newWorld(seed+100, 20, 0)
			w.run(10 * time.Second)
			victim := w.cells[3]
			victim.crashed = true
			crash := w.now
			killed := 0
			w.onClaim = func(by *simulated, s statusOf) {
				if s.target == victim.id && killed < kill {
					killed++
					by.crashed = true
				}
			}
			w.run(15 * time.Second)
			deaths := w.deaths(victim.id)
			if len(deaths) == 0 || deaths[0].at.Sub(crash) > 10*time.Second {
				t.Fatalf("seed %d, %d accusers killed: deaths %v", seed, kill, deaths)
			}
		}
	}
}

func TestF62_VictimAndItsPredecessorsDie(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(seed+200, 30, 0)
		w.run(10 * time.Second)
		victim := w.cells[3]
		dead := []*simulated{victim}
		for _, m := range victim.members.Predecessors(victim.id, predecessorsMax, nil, nil) {
			dead = append(dead, w.byID[m.ID])
		}
		for _, c := range dead {
			c.crashed = true
		}
		w.run(15 * time.Second)
		for _, c := range dead {
			if len(w.deaths(c.id)) == 0 {
				t.Errorf("seed %d: death of %v among %d ring neighbours not found in 15 s", seed, c.id, len(dead))
			}
		}
	}
}

// TestF41_EveryCrashIsDetected crashes every fifth of 200 cells, one after the other.
func TestF41_EveryCrashIsDetected(t *testing.T) {
	w := newWorld(11, 200, 0)
	w.run(5 * time.Second)
	for i := 0; i < len(w.cells); i += 5 {
		w.cells[i].crashed = true
		w.run(500 * time.Millisecond)
	}
	w.run(15 * time.Second)
	for i, c := range w.cells {
		if found := len(w.deaths(c.id)) > 0; found != (i%5 == 0) {
			t.Errorf("cell %d: declared dead %v", i, found)
		}
	}
}

// TestMassDeath loses half of a cluster at one instant.
func TestMassDeath(t *testing.T) {
	w := newWorld(12, 64, 0)
	w.run(5 * time.Second)
	for i := range 32 {
		w.cells[i].crashed = true
	}
	w.run(40 * time.Second)
	for i, c := range w.cells {
		if found := len(w.deaths(c.id)) > 0; found != (i < 32) {
			t.Errorf("cell %d: declared dead %v", i, found)
		}
	}
}

// TestF63_AccusedRefutesBeforeDead makes one cell unreachable for the time it takes to be accused.
func TestF63_AccusedRefutesBeforeDead(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(seed+300, 10, 0.2)
		w.run(10 * time.Second)
		victim := w.cells[4]
		w.block = func(_, to *simulated) bool { return to == victim }
		for i := 0; w.count(state.Suspect) == 0 && i < 100; i++ {
			w.run(100 * time.Millisecond)
		}
		w.block = nil
		w.run(10 * time.Second)
		if dead := w.deaths(0); len(dead) > 0 {
			t.Errorf("seed %d: %v although it could answer", seed, dead[0])
		}
		if life := w.cells[0].members.Get(victim.id).Life; life != state.Alive {
			t.Errorf("seed %d: the accused is %v at the others, want alive", seed, life)
		}
		for _, write := range w.writes {
			if write.status.Life == state.Alive && write.by != write.target {
				t.Errorf("seed %d: %v: somebody spoke for another", seed, write)
			}
		}
	}
}

// TestF64_DeafCell drops all inbound traffic of one of five cells: it must be declared DEAD once, say
// nothing about anybody, and come back when the rule is removed.
func TestF64_DeafCell(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(seed+400, 5, 0)
		w.run(10 * time.Second)
		deaf := w.cells[2]
		w.block = func(_, to *simulated) bool { return to == deaf }
		deafened := w.now
		w.run(10 * time.Minute)
		deaths := map[uint32]int{}
		// F62 c: it was heard all the time, which buys one extension.
		if all := w.deaths(deaf.id); len(all) > 0 && all[0].at.Sub(deafened) < suspicionFloor+extension {
			t.Errorf("seed %d: DEAD after %v although it was heard", seed, all[0].at.Sub(deafened))
		}
		for _, write := range w.writes {
			if write.by == deaf.id {
				t.Errorf("seed %d: the deaf cell wrote: %v", seed, write)
			}
			if write.status.Life == state.Alive {
				t.Errorf("seed %d: ALIVE while the rule is in place: %v", seed, write)
			}
			if write.target == deaf.id && write.status.Life == state.Dead {
				deaths[write.status.Incarnation]++
			}
		}
		if len(deaths) != 1 {
			t.Fatalf("seed %d: DEAD in %d incarnations, want one: %v", seed, len(deaths), w.writes)
		}
		if !deaf.detector.Isolated(w.now) {
			t.Errorf("seed %d: the deaf cell does not know that it is isolated", seed)
		}
		if told := w.cells[0].told + w.cells[1].told; told == 0 || told > 2*10*60*3 {
			t.Errorf("seed %d: two cells told it %d times in 10 minutes, want some but few", seed, told)
		}
		w.block = nil
		w.run(10 * time.Second)
		if life := w.cells[0].members.Get(deaf.id).Life; life != state.Alive {
			t.Errorf("seed %d: %v ten seconds after it hears again, want alive", seed, life)
		}
		if deaf.detector.Isolated(w.now) {
			t.Errorf("seed %d: still isolated", seed)
		}
		for _, c := range w.cells {
			if c != deaf && len(w.deaths(c.id)) > 0 {
				t.Errorf("seed %d: the deaf cell took %v with it", seed, c.id)
			}
		}
	}
}

// TestF64_OneWayDropBetweenTwo: helpers see both ends, so nobody writes anything.
func TestF64_OneWayDropBetweenTwo(t *testing.T) {
	for from := range 5 {
		for to := range 5 {
			if from == to {
				continue
			}
			w := newWorld(uint64(500+from), 5, 0)
			w.block = func(a, b *simulated) bool { return a.index == from && b.index == to }
			w.run(3 * time.Minute)
			if len(w.writes) > 0 {
				t.Errorf("drop from %d to %d: %v", from, to, w.writes)
			}
		}
	}
}

// TestF64_PartitionHeals splits a cluster until each half holds the other DEAD, then heals it.
func TestF64_PartitionHeals(t *testing.T) {
	for _, n := range []int{2, 3, 4, 10} {
		w := newWorld(uint64(600+n), n, 0.05)
		w.run(10 * time.Second)
		w.block = func(a, b *simulated) bool { return a.index%2 != b.index%2 }
		w.run(time.Minute)
		if n != 3 {
			for _, c := range w.cells {
				if len(w.deaths(c.id)) == 0 {
					t.Errorf("%d cells: partition not noticed", n)
				}
			}
		}
		w.block = nil
		w.run(20 * time.Second)
		for _, c := range w.cells {
			for i := range c.members.Len() {
				if m := c.members.At(i); m.Life != state.Alive {
					t.Errorf("%d cells: %v holds %v %v 20 s after the partition healed", n, c.id, m.ID, m.Life)
				}
			}
		}
	}
}

// TestF64_ThirdDeathNeedsTwoAccusers: a cell that died twice in ten minutes is not declared DEAD again on
// the word of one.
func TestF64_ThirdDeathNeedsTwoAccusers(t *testing.T) {
	w := newWorld(13, 5, 0)
	w.run(5 * time.Second)
	c, victim := w.cells[0], w.cells[1]
	m := c.members.Get(victim.id)
	p := c.detector.peer(victim.id)
	for i := range uint32(2) {
		status := state.CellStatus{Life: state.Dead, Incarnation: 10 + i}
		c.detector.StatusChanged(w.now, victim.id, status)
		status = state.CellStatus{Life: state.Alive, Incarnation: 11 + i}
		c.detector.StatusChanged(w.now, victim.id, status)
		w.now = w.now.Add(time.Minute)
	}
	if m.Life != state.Alive || p.deaths[1] == 0 {
		t.Fatalf("life %v, deaths %v", m.Life, p.deaths)
	}
	c.detector.health.quiet = 0 // the jumps above were no pauses
	if c.detector.mayBury(w.now, p) {
		t.Error("third DEAD allowed with one accuser")
	}
	p.accusers = 1
	if !c.detector.mayBury(w.now, p) {
		t.Error("third DEAD refused with two accusers")
	}
	p.accusers = 0
	if !c.detector.mayBury(w.now.Add(deathsWindow), p) {
		t.Error("deaths are remembered beyond the window")
	}
}

// TestF65_PausedDetectorAccusesNobody stops one cell as SIGSTOP does and lets it go on.
func TestF65_PausedDetectorAccusesNobody(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(seed+700, 8, 0)
		w.run(10*time.Second + time.Duration(seed)*37*time.Millisecond)
		sleeper := w.cells[3]
		sleeper.pause(10 * time.Second)
		w.run(30 * time.Second)
		for _, write := range w.writes {
			if write.by == sleeper.id && write.target != sleeper.id {
				t.Errorf("seed %d: the sleeper accused: %v", seed, write)
			}
		}
		if life := w.cells[0].members.Get(sleeper.id).Life; life != state.Alive {
			t.Errorf("seed %d: the sleeper is %v after it woke, want alive", seed, life)
		}
	}
}

// TestF11_SuspicionsAreDroppedAfterAJump lets the clock jump in the middle of a suspicion.
func TestF11_SuspicionsAreDroppedAfterAJump(t *testing.T) {
	w := newWorld(14, 5, 0)
	w.run(10 * time.Second)
	c := w.cells[0]
	victim := w.successorOf(c)
	victim.crashed = true
	for i := 0; !c.detector.Suspected(victim.id) && i < 100; i++ {
		w.run(100 * time.Millisecond)
	}
	if !c.detector.Suspected(victim.id) {
		t.Fatal("no suspicion after 10 s")
	}
	claims := 0
	c.detector.options.Claim = func(_ clock.Instant, target wire.CellID, s state.CellStatus) { claims++ }
	now := w.now.Add(time.Hour)
	c.detector.Tick(now)
	if claims != 0 || c.detector.Suspected(victim.id) || c.detector.Health() == 1 {
		t.Errorf("after a jump: %d claims, suspected %v, health %d", claims,
			c.detector.Suspected(victim.id), c.detector.Health())
	}
	if c.detector.health.quiet != quietRounds {
		t.Errorf("quiet rounds %d, want %d", c.detector.health.quiet, quietRounds)
	}
}

// TestF70_SatelliteLink: a round trip of 700 ms is learnt, not punished.
func TestF70_SatelliteLink(t *testing.T) {
	w := newWorld(15, 5, 0)
	w.latency = 350 * time.Millisecond
	w.run(time.Minute)
	before := w.datagrams
	w.run(9 * time.Minute)
	if perCell := float64(w.datagrams-before) / 540 / 5; perCell > 2.02 {
		t.Errorf("%.2f datagrams per second and cell once the round trip is known, want 2", perCell)
	}
	if len(w.writes) > 0 {
		t.Errorf("status writes over a slow link: %v", w.writes)
	}
	for _, c := range w.cells {
		if c.detector.Health() != 1 {
			t.Errorf("health %d over a slow but sound link, want 1", c.detector.Health())
		}
		for i := range c.members.Len() {
			if m := c.members.At(i); m.RTT < 690*time.Millisecond || m.RTT > 710*time.Millisecond {
				t.Errorf("round trip measured as %v, want 700 ms", m.RTT)
			}
		}
	}
}

// TestF66_IsolatedCellClaimsNothing pulls the cable of one of ten.
func TestF66_IsolatedCellClaimsNothing(t *testing.T) {
	w := newWorld(16, 10, 0)
	w.run(10 * time.Second)
	cut := w.cells[5]
	w.block = func(a, b *simulated) bool { return a == cut || b == cut }
	w.run(8 * time.Second)
	if !cut.detector.Isolated(w.now) {
		t.Error("not isolated 8 s after the cable was pulled")
	}
	w.run(time.Minute)
	sent := cut.sent
	w.run(time.Minute)
	for _, write := range w.writes {
		if write.by == cut.id {
			t.Errorf("isolated cell wrote %v", write)
		}
	}
	if rate := (cut.sent - sent) / 60; rate > 4*roundsMax {
		t.Errorf("an isolated cell sends %d datagrams per second", rate)
	}
	if len(w.deaths(cut.id)) == 0 {
		t.Error("the others did not notice")
	}
	w.block = nil
	w.run(10 * time.Second)
	if cut.detector.Isolated(w.now) || w.cells[0].members.Get(cut.id).Life != state.Alive {
		t.Error("the cell did not come back")
	}
	for _, write := range w.writes {
		if write.by == cut.id && write.target != cut.id {
			t.Errorf("after it came back: %v", write)
		}
	}
}

// TestLastTwo: with a single other cell there is no isolation, its crash is claimed.
func TestLastTwo(t *testing.T) {
	w := newWorld(17, 2, 0)
	w.run(5 * time.Second)
	w.cells[1].crashed = true
	w.run(10 * time.Second)
	if w.cells[0].detector.Isolated(w.now) || len(w.deaths(w.cells[1].id)) != 1 {
		t.Errorf("isolated %v, deaths %v", w.cells[0].detector.Isolated(w.now), w.deaths(0))
	}
	w.cells[1].restart(1)
	w.run(10 * time.Second)
	if life := w.cells[0].members.Get(w.cells[1].id).Life; life != state.Alive {
		t.Errorf("restarted cell is %v, want alive", life)
	}
}

// TestSameSeedSameRun holds determinism: two runs write the same statuses at the same instants.
func TestSameSeedSameRun(t *testing.T) {
	run := func() (*world, []statusOf) {
		w := newWorld(18, 20, 0.2)
		w.run(20 * time.Minute)
		w.cells[7].crashed = true
		w.run(time.Minute)
		return w, w.writes
	}
	w1, first := run()
	w2, second := run()
	if w1.datagrams != w2.datagrams || len(first) != len(second) || len(first) == 0 {
		t.Fatalf("%d and %d datagrams, %d and %d writes", w1.datagrams, w2.datagrams, len(first), len(second))
	}
	for i := range first {
		if first[i].String() != second[i].String() {
			t.Fatalf("write %d: %v and %v", i, first[i], second[i])
		}
	}
}
