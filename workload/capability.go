package workload

import (
	"fmt"
	"strings"
)

// Capabilities of a Wasm workload (section 13.5). Bits above are reserved and refused.
const (
	CapabilityKVRead  uint32 = 1 << 0 // read keys of the workload's own kv space
	CapabilityKVWrite uint32 = 1 << 1 // write them
	CapabilityMetrics uint32 = 1 << 2 // emit metrics
	CapabilityStreams uint32 = 1 << 3 // open streams to other workloads
	CapabilityFSRead  uint32 = 1 << 4 // read preopened volumes
	CapabilityFSWrite uint32 = 1 << 5 // write preopened volumes
	CapabilityClock   uint32 = 1 << 6 // the WASI clock; a logical one when deterministic
	CapabilityRandom  uint32 = 1 << 7 // random_get
	CapabilityEnv     uint32 = 1 << 8 // environment and arguments
	CapabilityStdio   uint32 = 1 << 9 // standard output and error, to the log

	// CapabilitiesKnown are all bits that this version gives a meaning.
	CapabilitiesKnown uint32 = 1<<10 - 1
	// CapabilitiesNondeterministic cannot be had together with Deterministic: what they return
	// depends on more than the inputs of an invocation (F143).
	CapabilitiesNondeterministic = CapabilityStreams | CapabilityFSWrite | CapabilityRandom
)

// capabilityNames are in bit order.
var capabilityNames = [...]string{
	"kv_read", "kv_write", "metrics", "streams", "fs_read", "fs_write", "clock", "random", "env", "stdio",
}

// CapabilityNames gives the names of the set bits in bit order, joined by commas; a reserved bit is
// shown as its number.
func CapabilityNames(mask uint32) string {
	var names []string
	for bit := range 32 {
		switch {
		case mask>>bit&1 == 0:
		case bit < len(capabilityNames):
			names = append(names, capabilityNames[bit])
		default:
			names = append(names, fmt.Sprintf("bit%d", bit))
		}
	}
	return strings.Join(names, ",")
}

// CapabilityOf gives the bit of a name, 0 for an unknown one.
func CapabilityOf(name string) uint32 {
	for bit, known := range capabilityNames {
		if known == name {
			return 1 << bit
		}
	}
	return 0
}
