package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/nat"
)

// oddities are what may happen while cells find out about their routers and each other.
var oddities = []struct {
	name     string
	strict   bool // every pair is direct at the first attempt all the same
	tracking bool // see Options.Tracking
	spread   time.Duration
	begin    func(w *World)
}{
	{name: "apart", strict: true, spread: time.Minute},
	{name: "tracking", tracking: true, spread: 10 * time.Second},
	{name: "slow", strict: true, spread: 5 * time.Second, begin: func(w *World) {
		for _, n := range w.Nodes() {
			w.slow(n, w.now+3*time.Minute)
		}
	}},
	{name: "helpers", spread: 5 * time.Second, begin: func(w *World) {
		for range 4 {
			n := w.Node(1 + w.Random().IntN(len(w.Nodes())-1))
			if n.NAT != Public && n.NAT != FullCone && n.NAT != OneToOne {
				n = w.Node(1)
			}
			w.After(time.Duration(w.Random().Int64N(int64(30*time.Second))), func() {
				n.Kill()
				w.After(time.Duration(w.Random().Int64N(int64(20*time.Second))), n.Boot)
			})
		}
	}},
	{name: "forgetful", spread: 5 * time.Second, begin: func(w *World) {
		for range 8 {
			n := w.Node(1 + w.Random().IntN(len(w.Nodes())-1))
			w.After(time.Duration(w.Random().Int64N(int64(40*time.Second))), n.Rebind)
		}
	}},
}

// slow has a process wait 100 to 500 ms for the processor again and again, as on a loaded machine.
func (w *World) slow(n *Node, until time.Duration) {
	if w.now >= until {
		n.Resume()
		return
	}
	between := func(from, to int) time.Duration {
		return time.Duration(from+w.Random().IntN(to-from)) * time.Millisecond
	}
	n.Pause()
	w.After(between(100, 500), func() {
		n.Resume()
		w.After(between(20, 300), func() { w.slow(n, until) })
	})
}

// histories collects what cells log about their paths and classes.
type histories struct{ lines map[*Node][]string }

func (h *histories) note(n *Node, line string) { h.lines[n] = append(h.lines[n], line) }

// of returns what two cells said about each other and about themselves, in order.
func (h *histories) of(a, b *Node) string {
	var lines []string
	for _, pair := range [2][2]*Node{{a, b}, {b, a}} {
		for _, line := range h.lines[pair[0]] {
			_, path, about := strings.Cut(line, " path to ")
			if !about || strings.HasPrefix(path, pair[1].ID().String()) {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// The matrix of routers when cells come one by one over a minute, when their machines are slow, when two of one port share a Linux
// router, when those that help die meanwhile, and when routers forget: in the first two every pair is direct at the first attempt
// all the same, and in all of them it is within three minutes, so nobody stays with a relay that a hole would do for (F35, F36).
func TestF35_F36_OddTimesOfRouters(t *testing.T) {
	count := 2
	if long() {
		count = 60
	}
	for _, oddity := range oddities {
		t.Run(oddity.name, func(t *testing.T) {
			for _, seed := range seeds(count) {
				oddMatrix(t, seed, oddity.spread, oddity.begin, oddity.strict, oddity.tracking)
			}
		})
	}
}

// joinOn has a machine join another one until it has, whatever happens to both meanwhile.
func (w *World) joinOn(n, seed *Node) {
	if n.cell != nil && n.cell.Joined() {
		return
	}
	n.connect(seed, false, nil)
	w.After(2*time.Second, func() { w.joinOn(n, seed) })
}

// oddMatrix runs one such matrix.
func oddMatrix(t *testing.T, seed uint64, spread time.Duration, begin func(*World), strict, tracking bool) {
	weather := NetworkOptions{}
	switch seed % 3 {
	case 1:
		weather.DelayMin, weather.DelayMax = 5*time.Millisecond, 60*time.Millisecond
	case 2:
		weather.DelayMin, weather.DelayMax = 40*time.Millisecond, 150*time.Millisecond
	}
	kinds := behindAll(2)
	h := histories{lines: make(map[*Node][]string)}
	options := Options{Seed: seed, Network: weather, NAT: kinds, Debug: h.note, Tracking: tracking}
	if *traceFlag {
		options.Trace = func(line string) { t.Log(line) }
		options.Debug = func(n *Node, line string) {
			h.note(n, line)
			t.Log(line)
		}
	}
	w := New(options)
	w.Random().Shuffle(len(kinds)-2, func(i, j int) { kinds[i+2], kinds[j+2] = kinds[j+2], kinds[i+2] })
	for range kinds {
		w.AddNode().Boot()
	}
	w.cluster = w.Node(0).cell.ClusterID()
	w.joinOn(w.Node(1), w.Node(0)) // one observer cannot tell what a router does
	for _, n := range w.Nodes()[2:] {
		seed := w.Node(0)
		if n.NAT != Blocked && tracking {
			seed = w.Node(n.Index % 2)
		}
		w.After(time.Duration(w.Random().Int64N(int64(spread))), func() { w.joinOn(n, seed) })
	}
	if begin != nil {
		begin(w)
	}
	run(t, w, max(spread, 60*time.Second))
	if _, ok := w.Until(6*time.Minute, w.Formed); !ok {
		t.Errorf("seed %d: not formed: %v", seed, w.Failure)
		for _, n := range w.Nodes() {
			t.Logf("n%d %v: %v, joined %v, %d alive", n.Index, n.NAT, n.cell.Phase(), n.cell.Joined(), n.cell.AliveCount())
		}
		return
	}
	formed := w.now
	var last [2]*Node
	late := func() (count int) {
		for _, a := range w.Nodes() {
			for _, b := range w.Nodes() {
				if a == b {
					continue
				}
				r, _ := a.cell.PathTo(b.ID())
				direct := r.Kind == nat.KindDirect || r.Kind == nat.KindPunched
				if direct != theory(w, a, b) || !direct && r.Kind != nat.KindRelayed {
					count++
					last = [2]*Node{a, b}
				}
			}
		}
		return count
	}
	var times []string
	counts := func() string {
		by := make(map[string]int)
		for _, a := range w.Nodes() {
			for _, b := range w.Nodes() {
				if r, _ := a.cell.PathTo(b.ID()); a != b && theory(w, a, b) && r.Kind != nat.KindDirect && r.Kind != nat.KindPunched {
					by[fmt.Sprintf("to n%d %v %v", b.Index, b.NAT, r.Kind)]++
				}
			}
		}
		return fmt.Sprint(by)
	}
	settled := false
	for w.now < formed+10*time.Minute && !settled {
		run(t, w, 5*time.Second)
		left := late()
		if *traceFlag {
			t.Log(counts())
		}
		times = append(times, fmt.Sprint(left))
		settled = left == 0
	}
	t.Logf("seed %d: formed after %v, then pairs that are not yet as theory has it, every 5 s: %s", seed, formed, strings.Join(times, " "))
	if !settled || w.now > formed+3*time.Minute {
		t.Errorf("seed %d: %v (n%d) and %v (n%d) were among the last, %v after all were there\n%s", seed, last[0].NAT, last[0].Index,
			last[1].NAT, last[1].Index, w.now-formed, h.of(last[0], last[1]))
	}
	if !strict {
		return
	}
	for _, a := range w.Nodes() {
		for _, b := range w.Nodes()[:a.Index] {
			if r, _ := a.cell.PathTo(b.ID()); theory(w, a, b) && r.Attempts > 1 {
				t.Errorf("seed %d: %v to %v: %d attempts\n%s", seed, a.NAT, b.NAT, r.Attempts, h.of(a, b))
			}
		}
	}
}
