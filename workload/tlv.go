package workload

// Types of the records behind the fixed part of an encoded specification (type 1, length 1, value),
// in ascending order. A type with tlvCritical set must be understood; any other may be skipped by
// a version that does not know it (F82). Types 1 to 14 are those of SPEC-REVIEW Part 1. The known types
// of each half have no gaps, so that unknown ones stand behind them.
const (
	tlvReplicationFactor = 1  // u8
	tlvImageDigest       = 2  // SHA-256
	tlvVIPOptions        = 3  // per VIP: bits 0-1 mode, 2-3 path, 4 UDP
	tlvPortProtocols     = 4  // bitmap, lowest bit first, 1 = UDP
	tlvArgument          = 5  // repeated, one per argument
	tlvEnvironmentDigest = 6  // SHA-256 of the value of env.<workload>
	tlvHealth            = 7  // kind 1, port 2, interval 4, timeout 4, failures 1, then path or words
	tlvUpdate            = 8  // unavailable 1, ready seconds 2, flags 1 (bit 0 rollback), deadline seconds 2 unless 0
	tlvFailover          = 9  // u8
	tlvArchitecture      = 10 // text
	tlvSignature         = 11 // key id 4, Ed25519 signature 64
	tlvStopGrace         = 12 // seconds 2
	tlvUser              = 13 // text
	tlvLimits            = 14 // pids 4, disk MiB 4
	tlvPriority          = 15 // i8
	tlvCPU               = 16 // millicores 4, when the fixed field is too small and holds 65535

	tlvCritical = 0x80

	tlvCommand      = 0x81 // repeated, one per word
	tlvConstraint   = 0x82 // repeated: negate 1, label length 1, label, value
	tlvReadOnlyRoot = 0x83 // no value
	tlvEnvironment  = 0x84 // repeated, one NAME=value each
	tlvRestart      = 0x85 // u8
	tlvVIPTargets   = 0x86 // per VIP: port 2
)

// tlvSizeMax is the largest value of one record.
const tlvSizeMax = 255

// tlvKnown reports whether this version gives the type a meaning.
func tlvKnown(kind byte) bool {
	return kind >= tlvReplicationFactor && kind <= tlvCPU || kind >= tlvCommand && kind <= tlvVIPTargets
}

// tlvRepeats reports whether a known type may occur more than once.
func tlvRepeats(kind byte) bool {
	return kind == tlvArgument || kind == tlvCommand || kind == tlvConstraint || kind == tlvEnvironment
}

// Bits of the flags byte. Bit 1 repeats whether there are VIPs, for readers of the fixed part alone.
const (
	flagStateful      = 1 << 0
	flagRequiresVIP   = 1 << 1
	flagDeterministic = 1 << 2
	flagNoFailover    = 1 << 3
	flagOversubscribe = 1 << 4
	flagMemoryUnits   = 1 << 5 // the memory field counts units of 16 MiB
)

// memoryUnitMiB is the unit of the memory field when flagMemoryUnits is set.
const memoryUnitMiB = 16
