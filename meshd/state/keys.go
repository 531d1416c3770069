// Package state says what the keys of the replicated store mean and how their values are encoded
// (SPEC-REVIEW Part 1 section 7.6). Everything that reads or writes a key goes through here, so
// that one name exists for one thing (F61).
package state

import (
	"strings"

	"colloid.net/meshd/wire"
)

// Category is the conflict policy of a key.
type Category uint8

// Categories of keys.
const (
	// Operator keys are written by people: conflicts block and are shown (SAFE-1).
	Operator Category = iota
	// Status keys are max-registers: one entry always, no conflict possible (F47).
	Status
	// SingleWriter keys are written by the one cell they name.
	SingleWriter
	// KV keys belong to a Wasm workload; siblings are handed to the module (F148).
	KV
	// Derived keys resolve by rule at reading (F113).
	Derived
)

// Prefixes of keys.
const (
	PrefixSpread   = "spread."
	PrefixStateful = "stateful."
	PrefixWasm     = "wasm."
	PrefixVIP      = "vip."
	PrefixEnv      = "env."
	PrefixHealth   = "health."
	PrefixEndpoint = "ep."
	PrefixDeny     = "deny."
	PrefixVolume   = "volume."
	PrefixGateway  = "gateway."
	PrefixMetric   = "metric."
	PrefixKV       = "kv."
	// DoorKey holds whether the cluster accepts joiners without the key (decision D1).
	DoorKey = "cluster.door"
)

// CategoryOf classifies a key by its name. A name this version does not know is an operator key:
// nothing about it is ever resolved silently.
func CategoryOf(name []byte) Category {
	switch {
	case hasPrefix(name, PrefixHealth):
		if hasSuffix(name, ".status") {
			return Status
		}
		return SingleWriter
	case hasPrefix(name, PrefixEndpoint), hasPrefix(name, PrefixDeny), hasPrefix(name, PrefixMetric):
		return SingleWriter
	case hasPrefix(name, PrefixKV):
		return KV
	case hasPrefix(name, PrefixGateway):
		return Derived
	case hasPrefix(name, PrefixVolume) && containsReplica(name):
		return SingleWriter
	}
	return Operator
}

func hasPrefix(name []byte, prefix string) bool {
	return len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix
}

func hasSuffix(name []byte, suffix string) bool {
	return len(name) >= len(suffix) && string(name[len(name)-len(suffix):]) == suffix
}

func containsReplica(name []byte) bool {
	for i := 0; i+5 <= len(name); i++ {
		if string(name[i:i+5]) == ".rep." {
			return true
		}
	}
	return false
}

// IsWorkload reports whether the key holds a workload specification.
func IsWorkload(name []byte) bool {
	return hasPrefix(name, PrefixSpread) || hasPrefix(name, PrefixStateful) || hasPrefix(name, PrefixWasm)
}

// WorkloadName returns the part of a workload key behind its kind: "spread.web" gives "web".
func WorkloadName(key string) string {
	_, name, _ := strings.Cut(key, ".")
	return name
}

// StatusKey names the max-register of a cell's life (F47).
func StatusKey(cell wire.CellID) string { return PrefixHealth + cell.String() + ".status" }

// ContactKey names a cell's contact.
func ContactKey(cell wire.CellID) string { return PrefixHealth + cell.String() + ".contact" }

// CapacityKey names a cell's allocatable resources (F72).
func CapacityKey(cell wire.CellID) string { return PrefixHealth + cell.String() + ".capacity" }

// EndpointKey names where a cell's instances of a workload answer (F101).
func EndpointKey(cell wire.CellID, workload string) string {
	return PrefixEndpoint + cell.String() + "." + workload
}

// DenyKey names a cell's refusal of a workload (decision D2).
func DenyKey(cell wire.CellID, workload string) string {
	return PrefixDeny + cell.String() + "." + workload
}

// HealthKey splits "health.<cell>.<field>".
func HealthKey(name string) (cell wire.CellID, field string, ok bool) {
	return splitCell(name, PrefixHealth)
}

// SplitEndpoint splits "ep.<cell>.<workload>".
func SplitEndpoint(name string) (cell wire.CellID, workload string, ok bool) {
	return splitCell(name, PrefixEndpoint)
}

// SplitDeny splits "deny.<cell>.<workload>".
func SplitDeny(name string) (cell wire.CellID, workload string, ok bool) {
	return splitCell(name, PrefixDeny)
}

func splitCell(name, prefix string) (wire.CellID, string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, "", false
	}
	id, tail, ok := strings.Cut(rest, ".")
	if !ok || tail == "" {
		return 0, "", false
	}
	cell, err := wire.ParseCellID(id)
	return cell, tail, err == nil
}
