package sim

import (
	"fmt"
	"os"
	"testing"
)

// The random scenarios: every seed is another cluster, other faults, other operators. One fails: run
//
//	go test ./meshd/sim -run Sim -seed N
//
// to see the same run again with its timeline; add -trace to see it while it happens.
func TestSim_SAFE4_CONV2_EXEC2_RandomFaults(t *testing.T) {
	for _, seed := range seeds(testSeeds()) {
		s := Small(seed)
		var lines []string
		result := s.Run(func(line string) { lines = append(lines, line) })
		if *traceFlag {
			for _, line := range lines {
				t.Log(line)
			}
		}
		if result.Failure == nil {
			continue
		}
		t.Errorf("%v\n  %v", result.Failure, result)
		if *seedFlag != 0 && !*traceFlag {
			for _, line := range lines {
				t.Log(line)
			}
		}
	}
}

// testSeeds is how many random scenarios a plain run of the tests plays; `make sim` plays many more.
func testSeeds() int {
	if text := os.Getenv("COLLOID_SIM_SEEDS"); text != "" {
		n := 0
		if _, err := fmt.Sscan(text, &n); err == nil {
			return n
		}
	}
	return 30
}
