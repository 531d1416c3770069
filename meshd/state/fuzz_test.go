package state

import (
	"bytes"
	"strconv"
	"testing"

	"colloid.net/meshd/wire"
)

// FuzzSmallValues holds values of a few bytes: they have one form, so what parses is written as it was.
func FuzzSmallValues(f *testing.F) {
	f.Add(AppendLoad(nil, 55))
	f.Add([]byte{1, 101})
	f.Add(AppendPast(nil, []uint64{1, 2}))
	f.Fuzz(func(t *testing.T, value []byte) {
		percent, err := ParseLoad(value)
		if err == nil && (percent > 100 || !bytes.Equal(AppendLoad(nil, percent), value)) || err != nil && percent != 0 {
			t.Fatalf("%x became %d, %v", value, percent, err)
		}
		past, err := ParsePast(value)
		if err == nil && (len(past) > PastMax || !bytes.Equal(AppendPast(nil, past), value)) || err != nil && past != nil {
			t.Fatalf("%x became %v, %v", value, past, err)
		}
	})
}

// FuzzSplitKeys holds the names of keys about roll-outs, environments, drains and gateways: each has one form
// (F61).
func FuzzSplitKeys(f *testing.F) {
	for _, name := range []string{RolloutKey("web", RolloutGood), RolloutKey("web", PastField(5)), EnvironmentKey("web", 5, 7),
		DrainKey(9), "gateway.10.0.0.1", "gateway.::ffff:10.0.0.1", "env.web.0000000000000005.8", "rollout..good"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if workload, field, ok := SplitRollout(name); ok && (RolloutKey(workload, field) != name || !ValidWorkloadName(workload)) {
			t.Fatalf("%q taken for %q of %q", name, field, workload)
		}
		if workload, digest, part, ok := SplitEnvironment(name); ok {
			number, err := strconv.ParseUint(digest, 16, 64)
			if err != nil || EnvironmentKey(workload, number, part) != name || part < 0 || part >= EnvironmentPartsMax {
				t.Fatalf("%q taken for part %d of %q of %q, %v", name, part, digest, workload, err)
			}
		}
		if cell, ok := SplitDrain(name); ok && DrainKey(cell) != name {
			t.Fatalf("%q taken for the drain of %v", name, cell)
		}
		if vip, ok := SplitGateway(name); ok && GatewayKey(vip) != name {
			t.Fatalf("%q taken for the gateway of %v", name, vip)
		}
		if cell, err := wire.ParseCellID(name); err == nil && (cell.String() != name || !cell.Valid()) {
			t.Fatalf("%q taken for %v", name, cell)
		}
	})
}
