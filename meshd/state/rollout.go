package state

import (
	"encoding/binary"
	"strconv"
	"strings"

	"colloid.net/meshd/wire"
)

// Fields of the keys rollout.<workload>.<field>. All are Derived: cells write them, several values side by
// side are read by a rule, and none of them is an operator's word (docs/decisions.md).
const (
	// RolloutVerdict holds a Verdict on one write of the workload's key.
	RolloutVerdict = "verdict"
	// RolloutGood holds the encoded specification that was last ready everywhere. Of several values the one
	// with the greatest dot counts.
	RolloutGood = "good"
	// RolloutPast holds the digests of former specifications, newest first. Several values are united.
	RolloutPast = "past"
	// RolloutMarks holds what became of former specifications, as far as it is known. Of several values the
	// one with the greatest dot counts.
	RolloutMarks = "marks"
	// rolloutPastPrefix begins the fields that hold former specifications, each under its digest.
	rolloutPastPrefix = "past-"
)

// PastMax bounds the former specifications that are kept of one workload.
const PastMax = 8

const hexDigits = 16

// RolloutKey names one field of what is known of a workload's roll-outs.
func RolloutKey(workload, field string) string { return PrefixRollout + workload + "." + field }

// PastField is the field that holds the former specification with a digest.
func PastField(digest uint64) string { return rolloutPastPrefix + hexOf(digest) }

// SplitRollout splits "rollout.<workload>.<field>".
func SplitRollout(name string) (workload, field string, ok bool) { return splitRollout(name) }

func splitRollout[T text](name T) (workload, field T, ok bool) {
	workload, field, ok = cutDot(name, PrefixRollout)
	if !ok {
		return workload, field, false
	}
	switch string(field) {
	case RolloutVerdict, RolloutGood, RolloutPast, RolloutMarks:
		return workload, field, true
	}
	return workload, field, hasPrefix(field, rolloutPastPrefix) && isHex(field[len(rolloutPastPrefix):])
}

// cutDot cuts "<prefix><workload>.<tail>".
func cutDot[T text](name T, prefix string) (workload, tail T, ok bool) {
	if !hasPrefix(name, prefix) {
		return workload, tail, false
	}
	rest := name[len(prefix):]
	for i := range len(rest) {
		if rest[i] == '.' {
			return rest[:i], rest[i+1:], validWorkloadName(rest[:i])
		}
	}
	return workload, tail, false
}

