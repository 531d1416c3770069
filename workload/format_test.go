package workload

import (
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func checkFormatRoundTrip(t *rapid.T) {
	key, s := drawSpec(t)
	if err := CheckKey(key, s); err != nil {
		t.Fatal(err)
	}
	text := Format(key, s)
	blocks, err := Parse("f", []byte(text))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%s\n%v", text, err)
	}
	if blocks[0].Key() != key || !reflect.DeepEqual(blocks[0].Spec, s) {
		t.Fatalf("%s\ngot  %s %+v\nwant %s %+v", text, blocks[0].Key(), blocks[0].Spec, key, s)
	}
	if again := Format(key, blocks[0].Spec); again != text {
		t.Fatalf("second export differs:\n%s\n%s", text, again)
	}
	if changes := Diff(s, blocks[0].Spec); len(changes) != 0 {
		t.Fatalf("%q", changes)
	}
}

func TestF156_ExportRoundTrip(t *testing.T) { rapid.Check(t, checkFormatRoundTrip) }

// A cluster may hold names that commands take for flags, from before they were refused: what is exported can
// be applied.
func TestF156_ExportedNamesCanBeApplied(t *testing.T) {
	s := &Spec{Runtime: RuntimeProcess, Replicas: 1, Image: "/bin/true"}
	for _, name := range []string{"-a", "-", "--", "a-", "0", "-f"} {
		text := Format(Key(KindSpread, name), s)
		blocks, err := Parse("f", []byte(text))
		if err != nil || len(blocks) != 1 || blocks[0].Name != name {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzFormatRoundTrip lets the fuzzer choose the draws; the seeds are long enough for whole specs.
func FuzzFormatRoundTrip(f *testing.F) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 0))
		raw := make([]byte, 4096)
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		f.Add(raw)
	}
	f.Fuzz(rapid.MakeFuzz(checkFormatRoundTrip))
}

func TestF156_FormatGolden(t *testing.T) {
	const file = "testdata/full.golden"
	got := Format("stateful.redis", full())
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if s := parseOne(t, got).Spec; !reflect.DeepEqual(s, full()) {
		t.Errorf("got %+v", s)
	}
}

// A key that the formatter writes but the parser does not know, or the other way round, would break
// the export of some workload.
func TestF156_EveryKeyIsFormatted(t *testing.T) {
	all := Format("stateful.x", full()) + Format("wasm.x", &Spec{Runtime: RuntimeWasm, Image: "https://a/b",
		Capabilities: 1, Deterministic: true, NoFailover: true}) +
		Format("spread.x", &Spec{Runtime: RuntimeProcess, Image: "/b"})
	for key := range keys {
		if key == "secret" || key == "file" {
			continue // their values never come back: the specification has a digest
		}
		if !strings.Contains(all, "    "+key+" ") {
			t.Errorf("Format never writes %s", key)
		}
	}
}

func TestF156_Diff(t *testing.T) {
	old := parseOne(t, "spread x { image a:1; replicas 3; port 80:8080; port 443:8443; cpu 500m; args a }").Spec
	new := parseOne(t, "spread x { image a:2; replicas 5; port 80:8080; port 444:8443; mem 1gb; args a }").Spec
	want := []string{
		"image a:1 -> a:2", "replicas 3 -> 5", "- port 443:8443", "- cpu 500m", "+ port 444:8443", "+ mem 1gb",
	}
	if got := Diff(old, new); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Diff(nil, new); len(got) != 6 || got[0] != "+ image a:2" {
		t.Errorf("new workload: got %q", got)
	}
	if got := Diff(old, nil); len(got) != 6 || got[0] != "- image a:1" {
		t.Errorf("removed workload: got %q", got)
	}
	swapped := *old
	swapped.Ports = []Port{old.Ports[1], old.Ports[0]}
	if got := Diff(old, &swapped); len(got) != 1 || !strings.HasPrefix(got[0], "order of") {
		t.Errorf("swapped ports: got %q", got)
	}
	process := parseOne(t, "spread x { process /b; replicas 3 }").Spec
	if got := Diff(parseOne(t, "spread x { image a; replicas 3 }").Spec, process); len(got) != 2 {
		t.Errorf("other runtime: got %q", got)
	}
}

func TestDiffIsEmptyOnlyForEqualSpecs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, a := drawSpec(t)
		_, b := drawSpec(t)
		if equal := reflect.DeepEqual(a, b); equal != (len(Diff(a, b)) == 0) {
			t.Fatalf("equal %v, differences %q", equal, Diff(a, b))
		}
	})
}

func TestSummary(t *testing.T) {
	for source, want := range map[string]string{
		"spread x { image nginx:1.25; replicas 5 }":              "replicas=5, image=nginx:1.25",
		"spread x { process /b; cpu 1500m; mem 2048mb }":         "replicas=1, process=/b, cpu=1500m, mem=2gb",
		"wasm x { module oci://a/b; sha256 " + hexOf("ab") + "}": "replicas=1, module=oci://a/b, sha256=abababababab",
	} {
		if got := Summary(parseOne(t, source).Spec); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Versions in conflict must not look alike: somebody has to choose between them.
func TestSummariesShowWhatDiffers(t *testing.T) {
	var versions []*Spec
	for _, source := range []string{
		"spread x { process /b; args 711; env A 1; stop_grace 3s }",
		"spread x { process /b; args 723; env A 1; stop_grace 3s }",
		"spread x { process /b; env A 1; stop_grace 3s; port 80 }",
	} {
		versions = append(versions, parseOne(t, source).Spec)
	}
	got := Summaries(append(versions, nil))
	want := []string{"replicas=1, process=/b, args 711", "replicas=1, process=/b, args 723",
		"replicas=1, process=/b, port 80", ""}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	versions[0].Arguments = []string{strings.Repeat("\u00e9", 120)}
	if long := Summaries(versions)[0]; len(long) > 300 || !utf8.ValidString(long) || !strings.HasSuffix(long, "...") {
		t.Errorf("%d bytes: %q", len(long), long)
	}
	rapid.Check(t, func(t *rapid.T) {
		_, a := drawSpec(t)
		_, b := drawSpec(t)
		both := Summaries([]*Spec{a, b})
		if Summary(a) == Summary(b) && len(Diff(a, b)) > 0 && a.Digest() != b.Digest() && both[0] == both[1] &&
			!strings.HasSuffix(both[0], "...") && Diff(a, b)[0] != "order of ports, vips, volumes or constraints" {
			t.Fatalf("differ in %q, both are %q", Diff(a, b), both[0])
		}
	})
}

func hexOf(pair string) string { return strings.Repeat(pair, 32) }
