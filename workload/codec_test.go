package workload

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func mustEncode(t testing.TB, s *Spec) []byte {
	t.Helper()
	encoded, err := Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func TestF82_EncodeDecodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, s := drawSpec(t)
		encoded, err := Encode(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if len(encoded) != EncodedSize(s) || len(encoded) > SpecSizeMax {
			t.Fatalf("%d bytes, EncodedSize says %d", len(encoded), EncodedSize(s))
		}
		decoded, err := Decode(encoded)
		if err != nil || !reflect.DeepEqual(decoded, s) {
			t.Fatalf("got  %+v, %v\nwant %+v", decoded, err, s)
		}
	})
}

// The golden encodings pin the layout: cells of different versions must agree on every byte, because
// digests and conflict detection compare bytes.
func TestF82_GoldenEncodings(t *testing.T) {
	specs := []struct {
		name string
		spec *Spec
	}{
		{"minimal", &Spec{Runtime: RuntimeOCI, Replicas: 1, Image: "nginx"}},
		{"full", full()},
		{"process", &Spec{Runtime: RuntimeProcess, Replicas: 5, Image: "/usr/bin/x", Ports: []Port{{80, 80,
			TCP}}}},
		{"wasm", &Spec{Runtime: RuntimeWasm, Replicas: 5, Image: "https://a/b.wasm", Deterministic: true,
			Capabilities: CapabilityKVRead | CapabilityMetrics}},
	}
	var got strings.Builder
	for _, test := range specs {
		encoded := mustEncode(t, test.spec)
		fmt.Fprintf(&got, "%s %s digest=%016x instance=%016x\n", test.name, hex.EncodeToString(encoded),
			test.spec.Digest(), test.spec.InstanceDigest())
	}
	const file = "testdata/encodings.golden"
	if *rewrite {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	byHand := "0102" + "0003" + "0000" + "0100" + "016e" + "01" + "00501f90" +
		"01" + "00000000000000000000ffff0a000064" + "0050" + "00000000" + "00" + "030103"
	s := &Spec{Runtime: RuntimeOCI, Replicas: 3, MemoryMiB: 256, Image: "n", Ports: []Port{{80, 8080, TCP}},
		VIPs: []VIP{vip("10.0.0.100:80", 0, VIPModeBoth, 0, TCP)}}
	if encoded := hex.EncodeToString(mustEncode(t, s)); encoded != byHand {
		t.Errorf("got %s, want %s as laid out by hand", encoded, byHand)
	}
}

func TestF82_FullSpecCoversEveryField(t *testing.T) {
	s := reflect.ValueOf(*full())
	for i := range s.NumField() {
		name := s.Type().Field(i).Name
		if name == "Deterministic" || name == "NoFailover" || name == "Capabilities" {
			continue // exclude others that are there
		}
		if s.Field(i).IsZero() {
			t.Errorf("full() leaves %s at its default", name)
		}
	}
	decoded, err := Decode(mustEncode(t, full()))
	if err != nil || !reflect.DeepEqual(decoded, full()) {
		t.Errorf("got %+v, %v", decoded, err)
	}
}

func TestF82_LimitsOfTheFixedFields(t *testing.T) {
	base := func(change func(*Spec)) *Spec {
		s := &Spec{Runtime: RuntimeOCI, Image: "nginx"}
		change(s)
		return s
	}
	for _, test := range []struct {
		name  string
		spec  *Spec
		error string // empty: round trips
	}{
		{"65 cores", base(func(s *Spec) { s.CPUMillicores = 65535 }), ""},
		{"more than 65 cores", base(func(s *Spec) { s.CPUMillicores = 65536 }), ""},
		{"too many cores", base(func(s *Spec) { s.CPUMillicores = CPUMillicoresMax + 1 }), "millicores"},
		{"64 GiB", base(func(s *Spec) { s.MemoryMiB = 65535 }), ""},
		{"more than 64 GiB", base(func(s *Spec) { s.MemoryMiB = 65536 }), ""},
		{"the most memory", base(func(s *Spec) { s.MemoryMiB = MemoryMiBMax }), ""},
		{"inexact memory", base(func(s *Spec) { s.MemoryMiB = 65537 }), "multiple of 16 mb"},
		{"too much memory", base(func(s *Spec) { s.MemoryMiB = MemoryMiBMax + 16 }), "at most 1048560"},
		{"image of 255", base(func(s *Spec) { s.Image = strings.Repeat("a", 255) }), ""},
		{"image of 256", base(func(s *Spec) { s.Image = strings.Repeat("a", 256) }), "at most 255"},
		{"17 ports", base(func(s *Spec) { s.Ports = make([]Port, 17) }), "at most 16"},
		{"argument of 256", base(func(s *Spec) { s.Arguments = []string{strings.Repeat("a", 256)} }),
			"at most 255"},
		{"512 bytes", base(func(s *Spec) {
			s.Arguments = []string{strings.Repeat("a", 255), strings.Repeat("b", 512-21-257-2)}
		}), ""},
		{"513 bytes", base(func(s *Spec) {
			s.Arguments = []string{strings.Repeat("a", 255), strings.Repeat("b", 512-21-257-1)}
		}), "takes 513 bytes, expected at most 512"},
	} {
		encoded, err := Encode(test.spec)
		if test.error != "" {
			if err == nil || !strings.Contains(err.Error(), test.error) {
				t.Errorf("%s: got %v, want an error with %q", test.name, err, test.error)
			}
			continue
		}
		decoded, err := Decode(encoded)
		if err != nil || !reflect.DeepEqual(decoded, test.spec) {
			t.Errorf("%s: got %+v, %v", test.name, decoded, err)
		}
	}
}

// patched gives a valid encoding with records appended.
func patched(t *testing.T, records ...byte) []byte {
	return append(mustEncode(t, &Spec{Runtime: RuntimeOCI, Image: "nginx"}), records...)
}

func TestF82_UnknownRecords(t *testing.T) {
	for _, records := range [][]byte{
		{0x20, 0},
		{0x20, 2, 1, 2, 0x20, 0, 0x7f, 1, 9},
		{tlvStopGrace, 2, 0, 1, 0x11, 0, tlvCommand, 1, 'x'}, // between known ones
	} {
		encoded := patched(t, records...)
		s, err := Decode(encoded)
		if err != nil || len(s.UnknownInformative) == 0 {
			t.Errorf("%x: got %+v, %v", records, s, err)
		} else if again := mustEncode(t, s); !bytes.Equal(again, encoded) {
			t.Errorf("%x: re-emitted as %x", encoded, again)
		}
	}
	for _, kind := range []byte{0x80, 0x87, 0xff} {
		if _, err := Decode(patched(t, kind, 0)); !errors.Is(err, ErrCritical) {
			t.Errorf("critical record %#x: got %v", kind, err)
		}
	}
	s := full()
	s.UnknownInformative[0][3]++
	if s.InstanceDigest() == full().InstanceDigest() {
		t.Error("an unknown record does not count for the instance digest")
	}
}

func TestF82_DecodeRefusesWhatEncodeDoesNotWrite(t *testing.T) {
	good := patched(t)
	for i := range good {
		if _, err := Decode(good[:i]); err == nil {
			t.Errorf("accepted the first %d of %d bytes", i, len(good))
		}
	}
	with := func(index int, value byte) []byte {
		changed := bytes.Clone(good)
		changed[index] = value
		return changed
	}
	cpu := func(millicores uint32, record ...byte) []byte {
		return append(mustEncode(t, &Spec{Runtime: RuntimeOCI, Image: "a", CPUMillicores: millicores}), record...)
	}
	for name, encoded := range map[string][]byte{
		"cpu record for what fits":       cpu(65535, tlvCPU, 4, 0, 0, 0xff, 0xff),
		"cpu record beside another":      cpu(65534, tlvCPU, 4, 0, 1, 0, 0),
		"a default spelled out":          patched(t, tlvRestart, 1, 0),
		"records out of order":           patched(t, 0x21, 0, 0x20, 0),
		"a single record twice":          patched(t, tlvStopGrace, 2, 0, 1, tlvStopGrace, 2, 0, 2),
		"type 0":                         patched(t, 0, 0),
		"a record cut in its head":       patched(t, 0x20),
		"a record cut in its value":      patched(t, 0x20, 1),
		"a short record":                 patched(t, tlvStopGrace, 1, 1),
		"a long record":                  patched(t, tlvStopGrace, 3, 0, 1, 2),
		"a flag that is no number":       patched(t, tlvConstraint, 4, 2, 1, 'a', 'b'),
		"options without VIPs":           patched(t, tlvVIPOptions, 0),
		"cpu record without need":        patched(t, tlvCPU, 4, 0, 0, 0, 9),
		"a reserved flag":                with(1, 0x40),
		"requires_vip without VIPs":      with(1, flagRequiresVIP),
		"memory units without need":      with(1, flagMemoryUnits),
		"stateless data without a flag":  patched(t, tlvReplicationFactor, 1, 3),
		"runtime class 0":                with(0, 0),
		"runtime class 4":                with(0, 4),
		"an image length past the end":   with(8, 255),
		"a reserved capability":          with(16, 0x80),
		"more ports than there are":      with(14, 255),
		"more than 512 bytes":            append(patched(t, make([]byte, 500)...), 0),
		"nothing":                        nil,
		"variables that are not sorted":  patched(t, tlvEnvironment, 2, 'B', '=', tlvEnvironment, 2, 'A', '='),
		"variable without a value":       patched(t, tlvEnvironment, 1, 'B'),
		"an argument that is not text":   patched(t, tlvArgument, 1, 0xff),
		"an argument with a zero byte":   patched(t, tlvArgument, 1, 0),
		"a health check of unknown kind": patched(t, tlvHealth, 12, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
	} {
		if s, err := Decode(encoded); err == nil {
			t.Errorf("%s: accepted as %+v", name, s)
		}
	}
}

func TestF82_ClaimedCountsDriveNoLoop(t *testing.T) {
	r := reader{rest: []byte{2, 0, 0, 0, 0, 0, 0, 0, 0}}
	if n := r.count(4); n != 2 || r.short {
		t.Errorf("got %d, short %v for two entries of 4 bytes", n, r.short)
	}
	r = reader{rest: []byte{3, 0, 0, 0, 0, 0, 0, 0, 0}}
	if n := r.count(4); n != 0 || !r.short {
		t.Errorf("got %d, short %v for three entries in 8 bytes", n, r.short)
	}
}

func TestF74_InstanceDigestIgnoresOnlyPlacement(t *testing.T) {
	base := full()
	for name, change := range map[string]func(*Spec){
		"replicas":    func(s *Spec) { s.Replicas++ },
		"priority":    func(s *Spec) { s.Priority++ },
		"constraints": func(s *Spec) { s.Constraints = nil },
		"update":      func(s *Spec) { s.Update = Update{} },
		"signature":   func(s *Spec) { s.Signature[5]++ },
		"key":         func(s *Spec) { s.SignatureKeyID[0]++ },
	} {
		s := full()
		change(s)
		if s.InstanceDigest() != base.InstanceDigest() {
			t.Errorf("changing %s restarts instances", name)
		}
		if s.Digest() == base.Digest() {
			t.Errorf("changing %s does not change the digest", name)
		}
	}
	before := *base
	base.InstanceDigest()
	if !reflect.DeepEqual(before, *base) {
		t.Error("computing the digest changed the specification")
	}
	placementOnly := map[string]bool{"Replicas": true, "Priority": true, "Constraints": true, "Update": true,
		"SignatureKeyID": true, "Signature": true}
	for i := range reflect.TypeFor[Spec]().NumField() {
		name := reflect.TypeFor[Spec]().Field(i).Name
		s := full()
		s.NoFailover, s.Deterministic, s.Capabilities = true, true, 1
		all := s.InstanceDigest()
		reflect.ValueOf(s).Elem().Field(i).SetZero()
		if changed := s.InstanceDigest() != all; changed == placementOnly[name] {
			t.Errorf("%s counts for the instance digest: %v", name, changed)
		}
	}
}

// Valid encodings with a few bytes changed reach much deeper than random bytes do.
func TestF82_ChangedEncodingsAreRefusedOrCanonical(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		_, s := drawSpec(t)
		encoded, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range encoded {
			for _, flip := range []byte{1, byte(0x80 >> (i % 8))} {
				encoded[i] ^= flip
				if decoded, err := Decode(encoded); err == nil {
					accepted++
					if again, err := Encode(decoded); err != nil || !bytes.Equal(again, encoded) {
						t.Fatalf("%x written again as %x, %v", encoded, again, err)
					}
				}
				encoded[i] ^= flip
			}
		}
	})
	if accepted == 0 {
		t.Error("no changed encoding was accepted, so nothing was tested")
	}
}

