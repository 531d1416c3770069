package placement

import (
	"slices"
	"testing"
)

// checkRankings compares every kept ranking with the order computed from nothing: its list is the
// beginning of that order, and it holds every member with a score above its floor.
func checkRankings(t interface{ Fatalf(string, ...any) }, p *Planner) {
	for _, d := range p.demands {
		checkRanking(t, p, d, &d.first, 0)
		for i := range d.indexed {
			checkRanking(t, p, d, &d.indexed[i], uint16(i))
		}
	}
}

func checkRanking(t interface{ Fatalf(string, ...any) }, p *Planner, d *demand, r *ranking, index uint16) {
	if !r.valid {
		return
	}
	var want []ranked
	for _, n := range p.order {
		if d.class.refusal(&p.nodes[n].cell) == blockNothing {
			want = append(want, ranked{oracleScore(d.w.KeyHash, p.nodes[n].cell.ID, int(index)), n})
		}
	}
	slices.SortFunc(want, p.compareRanked)
	above := 0
	for above < len(want) && want[above].score > r.floor {
		above++
	}
	if len(want) != d.class.count || len(r.list) > len(want) || !slices.Equal(r.list, want[:len(r.list)]) ||
		r.complete && len(r.list) != len(want) || len(r.list) < above {
		t.Fatalf("ranking %+v of index %d, want %v", *r, index, want)
	}
}

// Equal scores are ranked by cell id; the floor is the one place where a tie could be lost.
func TestTiesAreRankedByCellID(t *testing.T) {
	cells, list := benchmarkInput(20, 1, 1)
	p := NewPlanner(testKey0, testKey1)
	p.Compute(cells[1:], list)
	r := &p.demands[0].first
	r.floor = p.Score(list[0].KeyHash, cells[0].ID, 0) // as if the last of the list had tied with it
	p.Compute(cells, list)
	checkRankings(t, p)
	if a, b := (ranked{5, p.order[0]}), (ranked{5, p.order[1]}); !p.precedes(a, b) || p.precedes(b, a) {
		t.Error("the lower id does not win a tie")
	}
}
