package workload

import (
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"colloid.net/workload/syntax"
)

// The keys that say how a workload lives rather than what it is.

func readFailover(r *blockReader, s *syntax.Statement) {
	r.spec.Failover = Failover(r.choice(s.Arguments[0], "ap", "quorum", "none"))
}

func readRestart(r *blockReader, s *syntax.Statement) {
	r.spec.Restart = RestartPolicy(r.choice(s.Arguments[0], "always", "on-failure", "never"))
}

const updateUsage = "[max_unavailable=NUMBER] [min_ready=10s] [rollback=true|false] [deadline=2m]"

func readUpdate(r *blockReader, s *syntax.Statement) {
	update := &r.spec.Update
	r.options(s.Arguments, updateUsage, func(name string, value syntax.Word) bool {
		switch name {
		case "max_unavailable":
			update.UnavailableMax = uint8(r.number(value, 1, math.MaxUint8, "a number from 1 to 255"))
		case "min_ready":
			update.MinReadySeconds = uint16(r.seconds(value, 0, math.MaxUint16))
		case "rollback":
			update.AutoRollback = r.boolean(value)
		case "deadline":
			update.DeadlineSeconds = uint16(r.seconds(value, 1, math.MaxUint16))
		default:
			return false
		}
		return true
	})
}

// milliseconds reads a duration of least to most.
func (r *blockReader) milliseconds(word syntax.Word, least, most uint32) uint32 {
	value, ok := parseUnits(word.Text, durationUnits)
	if !ok || value < least || value > most {
		r.expected(word, "a duration from "+formatUnits(least, durationUnits)+" to "+
			formatUnits(most, durationUnits)+", as in 500ms, 2s, 5m or 1h")
		return 0
	}
	return value
}

// seconds reads a duration of least to most whole seconds.
func (r *blockReader) seconds(word syntax.Word, least, most uint32) uint32 {
	value, ok := parseUnits(word.Text, durationUnits)
	if !ok || value%1000 != 0 || value/1000 < least || value/1000 > most {
		r.expected(word, "whole seconds from "+strconv.Itoa(int(least))+"s to "+strconv.Itoa(int(most))+
			"s, as in 10s or 2m")
		return 0
	}
	return value / 1000
}

const healthUsage = "tcp PORT|http PORT PATH|exec WORD...|none|default " +
	"[interval=2s] [timeout=1s] [failures=3]"

// readHealth takes bare options off the end, since an exec check may have any number of words; a word
// of the command that looks like one is written in quotes.
func readHealth(r *blockReader, s *syntax.Statement) {
	h, words := &r.spec.Health, s.Arguments
	first := len(words)
	for first > 1 && !words[first-1].Quoted && healthOption(words[first-1].Text) {
		first--
	}
	r.options(words[first:], healthUsage, func(name string, value syntax.Word) bool {
		switch name {
		case "interval":
			h.IntervalMillisecond = r.milliseconds(value, healthIntervalMin, healthIntervalMax)
		case "timeout":
			h.TimeoutMillisecond = r.milliseconds(value, healthTimeoutMin, healthTimeoutMax)
		case "failures":
			h.FailuresMax = uint8(r.number(value, 1, math.MaxUint8, "a number from 1 to 255"))
		}
		return true
	})
	kinds := []string{"default", "tcp", "http", "exec", "none"}
	if h.Kind = HealthKind(r.choice(words[0], kinds...)); h.Kind.String() != words[0].Text {
		return
	}
	words = words[1:first]
	count := [...][2]int{
		HealthDefault: {0, 0}, HealthTCP: {1, 1}, HealthHTTP: {2, 2}, HealthExec: {1, many}, HealthNone: {0, 0},
	}[h.Kind]
	switch {
	case len(words) < count[0]:
		r.fail(s.End, "health %s lacks an argument, expected health %s", h.Kind, healthUsage)
	case len(words) > count[1]:
		r.expected(words[count[1]], "health "+healthUsage)
	case h.Kind == HealthExec:
		h.Command = texts(words)
	case h.Kind == HealthTCP, h.Kind == HealthHTTP:
		h.Port = uint16(r.number(words[0], 1, math.MaxUint16, "a port from 1 to 65535"))
		if h.Kind == HealthHTTP {
			h.Path = words[1].Text
		}
	}
}

// healthOption reports whether a bare word is an option of the health key.
func healthOption(text string) bool {
	name, _, assigned := strings.Cut(text, "=")
	return assigned && (name == "interval" || name == "timeout" || name == "failures")
}

func readConstraint(r *blockReader, s *syntax.Statement) {
	label, value, assigned := strings.Cut(s.Arguments[0].Text, "=")
	label, negate := strings.CutSuffix(label, "!")
	if !assigned || !validLabel(label) || !validLabel(value) {
		r.expected(s.Arguments[0], "LABEL=VALUE or LABEL!=VALUE with letters, digits, _ . - / in both")
		return
	}
	r.place(s)
	r.spec.Constraints = append(r.spec.Constraints, Constraint{label, value, negate})
}

func readArchitecture(r *blockReader, s *syntax.Statement) {
	r.spec.Architecture = s.Arguments[0].Text
	if r.spec.Architecture == "" {
		r.expected(s.Arguments[0], "an architecture, for instance amd64 or arm64")
	}
}

func readStopGrace(r *blockReader, s *syntax.Statement) {
	r.spec.StopGraceSeconds = uint16(r.seconds(s.Arguments[0], 1, StopGraceSecondsMax))
}

func readUser(r *blockReader, s *syntax.Statement) {
	r.spec.User = s.Arguments[0].Text
	if r.spec.User == "" {
		r.expected(s.Arguments[0], "NAME, UID, NAME:GROUP or UID:GID")
	}
}

func readPriority(r *blockReader, s *syntax.Statement) {
	value, err := strconv.ParseInt(s.Arguments[0].Text, 10, 8)
	if err != nil || s.Arguments[0].Text[0] == '+' {
		r.expected(s.Arguments[0], "a number from -128 to 127")
	}
	r.spec.Priority = int8(value)
}

func readSignature(r *blockReader, s *syntax.Statement) {
	r.hex(s.Arguments[0], r.spec.SignatureKeyID[:], "8 hexadecimal digits of a key id")
	r.hex(s.Arguments[1], r.spec.Signature[:], "128 hexadecimal digits of a signature")
}

func readExtension(r *blockReader, s *syntax.Statement) {
	record, err := hex.DecodeString(s.Arguments[0].Text)
	if err != nil || len(record) == 0 {
		r.expected(s.Arguments[0], "a record in hexadecimal digits, as written by export")
		return
	}
	r.place(s)
	r.spec.UnknownInformative = append(r.spec.UnknownInformative, record)
}
