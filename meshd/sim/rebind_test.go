package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// recoveryMax is how long a write takes at most to a cell whose router has just forgotten it, and from there, where nothing
// is lost. It leaves a margin to the 10 s of F36: a busy machine takes longer.
const recoveryMax = 6 * time.Second

// Routers of every kind that forget together, in a cluster of many, at any moment: how long until a write that was made
// then has reached each of the cells behind them, and one of theirs another cell (F36).
func TestF36_RecoveryAfterRebinding(t *testing.T) {
	count, rounds := 2, 4
	if long() {
		count, rounds = 60, 10
	}
	took := make(map[NATKind][]time.Duration)
	for _, seed := range seeds(count) {
		weather := NetworkOptions{}
		if seed%2 == 0 {
			weather.DelayMin, weather.DelayMax = 5*time.Millisecond, 60*time.Millisecond
		}
		w := formBehind(t, seed, behindAll(2), weather)
		run(t, w, 60*time.Second)
		for round := range rounds {
			var victims []*Node
			for _, n := range w.Nodes() { // one of the two of each kind
				if n.router != nil && n.NAT != OneToOne && n.Index%2 == round%2 {
					victims = append(victims, n)
				}
			}
			for _, n := range victims {
				n.Rebind()
			}
			begin := w.Now()
			run(t, w, time.Duration(w.Random().IntN(300))*time.Millisecond)
			there := make(map[*Node]time.Duration)
			key := fmt.Sprintf("spread.k%d", round)
			w.Node(0).Set(key, Spec(0, "/bin/a"), uds.ExpectAny, nil)
			w.Until(20*time.Second, func() bool {
				for _, n := range victims {
					if entries, _ := value(n, key); entries > 0 && there[n] == 0 {
						there[n] = w.Now() - begin
					}
				}
				return len(there) == len(victims)
			})
			for _, n := range victims {
				at := there[n]
				if at == 0 {
					at = 20 * time.Second
				}
				took[n.NAT] = append(took[n.NAT], at)
				if at > recoveryMax {
					t.Errorf("seed %d, round %d: n%d (%v) after %v", seed, round, n.Index, n.NAT, at)
				}
				back := fmt.Sprintf("spread.k%d-%d", round, n.Index)
				n.Set(back, Spec(0, "/bin/a"), uds.ExpectAny, nil)
				until(t, w, recoveryMax, back+" on n1", func() bool { entries, _ := value(w.Node(1), back); return entries > 0 })
			}
			run(t, w, time.Duration(5+w.Random().IntN(40))*time.Second)
		}
	}
	for kind := Public; kind < NATKinds; kind++ {
		if all := took[kind]; len(all) > 0 {
			slices.Sort(all)
			t.Logf("%-16s %d times: median %v, p90 %v, p99 %v, slowest %v", kind, len(all), all[len(all)/2], all[len(all)*9/10],
				all[len(all)*99/100], all[len(all)-1])
		}
	}
}
