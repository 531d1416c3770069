package workload

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// full has a value in every field, and still fits.
func full() *Spec {
	return &Spec{
		Runtime: RuntimeOCI, Stateful: true, Oversubscribe: true, Replicas: 3,
		CPUMillicores: 70000, MemoryMiB: 65552, Image: "docker.io/redis:7", ImageDigest: [32]byte{1, 31: 2},
		Ports: []Port{{80, 8080, TCP}, {0, 53, UDP}},
		VIPs: []VIP{vip("10.0.0.100:80", 8080, VIPModeBoth, VIPPathDSR, TCP), vip("[fd00::1]:53", 0,
			0, 0, UDP)},
		Volumes:           []Volume{{"data", "/data"}},
		ReplicationFactor: 3, Command: []string{"redis-server"}, Arguments: []string{"--save", ""},
		Environment: []string{"A=1", "B="}, EnvironmentDigest: [32]byte{3},
		Health: Health{Kind: HealthExec, Command: []string{"redis-cli", "interval=1s"},
			IntervalMillisecond: 5000, TimeoutMillisecond: 500, FailuresMax: 5},
		Restart: RestartOnFailure, Update: Update{2, 10, true, 0}, Failover: FailoverQuorum,
		Architecture: "arm64", StopGraceSeconds: 30, User: "999:999", Priority: -5,
		Constraints: []Constraint{{"zone", "a", false}, {"disk/kind", "hdd", true}},
		PidsMax:     100, DiskMiB: 1024, ReadOnlyRoot: true,
		SignatureKeyID: [4]byte{9}, Signature: [64]byte{8},
		UnknownInformative: [][]byte{{0x40, 2, 7, 7}},
	}
}

func vip(address string, target uint16, mode, path uint8, protocol Protocol) VIP {
	a := netip.MustParseAddrPort(address)
	return VIP{a.Addr().As16(), a.Port(), target, mode, path, protocol}
}

// sometimes draws a value in a third of the cases, so that specs stay small enough.
func sometimes[T any](t *rapid.T, name string, value *rapid.Generator[T]) (drawn T) {
	if rapid.IntRange(0, 2).Draw(t, name+"?") == 0 {
		drawn = value.Draw(t, name)
	}
	return drawn
}

func listOf[T any](t *rapid.T, name string, most int, value *rapid.Generator[T]) []T {
	list := rapid.SliceOfN(value, 0, most).Draw(t, name)
	if len(list) == 0 {
		return nil
	}
	return list
}

var (
	anyText  = rapid.StringOfN(rapid.RuneFrom([]rune("a1=${}\\\"# \n\t\x1bü\u202e;")), 0, 12, 40)
	anyToken = rapid.StringMatching(`[a-z0-9_][a-z0-9_.-]{0,6}`)
	anyName  = rapid.StringMatching(`[a-z0-9-]{1,8}`)
	anyPath  = rapid.Map(anyText, func(text string) string {
		return "/" + strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, text) + "x"
	})
)

// drawSpec gives a Spec that is valid under the returned key, or fails the draw.
func drawSpec(t *rapid.T) (string, *Spec) {
	kind := rapid.SampledFrom([]Kind{KindSpread, KindStateful, KindWasm}).Draw(t, "kind")
	s := &Spec{
		Stateful: kind == KindStateful,
		Replicas: rapid.Uint16().Draw(t, "replicas"),
	}
	drawRuntime(t, kind, s)
	drawNetwork(t, s)
	s.NoFailover = rapid.Bool().Draw(t, "no failover")
	s.Oversubscribe = rapid.Bool().Draw(t, "oversubscribe")
	s.CPUMillicores = sometimes(t, "cpu", rapid.Uint32Range(0, CPUMillicoresMax))
	s.MemoryMiB = sometimes(t, "memory", rapid.Uint32Range(0, MemoryMiBMax))
	if s.MemoryMiB > math.MaxUint16 {
		s.MemoryMiB &^= memoryUnitMiB - 1
	}
	if sometimes(t, "pinned", rapid.Just(true)) {
		drawBytes(t, "digest", s.ImageDigest[:])
	}
	if sometimes(t, "signed", rapid.Just(true)) {
		drawBytes(t, "key", s.SignatureKeyID[:])
		drawBytes(t, "signature", s.Signature[:])
		drawBytes(t, "environment", s.EnvironmentDigest[:])
	}
	drawWords(t, s)
	drawPolicies(t, s)
	for _, kind := range slices.Sorted(slices.Values(listOf(t, "unknown", 2, rapid.ByteRange(17, 0x7f)))) {
		value := rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "value")
		s.UnknownInformative = append(s.UnknownInformative, append([]byte{kind, byte(len(value))}, value...))
	}
	key := Key(kind, anyName.Draw(t, "name"))
	if err := s.Validate(); err != nil {
		t.Skip(err)
	}
	return key, s
}

func drawBytes(t *rapid.T, name string, dst []byte) {
	copy(dst, rapid.SliceOfN(rapid.Byte(), len(dst), len(dst)).Draw(t, name))
}

