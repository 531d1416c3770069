package workload

import (
	"strings"
	"testing"
)

func TestF81_CheckKey(t *testing.T) {
	oci := &Spec{Runtime: RuntimeOCI, Image: "a"}
	process := &Spec{Runtime: RuntimeProcess, Image: "/a"}
	module := &Spec{Runtime: RuntimeWasm, Image: "oci://a/b"}
	stateful := func(s Spec) *Spec { s.Stateful = true; return &s }
	for _, test := range []struct {
		key string
		s   *Spec
		ok  bool
	}{
		{"spread.a", oci, true}, {"spread.a", process, true}, {"spread.a", module, false},
		{"spread.a", stateful(*oci), false},
		{"stateful.a", oci, false}, {"stateful.a", module, false},
		{"stateful.a", stateful(*oci), true}, {"stateful.a", stateful(*process), true},
		{"stateful.a", stateful(*module), true},
		{"wasm.a", module, true}, {"wasm.a", oci, false}, {"wasm.a", process, false},
		{"wasm.a", stateful(*module), false},
		{"a", oci, false}, {"spread.", oci, false}, {"spread.A", oci, false}, {"spread.a.b", oci, false},
		{"vip.10.0.0.1", oci, false}, {"Spread.a", oci, false}, {"", oci, false},
		{"spread." + strings.Repeat("a", 63), oci, true}, {"spread." + strings.Repeat("a", 64), oci, false},
	} {
		if err := CheckKey(test.key, test.s); (err == nil) != test.ok {
			t.Errorf("%s with runtime %s, stateful %v: got %v", test.key, test.s.Runtime, test.s.Stateful, err)
		}
	}
}

