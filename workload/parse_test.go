package workload

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"colloid.net/workload/syntax"
)

func parseOne(t *testing.T, source string) Block {
	t.Helper()
	blocks, err := Parse("f", []byte(source))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%s: got %d blocks, %v", source, len(blocks), err)
	}
	return blocks[0]
}

// The three blocks that section 15.2 shows have to work as they stand there.
func TestF81_BlocksOfTheSpecification(t *testing.T) {
	blocks, err := Parse("f", []byte(`
spread nginx {
    image docker.io/nginx:latest
    replicas 3
    port 80:8080
    port 443:8443
    vip 10.0.0.100:80 mode=both
    cpu 500m
    mem 256mb
}

stateful redis {
    image docker.io/redis:7
    replicas 1
    replication_factor 3
    port 6379:6379
    volume data /data
    cpu 1000m
    mem 1024mb
}

wasm transformer {
    module https://wasm.example.com/transform.wasm
    replicas 5
    capabilities kv_read,metrics
    deterministic true
}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Block{
		{KindSpread, "nginx", &Spec{Runtime: RuntimeOCI, Replicas: 3, Image: "docker.io/nginx:latest",
			Ports: []Port{{80, 8080, TCP}, {443, 8443, TCP}}, VIPs: []VIP{vip("10.0.0.100:80", 0, VIPModeBoth, 0,
				TCP)},
			CPUMillicores: 500, MemoryMiB: 256}, "f", 2, nil},
		{KindStateful, "redis", &Spec{Runtime: RuntimeOCI, Stateful: true, Replicas: 1,
			Image:             "docker.io/redis:7",
			ReplicationFactor: 3, Ports: []Port{{6379, 6379, TCP}}, Volumes: []Volume{{"data", "/data"}},
			CPUMillicores: 1000, MemoryMiB: 1024}, "f", 12, nil},
		{KindWasm, "transformer", &Spec{Runtime: RuntimeWasm, Replicas: 5, Deterministic: true,
			Image:        "https://wasm.example.com/transform.wasm",
			Capabilities: CapabilityKVRead | CapabilityMetrics}, "f", 22, nil},
	}
	if !reflect.DeepEqual(blocks, want) {
		t.Errorf("got  %+v\nwant %+v", blocks, want)
	}
	for _, b := range blocks {
		if err := CheckKey(b.Key(), b.Spec); err != nil {
			t.Error(err)
		}
	}
	if target := blocks[0].Spec.TargetOf(blocks[0].Spec.VIPs[0]); target != 8080 {
		t.Errorf("VIP port 80 leads to %d, want the container port behind `port 80:8080`", target)
	}
}

// Every key once, against the field it sets.
func TestF156_Keys(t *testing.T) {
	const hex64 = "00000000000000000000000000000000000000000000000000000000000000ff"
	digest := [32]byte{31: 0xff}
	type change = func(*Spec)
	for _, test := range []struct {
		block string
		want  change
	}{
		{"image a", func(s *Spec) { s.Runtime, s.Image = RuntimeOCI, "a" }},
		{"image a@sha256:" + hex64, func(s *Spec) {
			s.Runtime, s.Image, s.ImageDigest = RuntimeOCI, "a",
				digest
		}},
		{"process /b; sha256 " + hex64, func(s *Spec) {
			s.Runtime, s.Image, s.ImageDigest = RuntimeProcess, "/b",
				digest
		}},
		{"image a; command x \"y z\"", func(s *Spec) { s.Command = []string{"x", "y z"} }},
		{"image a; args x \"\" #c\n", func(s *Spec) { s.Arguments = []string{"x", ""} }},
		{"image a; env B 2; env A \"1 #\"; env A_B 3; env A1 4", func(s *Spec) {
			s.Environment = []string{"A=1 #", "A1=4", "A_B=3", "B=2"}
		}},
		{"image a; env_digest " + hex64, func(s *Spec) { s.EnvironmentDigest = digest }},
		{"image a; replicas 0", func(s *Spec) { s.Replicas = 0 }},
		{"image a; port 80; port 53/udp; port 80:53/tcp", func(s *Spec) {
			s.Ports = []Port{{0, 80, TCP}, {0, 53, UDP}, {80, 53, TCP}}
		}},
		{"port 8080; process /b", func(s *Spec) {
			s.Runtime, s.Image, s.Ports = RuntimeProcess, "/b", []Port{{8080, 8080, TCP}}
		}},
		{"image a; vip [fd00::1]:53/udp mode=l3 target=5353 path=nat", func(s *Spec) {
			s.VIPs = []VIP{vip("[fd00::1]:53", 5353, VIPModeL3, VIPPathNAT, UDP)}
		}},
		{"image a; vip [::ffff:10.0.0.1]:80", func(s *Spec) { s.VIPs = []VIP{vip("10.0.0.1:80", 0, 0, 0, TCP)} }},
		{"image a; cpu 2; mem 1gb; disk 10gb; pids 64", func(s *Spec) {
			s.CPUMillicores, s.MemoryMiB, s.DiskMiB, s.PidsMax = 2000, 1024, 10240, 64
		}},
		{"image a; cpu 1.5", func(s *Spec) { s.CPUMillicores = 1500 }},
		{"image a; cpu 0.025", func(s *Spec) { s.CPUMillicores = 25 }},
		{"image a; oversubscribe true; no_failover true; read_only true; deterministic false", func(s *Spec) {
			s.Oversubscribe, s.NoFailover, s.ReadOnlyRoot = true, true, true
		}},
		{"image a; health tcp 80", func(s *Spec) { s.Health = Health{Kind: HealthTCP, Port: 80} }},
		{"image a; health http 80 /x interval=500ms timeout=2s failures=4", func(s *Spec) {
			s.Health = Health{HealthHTTP, 80, "/x", nil, 500, 2000, 4}
		}},
		{"image a; health exec c timeout=1s \"interval=3s\" timeout=1m", func(s *Spec) {
			s.Health = Health{Kind: HealthExec, Command: []string{"c", "timeout=1s", "interval=3s"},
				TimeoutMillisecond: 60000}
		}},
		{"image a; health none", func(s *Spec) { s.Health = Health{Kind: HealthNone} }},
		{"image a; health default failures=1", func(s *Spec) { s.Health = Health{FailuresMax: 1} }},
		{"image a; restart on-failure", func(s *Spec) { s.Restart = RestartOnFailure }},
		{"image a; update rollback=true max_unavailable=2 min_ready=2m", func(s *Spec) {
			s.Update = Update{2, 120, true, 0}
		}},
		{"image a; update deadline=90s", func(s *Spec) {
			s.Update = Update{DeadlineSeconds: 90}
		}},
		{"image a; constraint zone=a; constraint disk!=hdd", func(s *Spec) {
			s.Constraints = []Constraint{{"zone", "a", false}, {"disk", "hdd", true}}
		}},
		{"image a; arch arm64; stop_grace 1m; user 1000:web; priority -7", func(s *Spec) {
			s.Architecture, s.StopGraceSeconds, s.User, s.Priority = "arm64", 60, "1000:web", -7
		}},
		{"image a; extension 200109", func(s *Spec) { s.UnknownInformative = [][]byte{{0x20, 1, 9}} }},
		{"image a; signature 01020304 " + hex64 + hex64, func(s *Spec) {
			s.SignatureKeyID, s.Signature = [4]byte{1, 2, 3, 4}, [64]byte{31: 0xff, 63: 0xff}
		}},
	} {
		want := &Spec{Runtime: RuntimeOCI, Image: "a", Replicas: 1}
		test.want(want)
		if got := parseOne(t, "spread x { "+test.block+" }").Spec; !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ngot  %+v\nwant %+v", test.block, got, want)
		}
	}
	s := parseOne(t, "stateful x { image a; replication_factor 3; failover quorum; volume d /d }").Spec
	if s.Failover != FailoverQuorum || s.ReplicationFactor != 3 || s.Volumes[0] != (Volume{"d", "/d"}) {
		t.Errorf("got %+v", s)
	}
}

func TestF156_ErrorsNameThePlaceAndWhatWasExpected(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{"spread x {\n  image a\n  imgae b\n}", "f:3:3: unknown key imgae, expected image"},
		{"spread x {\n  image a\n  zzz\n}", "f:3:3: unknown key zzz, expected one of arch, args, "},
		{"spread x {\n image a\n replicas 1\n replicas 2\n}",
			"f:4:2: replicas is given twice (before in line 3), expected it once"},
		{"spread x { image a; replicas }", "f:1:30: replicas lacks an argument, expected replicas NUMBER"},
		{"spread x { image a; replicas 1 2 }", "f:1:32: unexpected 2, expected replicas NUMBER"},
		{"spread x { image a; replicas 65536 }", "f:1:30: unexpected 65536, expected a number from 0 to 65535"},
		{"spread x { image a; replicas +1 }", "f:1:30: unexpected +1, expected a number"},
		{"spread x { image a; replicas -1 }", "f:1:30: unexpected -1, expected a number"},
		{"spread x { image a; mem 256 }",
			"f:1:25: unexpected 256, expected a size as in 256mb or 1gb (1mb = 1048576 bytes)"},
		{"spread x { image a; mem 256MB }", "f:1:25: unexpected 256MB, expected a size"},
		{"spread x { image a; mem 4194304gb }", "f:1:25: unexpected 4194304gb, expected a size"},
		{"spread x { image a; mem 70001mb }",
			"f:1:21: mem: 70001 mb is not stored exactly, expected a multiple of 16 mb"},
		{"spread x { image a; cpu 500k }", "f:1:25: unexpected 500k, expected thousandths of a core as in 500m"},
		{"spread x { image a; cpu 0 }", "f:1:25: unexpected 0, expected thousandths"},
		{"spread x { image a; cpu 1.2345 }", "f:1:25: unexpected 1.2345, expected thousandths"},
		{"spread x { image a; cpu \"\" }", `f:1:25: unexpected "", expected thousandths`},
		{"spread x { image a; port 0 }", "f:1:26: unexpected 0, expected [HOST:]CONTAINER[/udp]"},
		{"spread x { image a; port 80:70000 }", "f:1:26: unexpected 80:70000, expected [HOST:]CONTAINER[/udp]"},
		{"spread x { image a\nport 80:1\nport 80:2 }", "f:3:1: port: port 80:2 is given twice, expected it once"},
		{"spread x { image a\nport 80\nport 80 }", "f:3:1: port: port 80 is given twice, expected it once"},
		{"spread x { process /b\nport 80:81 }",
			"f:2:1: port: port 80:81 of a process is mapped, expected a single number"},
		{"spread x { image a; vip 10.0.0.1 }", "f:1:25: unexpected 10.0.0.1, expected ADDRESS:PORT[/udp] with"},
		{"spread x { image a; vip fd00::1:80 }",
			"f:1:25: unexpected fd00::1:80, expected ADDRESS:PORT[/udp] with"},
		{"spread x { image a; vip 127.0.0.1:80 }",
			"f:1:21: vip: address 127.0.0.1:80 is invalid, expected a unicast"},
		{"spread x { image a; vip 10.0.0.1:80 mode=l4 }", "f:1:37: unexpected l4, expected l2, l3 or both"},
		{"spread x { image a; vip 10.0.0.1:80 mode=l2 mode=l3 }",
			"f:1:45: option mode is given twice, expected it once"},
		{"spread x { image a; vip 10.0.0.1:80 l2 }",
			"f:1:37: unexpected l2, expected ADDRESS:PORT[/udp] [mode=l2|l3|both]"},
		{"spread x { image a; health tcp }", "f:1:32: health tcp lacks an argument, expected health tcp PORT|"},
		{"spread x { image a; health tcp 80 90 }", "f:1:35: unexpected 90, expected health tcp PORT|"},
		{"spread x { image a; health udp }", "f:1:28: unexpected udp, expected default, tcp, http, exec or none"},
		{"spread x { image a; health tcp 80 interval=5 }",
			"f:1:35: unexpected 5, expected a duration from 100ms to 1h"},
		{"spread x { image a; stop_grace 1500ms }",
			"f:1:32: unexpected 1500ms, expected whole seconds from 1s to 3600s"},
		{"spread x { image a; constraint zone }",
			"f:1:32: unexpected zone, expected LABEL=VALUE or LABEL!=VALUE"},
		{"spread x { image a; env 9A b }", "f:1:25: unexpected 9A, expected the name of a variable"},
		{"spread x { image a; env A b\nenv A c }", "f:2:5: variable A is given twice, expected it once"},
		{"spread x { image a; sha256 00 }", "f:1:28: unexpected 00, expected 64 hexadecimal digits"},
		{"spread x { image a@md5:00 }", "f:1:18: unexpected a@md5:00, expected REFERENCE@sha256:64-HEX-DIGITS"},
		{"spread x { image a { } }", "f:1:12: image has a block, expected image REFERENCE"},
		{"spread x { replicas 1 }",
			"f:1:1: spread block says nothing to run, expected image REFERENCE or process PATH"},
		{"spread x { image a\nprocess /b }", "f:2:1: process besides image, expected one of them"},
		{"spread x { process b }", `f:1:12: process: "b" is no program, expected a clean absolute path`},
		{"spread x { module https://a/b }",
			"f:1:12: module: a spread workload does not run modules, expected image or process"},
		{"wasm x { image a }", "f:1:10: image: a wasm workload does not run this, expected module URL"},
		{"wasm x { module https://a/b; capabilities kv_read,fly }",
			"f:1:43: unexpected kv_read,fly, expected names separated by commas"},
		{"wasm x { module https://a/b; deterministic true\ncapabilities random }",
			"f:2:1: capabilities: random cannot be had by a deterministic"},
		{"wasm x { module https://me:secret@a/b }",
			"f:1:10: module: \"https://me:secret@a/b\" is no module address, expected"},
		{"spread x { image a; volume d /d }",
			"f:1:21: volume: only a stateful workload has volumes, expected none"},
		{"stateful x { image a; failover quorum }",
			"f:1:23: failover: quorum with 0 copies cannot outlive a cell, expected replication_factor 3"},
		{"job x {}", "f:1:1: unknown block job, expected spread, stateful or wasm"},
		{"spread {}", "f:1:9: spread has no name, expected spread NAME { ... }"},
		{"spread x y { image a }", "f:1:10: unexpected y, expected spread NAME { ... }"},
		{"spread x", "f:1:9: spread has no body, expected spread NAME { ... }"},
		{"spread -a { image a }", "f:1:8: name -a begins with -, which every command takes for a flag: expected another first character, or the name in quotes"},
		{"spread x { image a; secret P from file \"\" }",
			`f:1:40: from file "" names nothing, expected secret NAME from file FILE|env VARIABLE|literal VALUE`},
		{"spread x { image a; file /a from file \"\" }",
			`f:1:39: from file "" names nothing, expected file /PATH from file FILE|literal TEXT [mode=0400]`},
		{"spread X { image a }", `f:1:8: "X" is no workload name, expected 1 to 63 of a-z, 0-9 and -`},
		{"spread x { image a }\nspread x { image a }",
			"f:2:8: name x is already used by the spread block of line 1, expected another"},
		{"spread x { image a }\nstateful x { image a }",
			"f:2:10: name x is already used by the spread block of line 1, expected another"},
		{"spread x { image ${IMAGE} }",
			"f:1:18: variable IMAGE is not set, expected a value for it, for instance with --set NAME=VALUE"},
	} {
		blocks, err := Parse("f", []byte(test.source))
		if err == nil {
			t.Errorf("%s: accepted as %+v", test.source, blocks[0].Spec)
			continue
		}
		if blocks != nil || !strings.HasPrefix(err.Error(), test.want) || !strings.Contains(err.Error(),
			"expected") {
			t.Errorf("%s\ngot  %v\nwant %s", test.source, err, test.want)
		}
	}
}

// A specification that does not fit a register is refused where it is written, with its size (F82).
func TestF82_SpecOf600BytesIsAnErrorOfTheFile(t *testing.T) {
	source := "# big\n  spread x {\n image a\n args"
	for range 6 {
		source += " " + strings.Repeat("v", 94)
	}
	_, err := Parse("big.colloid", []byte(source+"\n}\n"))
	want := "big.colloid:2:3: specification takes 593 bytes, expected at most 512: "
	if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line with %q", err, want)
	}
}

func TestF156_AllBlocksAreCheckedAndErrorsBounded(t *testing.T) {
	_, err := Parse("f", []byte("spread a { image x; cpu z }\nspread b { image y }\nspread c { mem 1 }\nfoo\n"))
	var list syntax.Errors
	if !errors.As(err, &list) || len(list) != 3 || list[0].Line != 1 || list[1].Line != 3 || list[2].Line != 4 {
		t.Errorf("got %v, want errors of lines 1, 3 and 4", err)
	}
	_, err = Parse("f", []byte("spread a {\n volume b /c\n image -x\n}"))
	if !errors.As(err, &list) || len(list) != 2 || list[0].Line != 2 || list[1].Line != 3 {
		t.Errorf("got %v, want errors in the order of the file", err)
	}
	_, err = Parse("f", []byte(strings.Repeat("foo\n", 100)))
	if !errors.As(err, &list) || len(list) != syntax.ErrorsMax {
		t.Errorf("got %d errors, want %d", len(list), syntax.ErrorsMax)
	}
}

func TestF156_Variables(t *testing.T) {
	source := "spread ${NAME} {\n process ${BIN}\n args \"-x=${X}\" ${X}\n}"
	options := ParseOptions{Variables: map[string]string{"NAME": "n", "BIN": "/opt/a b/c", "X": "} # \"\n"}}
	blocks, err := Parse("f", []byte(source), options)
	if err != nil {
		t.Fatal(err)
	}
	want := &Spec{Runtime: RuntimeProcess, Replicas: 1, Image: "/opt/a b/c", Arguments: []string{"-x=} # \"\n",
		"} # \"\n"}}
	if blocks[0].Key() != "spread.n" || !reflect.DeepEqual(blocks[0].Spec, want) {
		t.Errorf("got %s %+v", blocks[0].Key(), blocks[0].Spec)
	}
}

func TestF156_SameFileSameBytes(t *testing.T) {
	// The order of variables, blanks, comments and spellings of a value must not matter: equal bytes are
	// what keeps a second apply from writing.
	a := parseOne(t, "spread x { image a; env B 1; env A 2; cpu 1000m; mem 1024mb; vip [::ffff:a00:1]:80 }").Spec
	b := parseOne(t, "spread x {\n # c\n mem 1gb\n cpu \"1\"\n image a\n env A 2\n env B 1\n vip 10.0.0.1:80/tcp\n}").Spec
	if string(mustEncode(t, a)) != string(mustEncode(t, b)) || len(Diff(a, b)) != 0 {
		t.Errorf("got %x and %x, %q", mustEncode(t, a), mustEncode(t, b), Diff(a, b))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("spread x {\n image a\n port 80:8080\n vip 10.0.0.1:80 mode=both\n health exec a interval=2s\n}\n")
	f.Add("stateful x { image a@sha256:00; volume a /b; failover none; replication_factor 3 }\n")
	f.Add("wasm x { module https://a/b; capabilities kv_read; deterministic true; extension 2000 }")
	f.Add("spread ${X} { process \"/b c\"; args ${X} \"\\u{41}\"; env A b; constraint a!=b }")
	f.Add("spread x {\n image a\n update max_unavailable=1 min_ready=1m rollback=true; restart never; mem 9gb }")
	f.Fuzz(func(t *testing.T, source string) {
		blocks, err := Parse("f", []byte(source), ParseOptions{Variables: map[string]string{"X": "x"}})
		if err != nil {
			if blocks != nil {
				t.Fatal("blocks beside an error")
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") || !strings.Contains(line, "expected") {
					t.Fatalf("error without position or expectation: %q", line)
				}
			}
			return
		}
		for _, b := range blocks {
			if err := CheckKey(b.Key(), b.Spec); err != nil {
				t.Fatal(err)
			}
			decoded, err := Decode(mustEncode(t, b.Spec))
			if err != nil || !reflect.DeepEqual(decoded, b.Spec) {
				t.Fatalf("%+v decodes as %+v, %v", b.Spec, decoded, err)
			}
		}
	})
}

// F84: a reference that no registry can have is a mistake of the file, with its place; what one can have is
// not.
func TestF84_ImageReferencesAreJudgedWhereTheyStand(t *testing.T) {
	for _, bad := range []string{"NGINX::", "NGINX", "a:", "a//b", "a/B", "a:b:c", "host.x:port/a", "host.x:/a", "a:1/", "x/-a",
		"[::1]:5000", "[::1/a", "[1.2.3.4]/a", "[::::]/a", "[::1]9/a", "[::1]:/a", "10.0.0.1:0/a", "x.y:65536/a", "a:" + strings.Repeat("t", 129)} {
		_, err := Parse("f", []byte("spread x {\n  image "+bad+"\n}"))
		if err == nil || !strings.HasPrefix(err.Error(), "f:2:9: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, good := range []string{"a", "a:1", "a/b_c.d-e:V1.2-x", "localhost/x", "localhost:5000/x:y", "localhost:5000",
		"Registry.Example.com/a/b", "[::1]:5000/x:1", "[fd00::1]/x", "a:_x", "10.0.0.1:5000/x"} {
		if _, err := Parse("f", []byte("spread x { image "+good+" }")); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}
