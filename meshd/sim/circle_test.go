package sim

import (
	"testing"
	"time"
)

// Cells that all try to join the next one of a ring, beginning within two seconds: three end in one cluster. Of more, two that do not
// know of each other may let somebody in at the same time, and whoever has does not move, so there may be several clusters; but
// nobody is left alone, and those of a cluster agree on who is in it (BOOT-2, D1).
func TestBOOT2_RingsOfCells(t *testing.T) {
	count := 6
	if long() {
		count = 200
	}
	for cells := 3; cells <= 8; cells++ {
		apart, slowest := 0, time.Duration(0)
		for _, seed := range seeds(count) {
			c := newCircle(t, seed, cells, false)
			for _, n := range c.w.Nodes() {
				c.w.After(time.Duration(c.w.Random().Int64N(int64(2*time.Second))), func() { c.ask(n) })
			}
			took, ok := c.w.Until(40*time.Second, c.one)
			if ok {
				slowest = max(slowest, took)
				continue
			}
			apart++
			sizes := make(map[uint64]int)
			for _, n := range c.w.Nodes() {
				sizes[n.cell.ClusterID()]++
			}
			for _, n := range c.w.Nodes() {
				if size := sizes[n.cell.ClusterID()]; size < 2 || n.cell.AliveCount() != size || !n.cell.Joined() {
					t.Errorf("%d cells, seed %d: n%d is in a cluster of %d: %s", cells, seed, n.Index, size, c.describe())
				}
			}
		}
		t.Logf("%d cells: %d of %d rings are not one cluster, the others within %v", cells, apart, len(seeds(count)), slowest)
		if cells == 3 && apart > 0 {
			t.Errorf("%d of %d rings of three are not one cluster", apart, len(seeds(count)))
		}
	}
}