// isHex reports whether digits are exactly 16 hexadecimal ones, lower case (F61).
func isHex[T text](digits T) bool {
	if len(digits) != hexDigits {
		return false
	}
	for i := range len(digits) {
		if b := digits[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}

func hexOf(digest uint64) string {
	text := strconv.FormatUint(digest, 16)
	return strings.Repeat("0", hexDigits-len(text)) + text
}

// EnvironmentPartsMax bounds the keys over which one sealed environment is spread (F83).
const EnvironmentPartsMax = 8

// EnvironmentKey names one part of a sealed environment. The digest is the beginning of the one in the
// specification; the workload name must be valid.
func EnvironmentKey(workload string, digest uint64, part int) string {
	return PrefixEnv + workload + "." + hexOf(digest) + "." + strconv.Itoa(part)
}

// SplitEnvironment splits "env.<workload>.<digest>.<part>".
func SplitEnvironment(name string) (workload, digest string, part int, ok bool) {
	return splitEnvironment(name)
}

func splitEnvironment[T text](name T) (workload, digest T, part int, ok bool) {
	workload, rest, ok := cutDot(name, PrefixEnv)
	if !ok || len(rest) != hexDigits+2 || !isHex(rest[:hexDigits]) || rest[hexDigits] != '.' {
		return workload, digest, 0, false
	}
	part = int(rest[hexDigits+1]) - '0'
	return workload, rest[:hexDigits], part, part >= 0 && part < EnvironmentPartsMax
}

// DrainKey names the operator's wish that a cell be empty. A value means yes.
func DrainKey(cell wire.CellID) string { return PrefixCell + cell.String() + ".drain" }

// SplitDrain splits "cell.<id>.drain".
func SplitDrain(name string) (cell wire.CellID, ok bool) {
	cell, field, ok := splitCell(name, PrefixCell)
	return cell, ok && field == "drain"
}

// Verdict says that one write of a workload's key did not work. Those on other writes mean nothing.
type Verdict struct {
	Dots   uint64 // digest of the dots of the write that is judged
	Digest uint64 // workload.InstanceDigest of what failed
	Cell   wire.CellID
	Reason string
}

const (
	tagVerdictDots   = 1
	tagVerdictDigest = 2
	tagVerdictCell   = 3
	tagVerdictReason = 4

	verdictSingle tags = 1<<tagVerdictDots | 1<<tagVerdictDigest | 1<<tagVerdictCell | 1<<tagVerdictReason
)

// AppendVerdict encodes v; the reason is cut to 200 bytes and made printable.
func AppendVerdict(dst []byte, v Verdict) []byte {
	dst = append(dst, valueVersion)
	dst = appendTLV64(dst, tagVerdictDots, v.Dots)
	dst = appendTLV64(dst, tagVerdictDigest, v.Digest)
	dst = appendTLV64(dst, tagVerdictCell, uint64(v.Cell))
	return appendTLV(dst, tagVerdictReason, Printable(v.Reason, 200))
}

// ParseVerdict decodes what AppendVerdict wrote.
func ParseVerdict(value []byte) (Verdict, error) {
	var v Verdict
	err := eachTLV(value, verdictSingle, func(tag byte, field []byte) (err error) {
		var cell uint64
		switch tag {
		case tagVerdictDots:
			v.Dots, err = uint64Of(field)
		case tagVerdictDigest:
			v.Digest, err = uint64Of(field)
		case tagVerdictCell:
			cell, err = uint64Of(field)
			v.Cell = wire.CellID(cell)
		case tagVerdictReason:
			v.Reason, err = textOf(field)
		}
		return err
	})
	if err != nil {
		return Verdict{}, err
	}
	return v, nil
}

// AppendPast encodes a list of digests, at most PastMax.
func AppendPast(dst []byte, digests []uint64) []byte {
	dst = append(dst, valueVersion)
	for _, digest := range digests[:min(len(digests), PastMax)] {
		dst = binary.BigEndian.AppendUint64(dst, digest)
	}
	return dst
}

// ParsePast decodes what AppendPast wrote.
func ParsePast(value []byte) ([]uint64, error) {
	if len(value) == 0 || value[0] != valueVersion || (len(value)-1)%8 != 0 || len(value) > 1+8*PastMax {
		return nil, errTLV
	}
	var digests []uint64
	for rest := value[1:]; len(rest) > 0; rest = rest[8:] {
		digests = append(digests, binary.BigEndian.Uint64(rest))
	}
	return digests, nil
}

// Outcome is what became of a former specification.
type Outcome uint8

// Outcomes. One that was replaced before it was either has none.
const (
	OutcomeGood   Outcome = 1 // it was ready everywhere
	OutcomeFailed Outcome = 2 // a cell gave a verdict on it
)

// String returns the name used in output, "" for an outcome that this version does not know.
func (o Outcome) String() string {
	switch o {
	case OutcomeGood:
		return "good"
	case OutcomeFailed:
		return "failed"
	}
	return ""
}

// Mark is the outcome of one former specification, by the digest of all of it.
type Mark struct {
	Digest  uint64
	Outcome Outcome
}

const markSize = 9

// AppendMarks encodes at most PastMax marks.
func AppendMarks(dst []byte, marks []Mark) []byte {
	dst = append(dst, valueVersion)
	for _, mark := range marks[:min(len(marks), PastMax)] {
		dst = append(binary.BigEndian.AppendUint64(dst, mark.Digest), byte(mark.Outcome))
	}
	return dst
}

// ParseMarks decodes what AppendMarks wrote.
func ParseMarks(value []byte) ([]Mark, error) {
	if len(value) == 0 || value[0] != valueVersion || (len(value)-1)%markSize != 0 || len(value) > 1+markSize*PastMax {
		return nil, errTLV
	}
	var marks []Mark
	for rest := value[1:]; len(rest) > 0; rest = rest[markSize:] {
		marks = append(marks, Mark{binary.BigEndian.Uint64(rest), Outcome(rest[8])})
	}
	return marks, nil
}