// Each case breaks one rule of a valid specification.
func TestValidateRefuses(t *testing.T) {
	if err := full().Validate(); err != nil {
		t.Fatal(err)
	}
	module := func(s *Spec) {
		*s = Spec{Runtime: RuntimeWasm, Image: "https://a/b"}
	}
	for name, change := range map[string]func(*Spec){
		"image empty":            func(s *Spec) { s.Image = "" },
		"image with digest":      func(s *Spec) { s.Image = "a@sha256:00" },
		"image with blank":       func(s *Spec) { s.Image = "a b" },
		"image like an option":   func(s *Spec) { s.Image = "-a" },
		"path relative":          func(s *Spec) { s.Runtime, s.Image = RuntimeProcess, "bin/a" },
		"path with dots":         func(s *Spec) { s.Runtime, s.Image = RuntimeProcess, "/bin/../a" },
		"path with line end":     func(s *Spec) { s.Runtime, s.Image = RuntimeProcess, "/bin/a\n" },
		"module without host":    func(s *Spec) { module(s); s.Image = "https:///a" },
		"module of other scheme": func(s *Spec) { module(s); s.Image = "ftp://a/b" },
		"module relative file":   func(s *Spec) { module(s); s.Image = "file://a/b" },
		"module with command":    func(s *Spec) { module(s); s.Command = []string{"a"} },
		"module with exec check": func(s *Spec) {
			module(s)
			s.Health = Health{Kind: HealthExec,
				Command: []string{"a"}}
		},
		"reserved capability":   func(s *Spec) { module(s); s.Capabilities = 1 << 10 },
		"capabilities of image": func(s *Spec) { s.Capabilities = 1 },
		"deterministic image":   func(s *Spec) { s.Deterministic = true },
		"deterministic streams": func(s *Spec) {
			module(s)
			s.Deterministic, s.Capabilities = true,
				CapabilityStreams
		},
		"deterministic fs_write": func(s *Spec) {
			module(s)
			s.Deterministic, s.Capabilities = true,
				CapabilityFSWrite
		},
		"port 0":                 func(s *Spec) { s.Ports = []Port{{80, 0, TCP}} },
		"port of other protocol": func(s *Spec) { s.Ports = []Port{{80, 80, 2}} },
		"vip port 0":             func(s *Spec) { s.VIPs[0].Port = 0 },
		"vip unspecified":        func(s *Spec) { s.VIPs[0].Address = [16]byte{} },
		"vip 0.0.0.0":            func(s *Spec) { s.VIPs[0] = vip("0.0.0.0:80", 0, 0, 0, TCP) },
		"vip broadcast":          func(s *Spec) { s.VIPs[0] = vip("255.255.255.255:80", 0, 0, 0, TCP) },
		"vip multicast":          func(s *Spec) { s.VIPs[0] = vip("[ff02::1]:80", 0, 0, 0, TCP) },
		"vip link local":         func(s *Spec) { s.VIPs[0] = vip("[fe80::1]:80", 0, 0, 0, TCP) },
		"vip twice":              func(s *Spec) { s.VIPs[1] = s.VIPs[0] },
		"vip mode":               func(s *Spec) { s.VIPs[0].Mode = 4 },
		"vip path":               func(s *Spec) { s.VIPs[0].Path = 3 },
		"volume name":            func(s *Spec) { s.Volumes[0].Name = "A" },
		"volume at root":         func(s *Spec) { s.Volumes[0].MountPath = "/" },
		"volume relative":        func(s *Spec) { s.Volumes[0].MountPath = "data" },
		"volume twice":           func(s *Spec) { s.Volumes = append(s.Volumes, Volume{"other", "/data"}) },
		"stateless volume":       func(s *Spec) { s.Stateful = false },
		"factor":                 func(s *Spec) { s.ReplicationFactor = 17 },
		"command empty":          func(s *Spec) { s.Command = []string{""} },
		"argument with zero":     func(s *Spec) { s.Arguments = []string{"a\x00"} },
		"argument not text":      func(s *Spec) { s.Arguments = []string{"\xff"} },
		"variable without =":     func(s *Spec) { s.Environment = []string{"A"} },
		"variable name":          func(s *Spec) { s.Environment = []string{"A-B=1"} },
		"variables unsorted":     func(s *Spec) { s.Environment = []string{"B=1", "A=1"} },
		"variable twice":         func(s *Spec) { s.Environment = []string{"A=1", "A=2"} },
		"user":                   func(s *Spec) { s.User = "a b" },
		"user with two colons":   func(s *Spec) { s.User = "a:b:c" },
		"health kind":            func(s *Spec) { s.Health = Health{Kind: 5} },
		"health tcp port":        func(s *Spec) { s.Health = Health{Kind: HealthTCP} },
		"health none with times": func(s *Spec) { s.Health = Health{Kind: HealthNone, FailuresMax: 1} },
		"health path":            func(s *Spec) { s.Health = Health{Kind: HealthHTTP, Port: 1, Path: "x"} },
		"health path with blank": func(s *Spec) {
			s.Health = Health{Kind: HealthHTTP, Port: 1,
				Path: "/a\r\nHost: b"}
		},
		"health path too long": func(s *Spec) {
			s.Health = Health{Kind: HealthHTTP, Port: 1,
				Path: "/" + strings.Repeat("a", 243)}
		},
		"health exec nothing": func(s *Spec) { s.Health = Health{Kind: HealthExec} },
		"health tcp with command": func(s *Spec) {
			s.Health = Health{Kind: HealthTCP, Port: 1,
				Command: []string{"a"}}
		},
		"health too often": func(s *Spec) { s.Health.IntervalMillisecond = 99 },
		"health timeout":   func(s *Spec) { s.Health.TimeoutMillisecond = 600001 },
		"restart":          func(s *Spec) { s.Restart = 3 },
		"failover":         func(s *Spec) { s.Failover = 3 },
		"failover of stateless": func(s *Spec) {
			*s = Spec{Runtime: RuntimeOCI, Image: "a",
				Failover: FailoverNone}
		},
		"quorum of two":           func(s *Spec) { s.ReplicationFactor = 2 },
		"quorum without failover": func(s *Spec) { s.NoFailover = true },
		"arch":                    func(s *Spec) { s.Architecture = "AMD64" },
		"constraint label":        func(s *Spec) { s.Constraints[0].Label = "" },
		"constraint value":        func(s *Spec) { s.Constraints[0].Value = "a b" },
		"constraint twice":        func(s *Spec) { s.Constraints[1] = s.Constraints[0] },
		"pids":                    func(s *Spec) { s.PidsMax = PidsLimitMax + 1 },
		"grace":                   func(s *Spec) { s.StopGraceSeconds = 3601 },
		"extension of known type": func(s *Spec) { s.UnknownInformative = [][]byte{{1, 1, 2}} },
		"extension critical":      func(s *Spec) { s.UnknownInformative = [][]byte{{0x90, 0}} },
		"extension of wrong size": func(s *Spec) { s.UnknownInformative = [][]byte{{0x40, 2, 1}} },
		"extensions unsorted":     func(s *Spec) { s.UnknownInformative = [][]byte{{0x41, 0}, {0x40, 0}} },
	} {
		s := full()
		change(s)
		err := s.Validate()
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if !strings.HasPrefix(err.Error(), "workload: ") || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%s: error does not say what was expected: %v", name, err)
		}
		if _, encodeErr := Encode(s); encodeErr == nil || encodeErr.Error() != err.Error() {
			t.Errorf("%s: Encode says %v, Validate %v", name, encodeErr, err)
		}
		EncodedSize(s) // whatever is in it, measuring and hashing must not panic
		s.InstanceDigest()
		Format("spread.x", s)
		Summary(s)
	}
}