func FuzzDecode(f *testing.F) {
	minimal := mustEncode(f, &Spec{Runtime: RuntimeOCI, Image: "nginx"})
	f.Add(minimal)
	f.Add(append(bytes.Clone(minimal), 0x20, 1, 7))
	f.Add(mustEncode(f, full()))
	f.Add(mustEncode(f, &Spec{Runtime: RuntimeWasm, Image: "oci://a/b", Capabilities: 3}))
	f.Add(mustEncode(f, &Spec{Runtime: RuntimeProcess, Image: "/b", Ports: []Port{{7, 7, UDP}},
		Health: Health{Kind: HealthHTTP, Port: 7, Path: "/"}}))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		before := bytes.Clone(encoded)
		s, err := Decode(encoded)
		if !bytes.Equal(before, encoded) {
			t.Fatal("input was changed")
		}
		if err != nil {
			if s != nil || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Fatalf("a result beside an error, or an error of several lines: %+v, %q", s, err)
			}
			return
		}
		again, err := Encode(s)
		if err != nil || !bytes.Equal(again, encoded) {
			t.Fatalf("%x written again as %x, %v", encoded, again, err)
		}
		key := Key(KindSpread, "x")
		switch {
		case s.Stateful:
			key = Key(KindStateful, "x")
		case s.Runtime == RuntimeWasm:
			key = Key(KindWasm, "x")
		}
		if err := CheckKey(key, s); err != nil {
			t.Fatal(err)
		}
		blocks, err := Parse("f", []byte(Format(key, s)))
		if err != nil || !reflect.DeepEqual(blocks[0].Spec, s) {
			t.Fatalf("text form\n%s\nreads as %+v, %v\nwant %+v", Format(key, s), blocks, err, s)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	encoded := mustEncode(b, full())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(encoded); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInstanceDigest(b *testing.B) {
	s := full()
	b.ReportAllocs()
	for b.Loop() {
		s.InstanceDigest()
	}
}
