package workload

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

func (s *Spec) checkHealth(l *problems) {
	h := &s.Health
	const key = "health"
	l.need(h.Kind <= HealthNone, key, "kind %d is unknown, expected tcp, http, exec or none", h.Kind)
	l.need((h.Port != 0) == (h.Kind == HealthTCP || h.Kind == HealthHTTP), key,
		"port %d does not fit the kind of check, expected a port with tcp and http only", h.Port)
	l.need((h.Path != "") == (h.Kind == HealthHTTP), key, "path %q does not fit the kind of check, expected "+
		"one with http only", h.Path)
	l.need(h.Path == "" || validRequestPath(h.Path), key,
		"path %q is invalid, expected / and printable ASCII "+
			"without blanks", h.Path)
	l.need((len(h.Command) > 0) == (h.Kind == HealthExec), key,
		"command does not fit the kind of check, expected "+
			"one with exec only")
	l.need(h.Kind != HealthExec || s.Runtime != RuntimeWasm, key,
		"a module has no programs, expected tcp, http or none")
	l.need(len(h.Command) == 0 || h.Command[0] != "" && !slices.ContainsFunc(h.Command, invalidText), key,
		"command is invalid, expected a program and words of at most %d bytes", TextLengthMax)
	size := len(appendHealth(nil, h))
	l.need(size <= tlvSizeMax, key, "path or command takes %d bytes, expected at most %d",
		size-healthFixedSize,
		tlvSizeMax-healthFixedSize)
	times := h.IntervalMillisecond != 0 || h.TimeoutMillisecond != 0 || h.FailuresMax != 0
	l.need(h.Kind != HealthNone || !times, key, "no check needs no times, expected none alone")
	l.need(h.IntervalMillisecond == 0 ||
		h.IntervalMillisecond >= healthIntervalMin && h.IntervalMillisecond <= healthIntervalMax, key,
		"interval is %d ms, expected 100ms to 1h", h.IntervalMillisecond)
	l.need(h.TimeoutMillisecond == 0 ||
		h.TimeoutMillisecond >= healthTimeoutMin && h.TimeoutMillisecond <= healthTimeoutMax, key,
		"timeout is %d ms, expected 10ms to 10m", h.TimeoutMillisecond)
}

func validRequestPath(p string) bool {
	return p[0] == '/' && !strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

func (s *Spec) checkPolicies(l *problems) {
	l.need(s.Restart <= RestartNever, "restart", "policy %d is unknown, expected always, on-failure or never",
		s.Restart)
	l.need(s.Failover <= FailoverNone, "failover", "policy %d is unknown, expected ap, quorum or none",
		s.Failover)
	l.need(s.Failover == FailoverAP || s.Stateful, "failover",
		"only a stateful workload has a failover policy, "+
			"expected none (no_failover keeps a replica on its cell)")
	l.need(s.Failover != FailoverQuorum || s.ReplicationFactor >= 3, "failover",
		"quorum with %d copies cannot outlive a cell, expected replication_factor 3 or more", s.ReplicationFactor)
	l.need(s.Failover != FailoverQuorum || !s.NoFailover, "failover",
		"quorum contradicts no_failover, expected one")
	l.need(s.Architecture == "" || len(s.Architecture) <= 16 && validToken(s.Architecture, "") &&
		strings.ToLower(s.Architecture) == s.Architecture, "arch",
		"%q is no architecture, expected for instance amd64 "+
			"or arm64", s.Architecture)
}

func (s *Spec) checkConstraints(l *problems) {
	if len(s.Constraints) > ConstraintsMax {
		l.add("constraint", ConstraintsMax, "%d constraints, expected at most %d", len(s.Constraints),
			ConstraintsMax)
		return
	}
	for i, c := range s.Constraints {
		if !validLabel(c.Label) || !validLabel(c.Value) {
			l.add("constraint", i, "%q and %q are no label and value, expected 1 to %d letters, digits, _ . - / each",
				c.Label, c.Value, labelLengthMax)
		}
		if slices.Contains(s.Constraints[:i], c) {
			l.add("constraint", i, "constraint on %s is given twice, expected it once", c.Label)
		}
	}
}

// CheckLabel checks the text of a label of a cell, NAME=VALUE: only what a constraint can name is of use.
func CheckLabel(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || !validLabel(name) || !validLabel(value) {
		return fmt.Errorf("%q is no label: write NAME=VALUE with 1 to %d letters, digits, _ . - / in both", text,
			labelLengthMax)
	}
	return nil
}

func validLabel(text string) bool { return len(text) <= labelLengthMax && validToken(text, "_.-/") }

func (s *Spec) checkLimits(l *problems) {
	l.need(s.CPUMillicores <= CPUMillicoresMax, "cpu", "%d millicores, expected at most %d", s.CPUMillicores,
		CPUMillicoresMax)
	l.need(s.MemoryMiB <= MemoryMiBMax, "mem", "%d mb, expected at most %d", s.MemoryMiB, MemoryMiBMax)
	l.need(s.MemoryMiB <= math.MaxUint16 || s.MemoryMiB%memoryUnitMiB == 0, "mem",
		"%d mb is not stored exactly, expected a multiple of %d mb above %d mb", s.MemoryMiB, memoryUnitMiB,
		math.MaxUint16)
	l.need(s.PidsMax <= PidsLimitMax, "pids", "%d processes, expected at most %d", s.PidsMax, PidsLimitMax)
	l.need(s.StopGraceSeconds <= StopGraceSecondsMax, "stop_grace", "%d s, expected at most %d s",
		s.StopGraceSeconds,
		StopGraceSecondsMax)
}
