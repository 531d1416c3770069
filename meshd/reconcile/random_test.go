package reconcile

import (
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/workload"
)

// Random histories of what operators do on purpose: updates, scaling between 2 and 4 replicas,
// draining cells and taking them back. Every workload keeps at least one READY instance throughout,
// and when it is quiet exactly the placed instances run.
func TestF75_RandomGracefulHistories(t *testing.T) {
	for seed := range uint64(15) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, 6)
		names := []string{"plain", "published"}
		specs := []workload.Spec{{Replicas: 2}, {Replicas: 3, Ports: []workload.Port{{Host: 80, Container: 80}}}}
		digest := uint64(1)
		var keys []uint64
		for i := range names {
			keys = append(keys, w.apply(names[i], digest, specs[i]))
		}
		w.run(10 * time.Second)
		w.converged()
		w.check = func() {
			for i, key := range keys {
				if w.readyCount(key, 0) == 0 {
					t.Fatalf("seed %d: %s has no ready instance", seed, names[i])
				}
			}
		}
		for range 20 {
			i := random.IntN(len(names))
			switch random.IntN(4) {
			case 0:
				digest++
				w.apply(names[i], digest, specs[i])
			case 1:
				specs[i].Replicas = uint16(2 + random.IntN(3))
				w.apply(names[i], w.workloads[keys[i]].Digest, specs[i])
			default:
				c := w.cells[random.IntN(2)] // four cells always stay open
				c.offer.NoNew = !c.offer.NoNew
			}
			w.run(time.Duration(random.IntN(12000)) * time.Millisecond)
		}
		w.run(time.Minute)
		w.converged()
	}
}

// Random histories with cuts of single cells, crashes of instances and restarts of the daemon: when
// everything is well again, exactly the placed instances run.
func TestF131_RandomFaultsConverge(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, 5)
		keys := applyMany(w, 4, 2)
		w.run(10 * time.Second)
		for range 20 {
			c := w.cells[random.IntN(len(w.cells))]
			switch random.IntN(4) {
			case 0:
				if c.cutAt == 0 {
					c.cut()
				} else {
					c.heal()
				}
			case 1:
				clear(c.instances) // the host rebooted
				c.dirty = true
			case 2:
				if c.cutAt == 0 {
					c.restart()
				}
			case 3:
				w.apply("w0", uint64(random.IntN(3)+1), workload.Spec{Replicas: uint16(random.IntN(4))})
			}
			w.run(time.Duration(random.IntN(40000)) * time.Millisecond)
		}
		for _, c := range w.cells {
			if c.cutAt != 0 {
				c.heal()
			}
		}
		w.run(SurplusMax + time.Minute)
		w.converged()
		if w.readyCount(keys[1], 1) != 2 {
			t.Errorf("seed %d: %d ready", seed, w.readyCount(keys[1], 1))
		}
	}
}
