package e2e

import (
	"strings"
	"testing"

	"colloid.net/e2e/cluster"
)

// The last two cells leave at the same moment: at least one of the operators hears that the configuration ends.
func TestTheLastTwoThatLeaveTogetherWarn(t *testing.T) {
	t.Parallel()
	f := start(t, 2)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(1, ""))
	f.answers(f.Cells[0], 1)
	results := make(chan cluster.Result, 2)
	for _, cell := range f.Cells {
		go func() {
			result, err := cell.Run(t.Context(), "leave", "--drain", "5s")
			if err != nil {
				t.Error(err)
			}
			results <- result
		}()
	}
	warned := 0
	for range f.Cells {
		result := <-results
		if result.Exit != 0 {
			t.Errorf("exit %d: %s", result.Exit, result.Errors)
		}
		warned += strings.Count(result.Errors, "the configuration of 1 workload ends with this cell")
		t.Log(strings.TrimSpace(result.Errors))
	}
	if warned == 0 {
		t.Error("nobody was told that the configuration ends")
	}
}
