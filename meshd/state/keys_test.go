package state

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

const cellA = wire.CellID(0x0a000000000000ff)

// TestF61_KeysHaveOneForm holds builders and splitters to exactly one spelling of every key.
func TestF61_KeysHaveOneForm(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{StatusKey(cellA), "health.0a000000000000ff.status"},
		{ContactKey(cellA), "health.0a000000000000ff.contact"},
		{CapacityKey(cellA), "health.0a000000000000ff.capacity"},
		{EndpointKey(cellA, "web"), "ep.0a000000000000ff.web"},
		{DenyKey(cellA, "web-2"), "deny.0a000000000000ff.web-2"},
		{VIPKey(netip.MustParseAddr("10.0.0.100")), "vip.10.0.0.100"},
		{VIPKey(netip.MustParseAddr("::ffff:10.0.0.100")), "vip.10.0.0.100"},
		{VIPKey(netip.MustParseAddr("2001:DB8:0:0:0:0:0:1")), "vip.2001:db8::1"},
		{VIPKey(netip.MustParseAddr("2001:db8:0:0:1:0:0:1")), "vip.2001:db8::1:0:0:1"},
		{VIPKey(netip.MustParseAddr("2001:db8:0:1:1:1:1:1")), "vip.2001:db8:0:1:1:1:1:1"},
		{VIPKey(netip.MustParseAddr("fe80::1%eth0")), "vip.fe80::1"},
		{GatewayKey(netip.MustParseAddr("::ffff:10.0.0.100")), "gateway.10.0.0.100"},
	} {
		if test.got != test.want {
			t.Errorf("key %q, want %q", test.got, test.want)
		}
	}
	if n := len(EndpointKey(cellA, strings.Repeat("w", WorkloadNameMax))); n > wire.NameMax {
		t.Errorf("endpoint key of %d bytes", n)
	}
	for _, name := range []string{"vip.::ffff:10.0.0.100", "vip.2001:DB8::1", "vip.2001:db8:0:0:0:0:0:1",
		"vip.010.0.0.1", "vip.", "vip.web", "vip.fe80::1%eth0", "vip.10.0.0.100 ", "gateway.10.0.0.100"} {
		if vip, ok := SplitVIP(name); ok {
			t.Errorf("%q accepted as %s", name, vip)
		}
	}
	for _, name := range []string{"health.0A000000000000ff.status", "health.a000000000000ff.status",
		"health.0a000000000000ff.", "health.0a000000000000ff", "health.0000000000000000.status",
		"health.0a000000000000ff.sub.status", "health.0a000000000000ff.Status", "health.status", "health.", ""} {
		if cell, field, ok := HealthKey(name); ok || cell != 0 || field != "" {
			t.Errorf("%q accepted as %s %q", name, cell, field)
		}
	}
}

func TestF61_SplittersUndoBuilders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cell := wire.CellID(rapid.Uint64Range(1, 1<<64-2).Draw(t, "cell"))
		workload := rapid.StringMatching(`[a-z0-9-]{1,63}`).Draw(t, "workload")
		if c, w, ok := SplitEndpoint(EndpointKey(cell, workload)); !ok || c != cell || w != workload {
			t.Fatalf("endpoint key of %s %s came back as %s %s", cell, workload, c, w)
		}
		if c, w, ok := SplitDeny(DenyKey(cell, workload)); !ok || c != cell || w != workload {
			t.Fatalf("deny key of %s %s came back as %s %s", cell, workload, c, w)
		}
		if c, field, ok := HealthKey(StatusKey(cell)); !ok || c != cell || field != "status" {
			t.Fatalf("status key of %s came back as %s %s", cell, c, field)
		}
		raw := [16]byte(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 0, 1, 0xff}), 16, 16).Draw(t, "address"))
		vip := netip.AddrFrom16(raw)
		if back, ok := SplitVIP(VIPKey(vip)); !ok || back != vip.Unmap() {
			t.Fatalf("vip key of %s came back as %s", vip, back)
		}
		if back, ok := SplitGateway(GatewayKey(vip)); !ok || back != vip.Unmap() {
			t.Fatalf("gateway key of %s came back as %s", vip, back)
		}
		if VIPKey(vip) != VIPKey(vip.Unmap()) {
			t.Fatalf("two keys for %s", vip)
		}
	})
}