func drawRuntime(t *rapid.T, kind Kind, s *Spec) {
	runtimes := []Runtime{RuntimeOCI, RuntimeProcess, RuntimeWasm}
	switch kind {
	case KindSpread:
		runtimes = runtimes[:2]
	case KindWasm:
		runtimes = runtimes[2:]
	}
	s.Runtime = rapid.SampledFrom(runtimes).Draw(t, "runtime")
	switch s.Runtime {
	case RuntimeOCI:
		s.Image = rapid.StringMatching(`[a-z]{1,6}(\.io:5000)?/[a-z]{1,9}(:[0-9.]{1,4})?`).Draw(t, "image")
		s.Command = listOf(t, "command", 2, rapid.Map(anyText, func(text string) string { return "c" + text }))
	case RuntimeProcess:
		s.Image = anyPath.Draw(t, "program")
	case RuntimeWasm:
		s.Image = rapid.StringMatching(`https?://[a-z]{1,6}(:80)?/[a-z./]{0,9}(\?a=b;c)?`).Draw(t, "module")
		s.Deterministic = rapid.Bool().Draw(t, "deterministic")
		s.Capabilities = rapid.Uint32Range(0, CapabilitiesKnown).Draw(t, "capabilities")
		if s.Deterministic {
			s.Capabilities &^= CapabilitiesNondeterministic
		}
	}
}

func drawNetwork(t *rapid.T, s *Spec) {
	protocol := rapid.SampledFrom([]Protocol{TCP, UDP})
	port := rapid.Uint16Range(1, math.MaxUint16)
	s.Ports = listOf(t, "ports", 3, rapid.Custom(func(t *rapid.T) Port {
		p := Port{sometimes(t, "host", port), port.Draw(t, "container"), protocol.Draw(t, "protocol")}
		if s.Runtime == RuntimeProcess {
			p.Host = p.Container
		}
		return p
	}))
	s.VIPs = listOf(t, "vips", 2, rapid.Custom(func(t *rapid.T) VIP {
		address := rapid.SampledFrom([]string{"10.0.0.1", "192.0.2.7", "fd00::1", "2001:db8::7"}).Draw(t,
			"address")
		return VIP{
			Address: netip.MustParseAddr(address).As16(), Port: port.Draw(t, "port"),
			Target: sometimes(t, "target", port), Mode: rapid.Uint8Range(0, 3).Draw(t, "mode"),
			Path: rapid.Uint8Range(0, 2).Draw(t, "path"), Protocol: protocol.Draw(t, "protocol"),
		}
	}))
}

func drawWords(t *rapid.T, s *Spec) {
	s.Arguments = listOf(t, "arguments", 3, anyText)
	for _, name := range slices.Sorted(slices.Values(rapid.SliceOfNDistinct(
		rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,3}`), 0, 3, rapid.ID[string]).Draw(t, "variables"))) {
		s.Environment = append(s.Environment, name+"="+anyText.Draw(t, "value"))
	}
	s.User = sometimes(t, "user", anyToken)
	s.Architecture = sometimes(t, "arch", rapid.SampledFrom([]string{"amd64", "arm64", "riscv64"}))
	s.Constraints = listOf(t, "constraints", 2, rapid.Custom(func(t *rapid.T) Constraint {
		return Constraint{anyToken.Draw(t, "label"), anyToken.Draw(t, "value"), rapid.Bool().Draw(t, "negate")}
	}))
	if !s.Stateful {
		return
	}
	s.Failover = Failover(rapid.Uint8Range(0, 2).Draw(t, "failover"))
	s.ReplicationFactor = rapid.Uint8Range(0, ReplicationFactorMax).Draw(t, "factor")
	s.Volumes = listOf(t, "volumes", 2, rapid.Custom(func(t *rapid.T) Volume {
		return Volume{anyName.Draw(t, "volume"), anyPath.Draw(t, "path")}
	}))
}

func drawPolicies(t *rapid.T, s *Spec) {
	h := &s.Health
	h.Kind = HealthKind(rapid.Uint8Range(0, 4).Draw(t, "health"))
	switch h.Kind {
	case HealthHTTP:
		h.Path = rapid.StringMatching(`/[!-~]{0,9}`).Draw(t, "path")
		h.Port = rapid.Uint16Range(1, math.MaxUint16).Draw(t, "port")
	case HealthTCP:
		h.Port = rapid.Uint16Range(1, math.MaxUint16).Draw(t, "port")
	case HealthExec:
		words := rapid.OneOf(anyText, rapid.SampledFrom([]string{"interval=1s", "failures=", "timeout=x y"}))
		h.Command = append([]string{"c"}, listOf(t, "command", 2, words)...)
	}
	if h.Kind != HealthNone {
		h.IntervalMillisecond = sometimes(t, "interval", rapid.Uint32Range(healthIntervalMin, healthIntervalMax))
		h.TimeoutMillisecond = sometimes(t, "timeout", rapid.Uint32Range(healthTimeoutMin, healthTimeoutMax))
		h.FailuresMax = sometimes(t, "failures", rapid.Uint8())
	}
	s.Restart = RestartPolicy(rapid.Uint8Range(0, 2).Draw(t, "restart"))
	s.Update.UnavailableMax = sometimes(t, "unavailable", rapid.Uint8())
	s.Update.MinReadySeconds = sometimes(t, "ready", rapid.Uint16())
	s.Update.AutoRollback = rapid.Bool().Draw(t, "rollback")
	s.Update.DeadlineSeconds = sometimes(t, "deadline", rapid.Uint16())
	s.StopGraceSeconds = sometimes(t, "grace", rapid.Uint16Range(0, StopGraceSecondsMax))
	s.Priority = sometimes(t, "priority", rapid.Int8())
	s.PidsMax = sometimes(t, "pids", rapid.Uint32Range(0, PidsLimitMax))
	s.DiskMiB = sometimes(t, "disk", rapid.Uint32())
	s.ReadOnlyRoot = rapid.Bool().Draw(t, "read only")
}
