package sim

import (
	"fmt"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

func TestDebugStorm(t *testing.T) {
	s := Small(*seedFlag)
	s.Prepare = func(w *World) {
		w.After(s.Duration+80*time.Second, func() {
			counts := map[string]int{}
			n := 0
			w.network.tap = func(from, to *Node, d []byte) {
				h, _, _, _ := wire.ParseHeader(d)
				counts[fmt.Sprintf("%v %d>%d len %d", h.Type, from.Index, to.Index, len(d)/50*50)]++
				if n++; n<60 { fmt.Printf("%.6f %v n%d>n%d %d %08x\n", w.now.Seconds(), h.Type, from.Index, to.Index, len(d), h.Nonce) }
			}
			w.After(1*time.Second, func() { for _, k := range sortedKeys(counts) { fmt.Println(k, counts[k]) } ; w.fail("debug", "stop") })
		})
	}
	var lines []string
	r := s.Run(func(l string) { lines = append(lines, l) })
	for _, l := range lines[max(0, len(lines)-60):] { fmt.Println(l) }
	fmt.Println(r.Failure)
}
