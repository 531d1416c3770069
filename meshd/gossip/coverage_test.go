package gossip

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestF42_GossipReachesEveryCell writes one key at one cell and counts who has it in the end: with 5 %
// loss, also with cells dead that nobody knows of, 99 % of the runs must reach everybody alive. With a tenth
// dead a write costs at most five datagrams per cell, and the longest path has at most 16 hops also with 30 %
// dead, up to 1000 cells (150 runs of 1000: median 13 and p99 16; the few runs here allow one more). 3000
// cells keep the datagrams and the coverage. What loses 20 % is beyond what the flaw asks for.
func TestF42_GossipReachesEveryCell(t *testing.T) {
	for _, c := range []struct {
		n, runs    int
		loss, dead float64
		complete   float64 // share of runs that reach all
		depth      int     // most hops in 99 % of the runs
		perCell    float64 // datagrams
	}{
		{3, 300, 0.05, 0, 0.99, 16, 5},
		{4, 300, 0.05, 0.3, 0.99, 16, 5},
		{10, 300, 0.05, 0.1, 0.99, 16, 5},
		{30, 200, 0.05, 0.3, 0.99, 16, 5},
		{100, 100, 0, 0, 1, 16, 5},
		{100, 100, 0.05, 0.1, 0.99, 16, 5},
		{100, 100, 0.05, 0.3, 0.99, 16, 5},
		{300, 40, 0.05, 0.1, 0.99, 16, 5},
		{100, 100, 0.20, 0.1, 0.90, 17, 5},
		{1000, 8, 0, 0, 1, 16, 5},
		{1000, 20, 0.05, 0.1, 0.99, 16, 5},
		{1000, 20, 0.05, 0.3, 0.99, 17, 5.5},
		{1000, 8, 0.20, 0.1, 0, 18, 5},
		{1000, 8, 0.20, 0.3, 0, 24, 6.5},
		{3000, 5, 0.05, 0.1, 0.99, 17, 5},
	} {
		t.Run(fmt.Sprintf("%d cells, loss %.2f, dead %.2f", c.n, c.loss, c.dead), func(t *testing.T) {
			complete, have, alive, frames := 0, 0, 0, uint64(0)
			var depths []int
			var times []time.Duration
			for run := range c.runs {
				w := newNetwork(uint64(run+1), c.n, c.loss, c.dead)
				w.nodes[0].heardAt = w.now
				w.nodes[0].write("spread.web")
				start := w.now
				w.run(40 * time.Second)
				h, a, d := w.coverage("spread.web")
				have, alive, frames = have+h, alive+a, frames+w.frames
				depths = append(depths, d)
				if h == a {
					complete++
				}
				for _, x := range w.nodes {
					if x.have["spread.web"] > 0 {
						times = append(times, x.heardAt.Sub(start))
					}
				}
			}
			slices.Sort(depths)
			slices.Sort(times)
			depth, slow := depths[(len(depths)-1)*99/100], times[(len(times)-1)*99/100]
			perCell := float64(frames) / float64(alive)
			t.Logf("complete %d/%d, cells %.5f, hops p99 %d median %d, 99 %% of cells in %v, %.2f datagrams per cell",
				complete, c.runs, float64(have)/float64(alive), depth, depths[len(depths)/2],
				slow.Round(time.Millisecond), perCell)
			if float64(complete) < c.complete*float64(c.runs) || float64(have) < 0.999*float64(alive) {
				t.Errorf("reached all in %d of %d runs, %d of %d cells", complete, c.runs, have, alive)
			}
			if depth > c.depth {
				t.Errorf("%d hops, want at most %d", depth, c.depth)
			}
			if perCell > c.perCell {
				t.Errorf("%.2f datagrams per cell, want at most %.1f", perCell, c.perCell)
			}
			if c.loss <= 0.05 && c.dead <= 0.1 && slow > time.Second {
				t.Errorf("99 %% of the cells have it after %v, want 1 s", slow)
			}
		})
	}
}

