package sim

import (
	"slices"
	"testing"
)

// Operators can repair what the random scenarios do to a cluster behind routers: of the machines that can be called one
// never loses its memory, and it is the first where a filter lets through no other.
func TestGenerate_SomebodyWhoCanBeCalledKeepsItsMemory(t *testing.T) {
	behind := 0
	for seed := range uint64(4000) {
		s := Small(seed)
		if s.NAT == nil {
			continue
		}
		behind++
		lost := map[int]bool{}
		for _, f := range s.Faults {
			switch f.Verb {
			case Wipe, Leave:
				lost[f.Node] = true
			case Clone:
				lost[f.Other] = true
			}
		}
		if lost[0] && (lost[1] || slices.Contains(s.NAT, Blocked)) {
			t.Errorf("seed %d: the machines %v lose their memory, before them %v", seed, lost, s.NAT)
		}
	}
	if behind < 300 {
		t.Errorf("only %d of 4000 scenarios have routers", behind)
	}
}
