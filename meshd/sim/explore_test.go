package sim

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"testing"
	"time"

	"colloid.net/meshd/nat"
)

func TestExplore(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("EXPLORE"))
	if n == 0 {
		t.Skip()
	}
	loss, _ := strconv.ParseFloat(os.Getenv("LOSS"), 64)
	mode := os.Getenv("MODE")
	total, bad, notDirect := 0, map[string]int{}, 0
	matrices := 0
	first, _ := strconv.Atoi(os.Getenv("FIRST"))
	for seed := uint64(first + 1); seed <= uint64(first+n); seed++ {
		kinds := behindAll(2)
		o := NetworkOptions{Loss: loss}
		if seed%3 == 1 {
			o.DelayMin, o.DelayMax = 5*time.Millisecond, 60*time.Millisecond
		} else if seed%3 == 2 {
			o.DelayMin, o.DelayMax = 40*time.Millisecond, 150*time.Millisecond
		}
		w := New(Options{Seed: seed, Cells: len(kinds), NAT: kinds, Network: o})
		if mode == "stagger" {
			w.Random().Shuffle(len(kinds)-2, func(i, j int) { kinds[i+2], kinds[j+2] = kinds[j+2], kinds[i+2] })
			w = New(Options{Seed: seed, Cells: len(kinds), NAT: kinds, Network: o})
			for _, n := range w.nodes {
				n.Boot()
			}
			w.Run(10 * time.Millisecond)
			spread := time.Duration(1+seed%5) * 5 * time.Second
			for _, n := range w.nodes[1:] {
				w.After(time.Duration(w.random.Int64N(int64(spread))), func() { w.join(n, w.nodes[0]) })
			}
			if _, ok := w.Until(3*time.Minute, w.Formed); !ok {
				t.Errorf("seed %d not formed", seed)
				continue
			}
		} else if err := w.Form(2 * time.Minute); err != nil {
			t.Error(err)
			continue
		}
		run(t, w, 120*time.Second)
		matrices++
		m := 0
		for _, a := range w.Nodes() {
			for _, b := range w.Nodes() {
				if a == b || !theory(w, a, b) {
					continue
				}
				r, _ := a.cell.PathTo(b.ID())
				if r.Kind != nat.KindDirect && r.Kind != nat.KindPunched {
					notDirect++
					t.Logf("seed %d: n%d n%d %v to %v: %+v", seed, a.Index, b.Index, a.NAT, b.NAT, r)
				}
				if r.Attempts > 1 {
					m++
					bad[fmt.Sprintf("%v -> %v", a.NAT, b.NAT)]++
					if total < 40 {
						t.Logf("seed %d: n%d n%d %v to %v: %d attempts", seed, a.Index, b.Index, a.NAT, b.NAT, r.Attempts)
					}
					total++
				}
			}
		}
	}
	var keys []string
	for k := range bad {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return bad[keys[i]] > bad[keys[j]] })
	for _, k := range keys {
		t.Logf("%4d %s", bad[k], k)
	}
	t.Logf("%d matrices, %d second attempts, %d not direct", matrices, total, notDirect)
}
