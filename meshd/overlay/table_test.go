package overlay

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

func contact(id wire.CellID, subnet int) wire.Contact {
	a := netip.AddrFrom4([4]byte{10, byte(subnet >> 8), byte(subnet), byte(id)})
	return wire.Contact{ID: id, Address: netip.AddrPortFrom(a, wire.Port)}
}

// TestF38_LiveContactsStay: a full bucket keeps contacts that answer, a failing one is replaced, the
// newest spare first.
func TestF38_LiveContactsStay(t *testing.T) {
	const high = wire.CellID(1) << 63 // all in bucket 0
	table := NewTable(TableOptions{Self: 1, K: 4})
	now := start
	for i := range wire.CellID(4) {
		if v, _ := table.Insert(now.Add(time.Duration(i)), contact(high+i, int(i)), 0); v != Inserted {
			t.Fatalf("contact %d: verdict %v", i, v)
		}
	}
	now = now.Add(time.Minute)
	table.Answered(now, high)
	for i := wire.CellID(10); i < 20; i++ {
		v, oldest := table.Insert(now, contact(high+i, int(i)), time.Nanosecond) // a better RTT evicts nobody
		if v != Spare || oldest.ID != high+1 {
			t.Fatalf("newcomer %d: verdict %v, oldest %v", i, v, oldest.ID)
		}
	}
	if spares := len(table.buckets[0].spares); spares != 4 {
		t.Errorf("%d spares, want k = 4", spares)
	}
	for range FailureThreshold {
		table.Failed(high + 2)
	}
	if _, there := table.Get(high + 2); there {
		t.Error("the failing contact is still there")
	}
	if _, there := table.Get(high + 19); !there {
		t.Error("the newest spare did not take its place")
	}
	for _, id := range []wire.CellID{high, high + 1, high + 3} {
		if _, there := table.Get(id); !there {
			t.Errorf("live contact %v is gone", id)
		}
	}
	table.Failed(high + 3)
	table.Insert(now, contact(high+3, 3), 0)
	table.Failed(high + 3)
	table.Failed(high + 3)
	if _, there := table.Get(high + 3); !there {
		t.Error("failures before an answer were counted")
	}
	if table.Len() != 4 {
		t.Errorf("length %d, want 4", table.Len())
	}
}

// TestF15_HostileContacts: a thousand contacts of one attacker's network leave the honest share of every
// bucket unchanged, and get at most two places in each.
func TestF15_HostileContacts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	table := NewTable(TableOptions{Self: 1})
	honest := map[wire.CellID]bool{}
	for i := range 300 {
		id := wire.CellID(random.Uint64())
		if v, _ := table.Insert(start, contact(id, i+1000), 0); v == Inserted {
			honest[id] = true
		}
	}
	for range 1000 {
		table.Insert(start.Add(time.Hour), contact(wire.CellID(random.Uint64()), 7), time.Nanosecond)
	}
	for i := range BucketsMax {
		hostile := 0
		for _, e := range table.buckets[i].entries {
			if !honest[e.Contact.ID] {
				hostile++
			}
			delete(honest, e.Contact.ID)
		}
		if hostile > SubnetMax {
			t.Errorf("bucket %d holds %d contacts of one /24, want at most %d", i, hostile, SubnetMax)
		}
	}
	if len(honest) != 0 {
		t.Errorf("%d honest contacts were pushed out", len(honest))
	}
}