func TestF143_CapabilityNames(t *testing.T) {
	for bit := range 10 {
		if name := CapabilityNames(1 << bit); CapabilityOf(name) != 1<<bit {
			t.Errorf("bit %d is named %q, which is bit mask %#x", bit, name, CapabilityOf(name))
		}
	}
	if got := CapabilityNames(CapabilityKVRead | CapabilityMetrics | 1<<20); got != "kv_read,metrics,bit20" {
		t.Errorf("got %s", got)
	}
	if CapabilityOf("") != 0 || CapabilityOf("bit20") != 0 {
		t.Error("an unknown name has a bit")
	}
}

func TestTargetOf(t *testing.T) {
	s := &Spec{Ports: []Port{{80, 8080, TCP}, {80, 5353, UDP}, {0, 9000, TCP}}}
	for _, test := range []struct {
		vip  VIP
		want uint16
	}{
		{vip("10.0.0.1:80", 0, 0, 0, TCP), 8080},
		{vip("10.0.0.1:80", 0, 0, 0, UDP), 5353},
		{vip("10.0.0.1:80", 7, 0, 0, TCP), 7},
		{vip("10.0.0.1:9000", 0, 0, 0, TCP), 9000},
	} {
		if got := s.TargetOf(test.vip); got != test.want {
			t.Errorf("%+v leads to %d, want %d", test.vip, got, test.want)
		}
	}
}

func TestUnits(t *testing.T) {
	for _, value := range []uint32{1, 999, 1000, 1500, 60000, 3600000, 3600001, 1<<32 - 1} {
		if got, ok := parseUnits(formatUnits(value, durationUnits), durationUnits); !ok || got != value {
			t.Errorf("%d ms is written %s, which reads as %d", value, formatUnits(value, durationUnits), got)
		}
		if got, ok := parseUnits(formatUnits(value, memoryUnits), memoryUnits); !ok || got != value {
			t.Errorf("%d mb is written %s, which reads as %d", value, formatUnits(value, memoryUnits), got)
		}
	}
	for _, bad := range []string{"", "s", "1", "-1s", "+1s", "1 s", "1.5s", "4294967296ms",
		"99999999999999999999h", "0x1s"} {
		if got, ok := parseUnits(bad, durationUnits); ok {
			t.Errorf("%q reads as %d", bad, got)
		}
	}
	for _, bad := range []string{"", "m", ".5", "1.", "1.0000", "-1", "4097", "4096001m", "1.+5", "1.5m"} {
		if got, ok := parseCPU(bad); ok {
			t.Errorf("%q reads as %d", bad, got)
		}
	}
}
