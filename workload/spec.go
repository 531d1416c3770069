package workload

// Runtime is the runtime class that executes a workload (EXEC-4).
type Runtime uint8

// Runtime classes.
const (
	RuntimeOCI     Runtime = 1
	RuntimeWasm    Runtime = 2
	RuntimeProcess Runtime = 3
)

// SpecSizeMax bounds the encoded form; it equals the largest value of a register (F82).
const SpecSizeMax = 512

// Kind is the key prefix under which a workload is stored.
type Kind string

// Kinds of workload (F81).
const (
	KindSpread   Kind = "spread"
	KindStateful Kind = "stateful"
	KindWasm     Kind = "wasm"
)

// Protocol of a port.
type Protocol uint8

// Protocols of a port.
const (
	TCP Protocol = 0
	UDP Protocol = 1
)

// Port is a port on which the workload listens. Host publishes it on the cell and is one of the
// things placement counts (F77); Host 0 leaves it to VIPs and the pod network. A process has no
// network of its own, so for RuntimeProcess Host and Container are equal.
type Port struct {
	Host, Container uint16
	Protocol        Protocol
}

// Ways in which a VIP is announced to the network outside (section 14).
const (
	VIPModeDefault uint8 = 0 // L2
	VIPModeL2      uint8 = 1 // ARP and neighbour discovery
	VIPModeL3      uint8 = 2 // BGP
	VIPModeBoth    uint8 = 3
)

// Ways of a packet from the gateway to a backend on another cell (F100).
const (
	VIPPathTunnel uint8 = 0
	VIPPathDSR    uint8 = 1
	VIPPathNAT    uint8 = 2
)

// VIP is one service address of the workload.
type VIP struct {
	Address  [16]byte // IPv6 or IPv4-mapped
	Port     uint16
	Target   uint16 // container port, 0 = see Spec.TargetOf
	Mode     uint8  // VIPModeDefault ... VIPModeBoth
	Path     uint8  // VIPPathTunnel ... VIPPathNAT
	Protocol Protocol
}

// Volume is a named directory tree of the workload.
type Volume struct{ Name, MountPath string }

// HealthKind says how readiness is probed (F158).
type HealthKind uint8

// Kinds of health check.
const (
	HealthDefault HealthKind = 0 // TCP connect to the first TCP port; without ports, running is ready
	HealthTCP     HealthKind = 1
	HealthHTTP    HealthKind = 2
	HealthExec    HealthKind = 3
	HealthNone    HealthKind = 4
)

// Health is the readiness check.
type Health struct {
	Kind                HealthKind
	Port                uint16
	Path                string   // HTTP
	Command             []string // exec
	IntervalMillisecond uint32   // 0 = default 2000
	TimeoutMillisecond  uint32   // 0 = default 1000
	FailuresMax         uint8    // 0 = default 3
}

// RestartPolicy says what happens when an instance exits.
type RestartPolicy uint8

// Restart policies.
const (
	RestartAlways    RestartPolicy = 0
	RestartOnFailure RestartPolicy = 1
	RestartNever     RestartPolicy = 2
)

// Failover is the policy of a stateful workload when its owner is unreachable (F91).
type Failover uint8

// Failover policies.
const (
	FailoverAP     Failover = 0
	FailoverQuorum Failover = 1
	FailoverNone   Failover = 2
)

// Update is the rolling-update policy (F75, D7).
type Update struct {
	UnavailableMax  uint8  // 0 = default 1
	MinReadySeconds uint16 // 0 = none
	AutoRollback    bool
	// DeadlineSeconds is how long a replica of a new specification may take to become ready; 0 = default 120.
	DeadlineSeconds uint16
}

// Constraint restricts the cells that may run the workload, for instance label "zone" = "a".
type Constraint struct {
	Label, Value string
	Negate       bool
}

// Spec is one workload. The zero value of every field means "default". Limits are checked by
// Validate; Encode refuses what Validate refuses.
type Spec struct {
	Runtime       Runtime
	Stateful      bool
	Deterministic bool
	NoFailover    bool
	Oversubscribe bool
	Replicas      uint16 // 0 is scale-to-zero, not deletion (F78)
	CPUMillicores uint32 // request and limit; 0 = none asked
	MemoryMiB     uint32
	Image         string // OCI reference, module URL, or absolute path of the binary
	ImageDigest   [32]byte
	Ports         []Port
	VIPs          []VIP
	Capabilities  uint32
	Volumes       []Volume

	ReplicationFactor  uint8
	Command            []string // replaces the image's entrypoint (OCI); for a process: not used
	Arguments          []string
	Environment        []string // NAME=value, sorted by name
	EnvironmentDigest  [32]byte // of the sealed environment, zero = none (F83)
	Health             Health
	Restart            RestartPolicy
	Update             Update
	Failover           Failover
	Architecture       string // "amd64", "arm64", "" = any
	StopGraceSeconds   uint16 // 0 = default 10
	User               string
	Priority           int8
	Constraints        []Constraint
	PidsMax            uint32
	DiskMiB            uint32
	ReadOnlyRoot       bool
	SignatureKeyID     [4]byte
	Signature          [64]byte
	UnknownInformative [][]byte // TLVs of a newer version without the critical bit: type, length, value (F82)
}