func TestTableRefuses(t *testing.T) {
	table := NewTable(TableOptions{Self: 1})
	for _, c := range []wire.Contact{
		contact(1, 1), contact(0, 1), contact(^wire.CellID(0), 1),
		{ID: 5}, {ID: 5, Address: netip.MustParseAddrPort("10.0.0.1:0")},
		{ID: 5, Address: netip.MustParseAddrPort("224.0.0.1:9")},
		{ID: 5, Address: netip.MustParseAddrPort("[::]:9")},
	} {
		if v, _ := table.Insert(start, c, 0); v != Refused {
			t.Errorf("%+v: verdict %v, want refused", c, v)
		}
	}
	for i := range wire.CellID(3) {
		v, _ := table.Insert(start, contact(16+i, 1), 0)
		if want := []Verdict{Inserted, Inserted, Refused}[i]; v != want {
			t.Errorf("contact %d of one /24: %v, want %v", i, v, want)
		}
	}
	anywhere := NewTable(TableOptions{Self: 1, AnySubnet: true})
	for i := range wire.CellID(10) {
		if v, _ := anywhere.Insert(start, contact(16+i, 1), 0); v != Inserted {
			t.Errorf("with any subnet: %v, want inserted", v)
		}
	}
	table.Remove(16)
	table.Remove(1)
	if table.Len() != 1 {
		t.Errorf("length %d after a removal, want 1", table.Len())
	}
}

// TestClosestAgainstSort compares with sorting everybody.
func TestClosestAgainstSort(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	for range 50 {
		table := NewTable(TableOptions{Self: wire.CellID(random.Uint64()), AnySubnet: true})
		var all []wire.CellID
		for i := range 200 {
			c := contact(wire.CellID(random.Uint64()), i)
			if v, _ := table.Insert(start, c, 0); v == Inserted {
				all = append(all, c.ID)
			}
		}
		target := wire.CellID(random.Uint64())
		slices.SortFunc(all, func(a, b wire.CellID) int { return cmp.Compare(a^target, b^target) })
		var got []wire.CellID
		for _, c := range table.Closest(target, 20, nil) {
			got = append(got, c.ID)
		}
		if !slices.Equal(got, all[:20]) {
			t.Fatalf("closest to %v: %v, want %v", target, got, all[:20])
		}
	}
}

// TestF39_Estimate: within a factor of three for 16 to 4096 cells.
func TestF39_Estimate(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 1))
	for n := 16; n <= 4096; n *= 2 {
		for range 50 {
			table := NewTable(TableOptions{Self: wire.CellID(random.Uint64()), AnySubnet: true})
			for i := range n - 1 {
				table.Insert(start, contact(wire.CellID(random.Uint64()), i), 0)
			}
			if got := table.Estimate(); got < uint64(n)/3 || got > uint64(n)*3 {
				t.Errorf("%d cells estimated as %d", n, got)
			}
		}
	}
}

func TestRefresh(t *testing.T) {
	table := NewTable(TableOptions{Self: 1 << 20, AnySubnet: true})
	if _, ok := table.Refresh(start, 0); ok {
		t.Error("an empty table wants a refresh")
	}
	table.Insert(start, contact(1<<40, 1), 0)
	target, ok := table.Refresh(start, 0xdeadbeef)
	if !ok || table.index(target) != table.index(1<<40) {
		t.Fatalf("refresh of %v, %v; want an id in the bucket of the only contact", target, ok)
	}
	table.Looked(start, target)
	if _, ok := table.Refresh(start.Add(RefreshInterval-1), 0); ok {
		t.Error("refreshed within the hour")
	}
	if _, ok := table.Refresh(start.Add(RefreshInterval), 0); !ok {
		t.Error("not refreshed after an hour")
	}
}

// Any proof of life forgets the failures before it: only those in a row count (F38).
func TestF38_OnlyFailuresInARowCount(t *testing.T) {
	const high = wire.CellID(1) << 63
	table := NewTable(TableOptions{Self: 1, K: 1})
	table.Insert(start, contact(high, 1), 0)
	table.Insert(start, contact(high+1, 2), 0) // waits for the place
	for range 5 {
		for range FailureThreshold - 1 {
			table.Failed(high)
		}
		table.Answered(start, high)
	}
	if _, there := table.Get(high); !there {
		t.Fatal("a contact that answers now and then lost its place")
	}
	for range FailureThreshold {
		table.Failed(high)
	}
	if _, there := table.Get(high + 1); !there {
		t.Error("the spare did not take the place of one that answers no more")
	}
}
