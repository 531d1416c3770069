// Package state says what the keys of the replicated store mean and how their values are encoded
// (SPEC-REVIEW Part 1 section 7.6). Everything that reads or writes a key goes through here, so
// that one name exists for one thing (F61).
package state

import (
	"net/netip"
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
	PrefixRollout  = "rollout."
	PrefixCell     = "cell."
	// DoorKey holds whether the cluster accepts joiners without the key (decision D1).
	DoorKey = "cluster.door"
)

// CategoryOf classifies a key by its name. A name that this version does not know, or whose parts are
// not canonical (F61), is an operator key: nothing about it is ever resolved silently. All replicas must
// classify alike, because the category decides how they merge; it depends on the name alone and may
// not change between versions for a name that is in use. It does not allocate.
func CategoryOf(name []byte) Category {
	switch {
	case hasPrefix(name, PrefixHealth):
		if _, field, ok := splitCell(name, PrefixHealth); !ok {
			return Operator
		} else if string(field) == fieldStatus {
			return Status
		}
		return SingleWriter
	case hasPrefix(name, PrefixKV):
		return KV
	case hasPrefix(name, PrefixGateway):
		return Derived
	case hasPrefix(name, PrefixRollout):
		if _, _, ok := splitRollout(name); ok {
			return Derived
		}
		return Operator
	case hasPrefix(name, PrefixEnv):
		if _, _, _, ok := splitEnvironment(name); ok {
			return Derived
		}
		return Operator
	}
	if _, ok := WriterOf(name); ok {
		return SingleWriter
	}
	return Operator
}

// WriterOf returns the only cell that may write a key: of SingleWriter keys the cell they name. ok is
// false for all others, also for health.<id>.status, which any cell may raise.
func WriterOf(name []byte) (cell wire.CellID, ok bool) {
	switch {
	case hasPrefix(name, PrefixHealth):
		cell, field, ok := splitCell(name, PrefixHealth)
		return cell, ok && string(field) != fieldStatus
	case hasPrefix(name, PrefixEndpoint):
		cell, _, ok = splitCell(name, PrefixEndpoint)
		return cell, ok
	case hasPrefix(name, PrefixDeny):
		cell, _, ok = splitCell(name, PrefixDeny)
		return cell, ok
	case hasPrefix(name, PrefixMetric):
		workload, cell, ok := cutLastCell(name[len(PrefixMetric):], ".")
		return cell, ok && validWorkloadName(workload)
	case hasPrefix(name, PrefixVolume):
		volume, cell, ok := cutLastCell(name[len(PrefixVolume):], ".rep.")
		return cell, ok && len(volume) > 0
	}
	return 0, false
}

// cutLastCell cuts "<rest><separator><cell>".
func cutLastCell(name []byte, separator string) (rest []byte, cell wire.CellID, ok bool) {
	const digits = 16
	at := len(name) - digits - len(separator)
	if at < 0 || string(name[at:at+len(separator)]) != separator {
		return nil, 0, false
	}
	cell, ok = wire.DecodeCellID(name[at+len(separator):])
	return name[:at], cell, ok
}

// text is what keys come as: bytes from the store, strings from everybody else. Nothing below converts
// one into the other, so nothing allocates.
type text interface{ ~string | ~[]byte }

func hasPrefix[T text](name T, prefix string) bool {
	return len(name) >= len(prefix) && string(name[:len(prefix)]) == prefix
}

// WorkloadNameMax bounds the name of a workload, so that every key about it fits wire.NameMax.
const WorkloadNameMax = 63

// ValidWorkloadName reports whether name is the canonical name of a workload: 1 to 63 of a-z, 0-9 and
// "-" (F61).
func ValidWorkloadName(name string) bool { return validWorkloadName(name) }

func validWorkloadName[T text](name T) bool {
	if len(name) == 0 || len(name) > WorkloadNameMax {
		return false
	}
	for i := range len(name) {
		if b := name[i]; (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' {
			return false
		}
	}
	return true
}

// IsWorkload reports whether the key holds a workload specification: a workload prefix and a valid name.
func IsWorkload(name []byte) bool {
	for _, prefix := range [...]string{PrefixSpread, PrefixStateful, PrefixWasm} {
		if hasPrefix(name, prefix) {
			return validWorkloadName(name[len(prefix):])
		}
	}
	return false
}

// WorkloadName returns the part of a workload key behind its kind: "spread.web" gives "web".
func WorkloadName(key string) string {
	_, name, _ := strings.Cut(key, ".")
	return name
}

const (
	fieldStatus   = "status"
	fieldContact  = "contact"
	fieldCapacity = "capacity"
)

// StatusKey names the max-register of a cell's life (F47).
func StatusKey(cell wire.CellID) string { return PrefixHealth + cell.String() + "." + fieldStatus }

// ContactKey names a cell's contact.
func ContactKey(cell wire.CellID) string { return PrefixHealth + cell.String() + "." + fieldContact }

// CapacityKey names a cell's allocatable resources (F72).
func CapacityKey(cell wire.CellID) string { return PrefixHealth + cell.String() + "." + fieldCapacity }

// EndpointKey names where a cell's instances of a workload answer (F101). The workload name must be valid.
func EndpointKey(cell wire.CellID, workload string) string {
	return PrefixEndpoint + cell.String() + "." + workload
}

// DenyKey names a cell's refusal of a workload (decision D2). The workload name must be valid.
func DenyKey(cell wire.CellID, workload string) string {
	return PrefixDeny + cell.String() + "." + workload
}

// VIPKey names a service address. The address is written as RFC 5952 says, an IPv4 address that came
// mapped into IPv6 as IPv4, so that there is one key for one address (F61). It panics on an invalid one.
func VIPKey(vip netip.Addr) string { return PrefixVIP + canonicalAddress(vip) }

// GatewayKey names the claim of the cell that answers for a service address; same form as VIPKey.
func GatewayKey(vip netip.Addr) string { return PrefixGateway + canonicalAddress(vip) }

func canonicalAddress(a netip.Addr) string {
	if !a.IsValid() {
		panic("state: key of an invalid address")
	}
	return a.Unmap().WithZone("").String()
}

// SplitVIP splits "vip.<address>"; only the form that VIPKey gives is accepted.
func SplitVIP(name string) (vip netip.Addr, ok bool) { return splitAddress(name, PrefixVIP) }

// SplitGateway splits "gateway.<address>"; only the form that GatewayKey gives is accepted.
func SplitGateway(name string) (vip netip.Addr, ok bool) { return splitAddress(name, PrefixGateway) }

func splitAddress(name, prefix string) (netip.Addr, bool) {
	text, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(text)
	if err != nil || canonicalAddress(address) != text {
		return netip.Addr{}, false
	}
	return address, true
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

// splitCell splits "<prefix><cell>.<tail>", where tail has the form of a workload name. Like the
// builders it knows exactly one form (F61).
func splitCell[T text](name T, prefix string) (cell wire.CellID, tail T, ok bool) {
	const digits = 16
	var none T
	if !hasPrefix(name, prefix) || len(name) < len(prefix)+digits+1 || name[len(prefix)+digits] != '.' {
		return 0, none, false
	}
	cell, ok = wire.DecodeCellID(name[len(prefix) : len(prefix)+digits])
	tail = name[len(prefix)+digits+1:]
	if !ok || !validWorkloadName(tail) {
		return 0, none, false
	}
	return cell, tail, true
}
