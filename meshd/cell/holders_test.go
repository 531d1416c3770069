package cell

import (
	"fmt"
	"testing"

	"colloid.net/meshd/state"
)

// Who had a replica last matters where it has volumes. However many other workloads come and go, there is room for it.
func TestOtherWorkloadsDoNotFillTheTableOfHolders(t *testing.T) {
	c := lonely(t)
	note := func(prefix, name string) {
		c.noteHolders(endpointID{9, name}, &state.CellEndpoint{KeyHash: c.store.Hash([]byte(prefix + name)),
			Instances: []state.EndpointInstance{{Slot: 1, Digest: 1, State: state.EndpointReady}}})
	}
	for i := range volumeHoldersMax {
		note(state.PrefixSpread, fmt.Sprintf("web%d", i))
	}
	note(state.PrefixStateful, "db")
	if holder := c.views.holders[volumeSlot{"db", 1}]; holder != 9 {
		t.Errorf("the replica with volumes is noted on %v, among %d", holder, len(c.views.holders))
	}
	for i := range volumeHoldersMax {
		note(state.PrefixStateful, fmt.Sprintf("db%d", i))
	}
	if len(c.views.holders) > volumeHoldersMax {
		t.Errorf("%d holders", len(c.views.holders))
	}
}