// TestF42_OldRuleFails is the regression: choosing targets from the k-bucket of the key hash reaches a
// small part of the cluster, even without any loss.
func TestF42_OldRuleFails(t *testing.T) {
	for _, c := range []struct {
		n    int
		most float64
	}{{10, 0.9}, {100, 0.4}, {500, 0.2}} {
		have, alive := 0, 0
		for run := range 8 {
			w := newNetwork(uint64(run+1), c.n, 0, 0)
			w.choose = oldRule(w)
			key := fmt.Sprintf("spread.w%d", run)
			w.nodes[0].write(key)
			w.run(10 * time.Second)
			h, a, _ := w.coverage(key)
			have, alive = have+h, alive+a
		}
		share := float64(have) / float64(alive)
		t.Logf("%d cells: the old rule reaches %.2f of them", c.n, share)
		if share > c.most {
			t.Errorf("%d cells: the old rule reaches %.2f; this test's model of it is wrong", c.n, share)
		}
	}
}

// TestF28_DeadPeerDoesNotFillTheRing: 100 writes a second beside one dead peer that nobody suspects
// leave less than 10 % of the pending frames taken; once it is suspected, nothing is sent to it.
func TestF28_DeadPeerDoesNotFillTheRing(t *testing.T) {
	for _, n := range []int{3, 5, 20} {
		w := newNetwork(uint64(n), n, 0, 0)
		writer := w.nodes[0]
		dead := w.byID[writer.members.Successor(writer.id, nil).ID] // the worst place
		if dead == writer {
			t.Fatal("a cell is its own successor")
		}
		dead.dead = true
		suspected := false
		writer.gossip.options.Suspected = func(id wireCellID) bool { return suspected && id == dead.id }
		most := 0
		for i := range 1000 {
			writer.write(fmt.Sprintf("kv.w.%d", i))
			w.run(10 * time.Millisecond)
			most = max(most, writer.gossip.Stats().Pending)
		}
		t.Logf("%d cells: at most %d frames pending", n, most)
		if most >= PendingMax/10 {
			t.Errorf("%d cells: %d frames pending, want less than %d", n, most, PendingMax/10)
		}
		suspected = true
		w.run(4 * time.Second)
		for i := range 100 {
			writer.write(fmt.Sprintf("kv.w.%d", i))
		}
		for i := range writer.gossip.pending.slots {
			if s := &writer.gossip.pending.slots[i]; s.used && s.peer == dead.id {
				t.Fatalf("%d cells: a frame for a suspected peer is pending", n)
			}
		}
	}
}

// TestF27_ForwardingEnds: many writes of one key, then silence: nothing circulates for ever, and each
// change costs at most 3N frames plus retries.
func TestF27_ForwardingEnds(t *testing.T) {
	w := newNetwork(3, 50, 0.05, 0)
	for range 20 {
		w.nodes[0].write("spread.web")
		w.run(5 * time.Millisecond)
	}
	w.run(30 * time.Second)
	if len(w.queue) != 0 {
		t.Errorf("%d events left after 30 s", len(w.queue))
	}
	if w.frames > 20*50*4 {
		t.Errorf("%d frames for 20 writes in 50 cells", w.frames)
	}
	for _, x := range w.nodes {
		if x.have["spread.web"] != 20 || x.gossip.Stats().Pending != 0 {
			t.Errorf("version %d, %d pending", x.have["spread.web"], x.gossip.Stats().Pending)
		}
	}
}

// TestSameSeedSameRun holds determinism.
func TestSameSeedSameRun(t *testing.T) {
	run := func() string {
		w := newNetwork(4, 40, 0.2, 0.1)
		for i := range 30 {
			w.nodes[i%3].write(fmt.Sprintf("kv.a.%d", i%7))
			w.run(100 * time.Millisecond)
		}
		w.run(20 * time.Second)
		return fmt.Sprint(w.frames, w.serial, w.nodes[5].gossip.Stats())
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s and %s", a, b)
	}
}
