package sim

import (
	"slices"
	"testing"
	"time"
)

// A rule counts what it looks at; what it never saw is named.
func TestExamined_NamesTheRulesThatSawNothing(t *testing.T) {
	s := Scenario{Seed: 1, Cells: 4, Duration: 2 * time.Minute, Faults: conflict()}
	result := s.Run(nil)
	if result.Failure != nil {
		t.Fatal(result.Failure)
	}
	vacuous := Unexamined(result.Examined)
	for _, rule := range []string{"SAFE-2", "SAFE-3", "SAFE-4", "SEC", "EXEC-2", "CONV-2", "storage"} {
		if slices.Contains(vacuous, rule) {
			t.Errorf("%s had something to examine: a conflict, four cells, a workload", rule)
		}
	}
	for _, rule := range []string{"SAFE-5", "F14", "F26", "F83"} {
		if !slices.Contains(vacuous, rule) {
			t.Errorf("%s examined %d things where there is nothing for it", rule, result.Examined[rule])
		}
	}
}
