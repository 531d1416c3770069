package workload

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"colloid.net/workload/syntax"
)

// line is one statement of a block as Format writes it.
type line struct{ key, text string }

// Format writes a workload as a block that Parse reads back to an equal Spec: canonical text, one
// statement per line in a fixed order, defaults left out. The key has to fit s (CheckKey) and s has to
// be valid; what Decode returned is.
func Format(key string, s *Spec) string {
	kind, name, _ := strings.Cut(key, ".")
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s {\n", kind, quoteName(name))
	for _, l := range s.lines() {
		fmt.Fprintf(&b, "    %s %s\n", l.key, l.text)
	}
	b.WriteString("}\n")
	return b.String()
}

// quoteName writes the name of a block. One that begins with - is in quotes, since Parse takes no other.
func quoteName(name string) string {
	if strings.HasPrefix(name, "-") {
		return `"` + name + `"` // a name has no character that needs more
	}
	return syntax.Quote(name)
}

// lineWriter collects the lines of a Spec.
type lineWriter []line

func (w *lineWriter) put(key string, words ...string) {
	*w = append(*w, line{key, strings.Join(words, " ")})
}

// putIf writes a line only for what is not the default.
func (w *lineWriter) putIf(present bool, key string, words ...string) {
	if present {
		w.put(key, words...)
	}
}

func (s *Spec) lines() []line {
	var w lineWriter
	quote, decimal := syntax.Quote, func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	w.put(runtimeKey(s.Runtime), quote(s.Image))
	w.putIf(s.ImageDigest != [32]byte{}, "sha256", hex.EncodeToString(s.ImageDigest[:]))
	w.putIf(len(s.Command) > 0, "command", quoteAll(s.Command)...)
	w.putIf(len(s.Arguments) > 0, "args", quoteAll(s.Arguments)...)
	for _, variable := range s.Environment {
		name, value, _ := strings.Cut(variable, "=")
		w.put("env", name, quote(value))
	}
	w.putIf(s.EnvironmentDigest != [32]byte{}, "env_digest", hex.EncodeToString(s.EnvironmentDigest[:]))
	w.put("replicas", decimal(uint32(s.Replicas)))
	s.networkLines(&w)
	w.putIf(s.CPUMillicores != 0, "cpu", formatCPU(s.CPUMillicores))
	w.putIf(s.MemoryMiB != 0, "mem", formatUnits(s.MemoryMiB, memoryUnits))
	w.putIf(s.DiskMiB != 0, "disk", formatUnits(s.DiskMiB, memoryUnits))
	w.putIf(s.PidsMax != 0, "pids", decimal(s.PidsMax))
	for _, volume := range s.Volumes {
		w.put("volume", volume.Name, quote(volume.MountPath))
	}
	w.putIf(s.ReplicationFactor != 0, "replication_factor", decimal(uint32(s.ReplicationFactor)))
	w.putIf(s.Capabilities != 0, "capabilities", CapabilityNames(s.Capabilities))
	w.putIf(s.Deterministic, "deterministic", "true")
	s.policyLines(&w)
	w.putIf(s.User != "", "user", quote(s.User))
	w.putIf(s.ReadOnlyRoot, "read_only", "true")
	w.putIf(s.signed(), "signature", hex.EncodeToString(s.SignatureKeyID[:]), hex.EncodeToString(s.Signature[:]))
	for _, record := range s.UnknownInformative {
		w.put("extension", hex.EncodeToString(record))
	}
	return w
}

func (s *Spec) networkLines(w *lineWriter) {
	for _, port := range s.Ports {
		if s.Runtime == RuntimeProcess {
			port.Host = 0
		}
		w.put("port", port.String())
	}
	for _, vip := range s.VIPs {
		w.put("vip", vip.words()...)
	}
}

// words gives the arguments of the vip key.
func (v VIP) words() []string {
	address := netip.AddrPortFrom(netip.AddrFrom16(v.Address).Unmap(), v.Port)
	words := []string{address.String() + v.Protocol.suffix()}
	if v.Mode != VIPModeDefault {
		words = append(words, "mode="+[...]string{"", "l2", "l3", "both"}[v.Mode&3])
	}
	if v.Path != VIPPathTunnel {
		words = append(words, "path="+[...]string{"tunnel", "dsr", "nat", "invalid"}[v.Path&3])
	}
	if v.Target != 0 {
		words = append(words, "target="+strconv.Itoa(int(v.Target)))
	}
	return words
}

func (s *Spec) policyLines(w *lineWriter) {
	w.putIf(!s.Health.isZero(), "health", s.Health.words()...)
	w.putIf(s.Restart != RestartAlways, "restart", s.Restart.String())
	w.putIf(s.Update != Update{}, "update", s.Update.words()...)
	w.putIf(s.Failover != FailoverAP, "failover", s.Failover.String())
	w.putIf(s.NoFailover, "no_failover", "true")
	w.putIf(s.Oversubscribe, "oversubscribe", "true")
	w.putIf(s.StopGraceSeconds != 0, "stop_grace", strconv.Itoa(int(s.StopGraceSeconds))+"s")
	w.putIf(s.Priority != 0, "priority", strconv.Itoa(int(s.Priority)))
	w.putIf(s.Architecture != "", "arch", syntax.Quote(s.Architecture))
	for _, c := range s.Constraints {
		operator := "="
		if c.Negate {
			operator = "!="
		}
		w.put("constraint", syntax.Quote(c.Label+operator+c.Value))
	}
}

// words gives the arguments of the health key.
func (h *Health) words() []string {
	words := []string{h.Kind.String()}
	if h.Port != 0 {
		words = append(words, strconv.Itoa(int(h.Port)))
	}
	if h.Path != "" {
		words = append(words, syntax.Quote(h.Path))
	}
	for _, word := range h.Command {
		quoted := syntax.Quote(word)
		if healthOption(word) && !strings.HasPrefix(quoted, `"`) {
			quoted = `"` + quoted + `"`
		}
		words = append(words, quoted)
	}
	if h.IntervalMillisecond != 0 {
		words = append(words, "interval="+formatUnits(h.IntervalMillisecond, durationUnits))
	}
	if h.TimeoutMillisecond != 0 {
		words = append(words, "timeout="+formatUnits(h.TimeoutMillisecond, durationUnits))
	}
	if h.FailuresMax != 0 {
		words = append(words, "failures="+strconv.Itoa(int(h.FailuresMax)))
	}
	return words
}

// words gives the arguments of the update key.
func (u Update) words() []string {
	var words []string
	if u.UnavailableMax != 0 {
		words = append(words, "max_unavailable="+strconv.Itoa(int(u.UnavailableMax)))
	}
	if u.MinReadySeconds != 0 {
		words = append(words, "min_ready="+strconv.Itoa(int(u.MinReadySeconds))+"s")
	}
	if u.AutoRollback {
		words = append(words, "rollback=true")
	}
	if u.DeadlineSeconds != 0 {
		words = append(words, "deadline="+strconv.Itoa(int(u.DeadlineSeconds))+"s")
	}
	return words
}

func quoteAll(list []string) []string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = syntax.Quote(text)
	}
	return quoted
}

// nameOf gives the name of an enumeration's value, "invalid" beyond its end.
func nameOf(value int, names ...string) string {
	if value < len(names) {
		return names[value]
	}
	return "invalid"
}

// String gives the word of the configuration language.
func (k HealthKind) String() string {
	return nameOf(int(k), "default", "tcp", "http", "exec", "none")
}

// String gives the word of the configuration language.
func (p RestartPolicy) String() string { return nameOf(int(p), "always", "on-failure", "never") }

// String gives the word of the configuration language.
func (f Failover) String() string { return nameOf(int(f), "ap", "quorum", "none") }

// String gives the name of the runtime class.
func (r Runtime) String() string { return nameOf(int(r), "invalid", "oci", "wasm", "process") }

// String gives the name of the protocol.
func (p Protocol) String() string { return nameOf(int(p), "tcp", "udp") }
