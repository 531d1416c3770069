package sim

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// circle is a number of machines, each a cluster of its own, of which each is told to join the next.
type circle struct {
	w      *World
	merge  bool
	asking map[*Node]int // process of a machine that has a connect under way
}

// newCircle makes the machines; with merge each of them has a workload of its own.
func newCircle(t *testing.T, seed uint64, cells int, merge bool) *circle {
	t.Helper()
	c := &circle{w: world(t, Options{Seed: seed, Cells: cells}), merge: merge, asking: map[*Node]int{}}
	for _, n := range c.w.Nodes() {
		n.disk.latency = time.Duration(1+c.w.Random().IntN(150)) * time.Millisecond
		n.Boot()
	}
	run(t, c.w, time.Second)
	for i, n := range c.w.Nodes() {
		if merge {
			n.Set(key(i), Spec(1, fmt.Sprintf("/bin/%d", i)), uds.ExpectAny, func(r cell.Response) {
				if r.Status != uds.OK {
					t.Fatalf("n%d: %s", i, r.Text)
				}
			})
		}
	}
	run(t, c.w, 2*time.Second)
	return c
}

func key(i int) string { return fmt.Sprintf("spread.a%d", i) }

// ask has a machine join the next one, again and again until it is in a cluster with another, as --join does.
func (c *circle) ask(n *Node) {
	nodes := c.w.Nodes()
	target := nodes[(n.Index+1)%len(nodes)]
	c.w.After(time.Second, func() { c.ask(n) })
	if n.cell == nil || n.cell.Joined() || c.asking[n] == n.run {
		return
	}
	run := n.run
	c.asking[n] = run
	n.connect(target, c.merge, func(cell.Response) {
		if n.run == run {
			delete(c.asking, n)
		}
	})
}

// start has all ask within a moment.
func (c *circle) start() {
	for _, n := range c.w.Nodes() {
		c.w.After(time.Duration(c.w.Random().Int64N(int64(300*time.Millisecond))), func() { c.ask(n) })
	}
}

// one reports whether all are active members of one cluster that has everybody's configuration.
func (c *circle) one() bool {
	nodes := c.w.Nodes()
	for _, n := range nodes {
		if n.cell == nil || n.cell.Phase() != cell.Active || n.cell.ClusterID() != nodes[0].cell.ClusterID() ||
			n.cell.AliveCount() != len(nodes) {
			return false
		}
		for i := range nodes {
			if entries, _ := value(n, key(i)); c.merge && entries != 1 {
				return false
			}
		}
	}
	return true
}

func (c *circle) describe() string {
	text := c.w.describe()
	for _, n := range c.w.Nodes() {
		if n.cell != nil {
			text += fmt.Sprintf("n%d in %x", n.Index, n.cell.ClusterID()>>48)
			for i := range c.w.Nodes() {
				entries, _ := value(n, key(i))
				text += fmt.Sprintf(" %d", entries)
			}
			text += "; "
		}
	}
	return text
}

// Cells that join each other at the same time end in one cluster, whoever was faster, and with --merge nothing of
// what any of them had is lost. Any of them can leave again (D1, BOOT-2).
func TestBOOT2_CellsThatJoinEachOther(t *testing.T) {
	for _, cells := range []int{2, 3} {
		for _, merge := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d cells, merge %t", cells, merge), func(t *testing.T) {
				slowest := time.Duration(0)
				for _, seed := range seeds(40) {
					c := newCircle(t, seed, cells, merge)
					c.start()
					took, ok := c.w.Until(40*time.Second, c.one)
					if !ok {
						t.Fatalf("seed %d: not one cluster: %s", seed, c.describe())
					}
					slowest = max(slowest, took)
					left := false
					n := c.w.Node(int(seed) % cells)
					n.Command(cell.Request{Code: uds.CodeLeave, Payload: []byte{0, 20}}, func(r cell.Response) {
						left = r.Status == uds.OK
					})
					until(t, c.w, 40*time.Second, "a cell leaves", func() bool { return left })
				}
				t.Logf("one cluster within %v", slowest)
			})
		}
	}
}

// The same while processes are killed at any moment of it: nothing that was acknowledged is lost.
func TestBOOT2_CellsThatJoinEachOtherAndCrash(t *testing.T) {
	for _, cells := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d cells", cells), func(t *testing.T) {
			slowest := time.Duration(0)
			for _, seed := range seeds(80) {
				c := newCircle(t, seed, cells, true)
				c.start()
				for range 1 + c.w.Random().IntN(3) {
					run(t, c.w, time.Duration(c.w.Random().Int64N(int64(700*time.Millisecond))))
					n := c.w.Node(c.w.Random().IntN(cells))
					n.Kill()
					run(t, c.w, time.Duration(c.w.Random().Int64N(int64(time.Second))))
					n.Boot()
				}
				took, ok := c.w.Until(2*time.Minute, c.one)
				if !ok {
					t.Fatalf("seed %d: not one cluster: %s", seed, c.describe())
				}
				slowest = max(slowest, took)
			}
			t.Logf("one cluster within %v", slowest)
		})
	}
}