func TestF61_WorkloadNames(t *testing.T) {
	for name, want := range map[string]bool{
		"web": true, "a": true, "-": true, "web-2": true, strings.Repeat("a", 63): true,
		"": false, "Web": false, "we.b": false, "we_b": false, "wéb": false, "we b": false, "web\x00": false,
		strings.Repeat("a", 64): false,
	} {
		if ValidWorkloadName(name) != want {
			t.Errorf("name %q: valid %t", name, !want)
		}
		for _, prefix := range []string{"spread.", "stateful.", "wasm."} {
			if IsWorkload([]byte(prefix+name)) != want {
				t.Errorf("key %q: workload %t", prefix+name, !want)
			}
		}
		if IsWorkload([]byte("env." + name)) {
			t.Errorf("env.%s is no workload", name)
		}
	}
	if WorkloadName("spread.web") != "web" {
		t.Error("workload name of spread.web")
	}
}

// TestCategories holds the table of SPEC-REVIEW Part 1 section 7.6, and that a near miss of a known
// name is an operator key.
func TestCategories(t *testing.T) {
	const id = "0a000000000000ff"
	for name, want := range map[string]Category{
		"spread.web":                     Operator,
		"stateful.db":                    Operator,
		"wasm.f":                         Operator,
		"vip.10.0.0.1":                   Operator,
		"env.web":                        Operator,
		"cluster.door":                   Operator,
		"volume.v.meta":                  Operator,
		"":                               Operator,
		"bgp.x":                          Operator,
		"health." + id + ".status":       Status,
		"health." + id + ".contact":      SingleWriter,
		"health." + id + ".cpu":          SingleWriter,
		"ep." + id + ".web":              SingleWriter,
		"deny." + id + ".web":            SingleWriter,
		"metric.web." + id:               SingleWriter,
		"volume.v.rep." + id:             SingleWriter,
		"volume.a.b.rep." + id:           SingleWriter,
		"gateway.10.0.0.1":               Derived,
		"kv.web.key":                     KV,
		"health.status":                  Operator,
		"health." + id + ".x.status":     Operator,
		"health.0A000000000000FF.status": Operator,
		"health.":                        Operator,
		"health." + id:                   Operator,
		"ep." + id + ".":                 Operator,
		"ep.web":                         Operator,
		"ep." + id + ".Web":              Operator,
		"metric." + id:                   Operator,
		"metric.." + id:                  Operator,
		"volume.rep." + id:               Operator,
		"volume..rep." + id:              Operator,
		"volume.v.rep.":                  Operator,
		"volume.v.rep." + id + "0":       Operator,
		"volume.v.rep.0000000000000000":  Operator,
		"healthy." + id + ".status":      Operator,
	} {
		if got := CategoryOf([]byte(name)); got != want {
			t.Errorf("%q: category %d, want %d", name, got, want)
		}
		if cell, ok := WriterOf([]byte(name)); ok != (want == SingleWriter) || ok && cell != cellA {
			t.Errorf("%q: writer %s, %t", name, cell, ok)
		}
	}
}

func TestKeysDoNotAllocate(t *testing.T) {
	names := [][]byte{[]byte(StatusKey(cellA)), []byte(ContactKey(cellA)), []byte(EndpointKey(cellA, "web")),
		[]byte("volume.v.rep.0a000000000000ff"), []byte("spread.web")}
	key := StatusKey(cellA)
	if n := testing.AllocsPerRun(100, func() {
		for _, name := range names {
			CategoryOf(name)
			WriterOf(name)
			IsWorkload(name)
		}
		HealthKey(key)
		ValidWorkloadName(key)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzKeys(f *testing.F) {
	for _, name := range []string{StatusKey(cellA), EndpointKey(cellA, "web"), "vip.10.0.0.1",
		"volume.v.rep." + cellA.String()} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		category := CategoryOf([]byte(name))
		writer, single := WriterOf([]byte(name))
		if single != (category == SingleWriter) || single && !writer.Valid() {
			t.Fatalf("category %d, writer %s %t", category, writer, single)
		}
		if cell, field, ok := HealthKey(name); ok && name != "health."+cell.String()+"."+field {
			t.Fatalf("%q taken for the key of %s %s", name, cell, field)
		}
		if cell, workload, ok := SplitEndpoint(name); ok && name != EndpointKey(cell, workload) {
			t.Fatalf("%q taken for the key of %s %s", name, cell, workload)
		}
		if cell, workload, ok := SplitDeny(name); ok && name != DenyKey(cell, workload) {
			t.Fatalf("%q taken for the key of %s %s", name, cell, workload)
		}
		if vip, ok := SplitVIP(name); ok && name != VIPKey(vip) {
			t.Fatalf("%q taken for the key of %s", name, vip)
		}
	})
}
