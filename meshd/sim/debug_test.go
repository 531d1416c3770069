package sim

import (
	"fmt"
	"testing"
	"colloid.net/meshd/cell"
	"colloid.net/ipc/uds"
)

func TestDebug(t *testing.T) {
	s := Small(*seedFlag)
	var lines []string
	var w *World
	s.Prepare = func(x *World) { w = x }
	r := s.Run(func(l string) { lines = append(lines, l) })
	fmt.Println(r.Failure)
	for _, n := range w.nodes[:2] {
		if n.cell == nil { continue }
		fmt.Printf("n%d %s alive %d shared %v holds\n", n.Index, n.ID(), n.cell.AliveCount(), n.cell.PlanIsShared())
		for _, k := range []string{"spread.a", "spread.b", "spread.c"} {
			if reg, ok := n.cell.Store().Get([]byte(k)); ok {
			fmt.Printf("   %s entries %d plan %v\n", k, reg.EntryCount(), n.cell.Plan().Of(reg.KeyHash()))
			}

		}
	}
}
