package uds

// The types below are the JSON documents of replies and, unchanged, the output of `-o json`: a field
// once published keeps its name and meaning. Cell ids are 16 hexadecimal digits, 64-bit hashes and
// digests too; times are RFC 3339, durations seconds.

// HelloReply answers CodeHello.
type HelloReply struct {
	Protocol int    `json:"protocol"`
	Cell     string `json:"cell"`
	Version  string `json:"version"`
	State    string `json:"state"` // booting, syncing, active, leaving, gone
	// Joining says why the cell is not in the cluster it was told to join at its start; empty: it is, or
	// was not told to.
	Joining string `json:"joining,omitempty"`
}

// Status answers CodeStatus. NeedsHuman decides exit code 3.
type Status struct {
	Cell       CellSelf         `json:"cell"`
	Cells      []CellInfo       `json:"cells"`
	Network    NetworkInfo      `json:"network"`
	Workloads  []WorkloadStatus `json:"workloads"`
	Conflicts  []ConflictInfo   `json:"conflicts"`
	Alarms     []Alarm          `json:"alarms"`
	NeedsHuman bool             `json:"needs_human"`
	Metrics    []Metric         `json:"metrics,omitempty"`
}

// CellSelf describes the answering cell.
type CellSelf struct {
	ID             string       `json:"id"`
	State          string       `json:"state"`
	Version        string       `json:"version"`
	Cluster        string       `json:"cluster"`
	Door           string       `json:"door"` // open, locked
	Address        string       `json:"address"`
	CutOff         string       `json:"cut_off,omitempty"` // what it reaches, while that is less than half of the cluster
	Driver         string       `json:"driver"`            // "io_uring (defer-taskrun)", "epoll (io_uring refused: ...)"
	Incarnation    uint32       `json:"incarnation"`
	UptimeSeconds  int64        `json:"uptime_seconds"`
	Authoritative  bool         `json:"authoritative"`
	Keys           int          `json:"keys"`
	StateDirectory string       `json:"state_directory"`
	Helpers        []HelperInfo `json:"helpers"`
}

// HelperInfo describes one helper of the answering cell.
type HelperInfo struct {
	Name      string `json:"name"`
	Connected bool   `json:"connected"`
	// SilentSeconds is for how long a connected helper has answered nothing, 0 = it answers.
	SilentSeconds int64    `json:"silent_seconds,omitempty"`
	Version       string   `json:"version,omitempty"`
	Degradations  []string `json:"degradations,omitempty"`
}

// LeaveReply answers CodeLeave, unless there is nothing to say: the cell has left, and these instances run
// on.
type LeaveReply struct {
	Left []LeftInstance `json:"left"`
}

// LeftInstance is one that nobody looks after any more.
type LeftInstance struct {
	Key  string `json:"key"`
	Slot int    `json:"slot"`
	PID  int    `json:"pid,omitempty"` // 0 = not known
}

// CellInfo is one member as this cell knows it.
type CellInfo struct {
	ID             string   `json:"id"`
	Hostname       string   `json:"hostname,omitempty"`
	Address        string   `json:"address"`
	State          string   `json:"state"`               // alive, suspect, dead, leaving, gone
	Unreached      bool     `json:"unreached,omitempty"` // the answering cell gets no answer from it, whatever its state says
	Self           bool     `json:"self,omitempty"`
	InPlacement    bool     `json:"in_placement"`
	HeldSeconds    int      `json:"held_seconds,omitempty"`  // back from the dead, counts fully after that
	Drained        bool     `json:"drained,omitempty"`       // an operator wants it empty
	Reach          string   `json:"reach"`                   // public, punched, relayed, unknown: what strangers can expect
	Path           string   `json:"path,omitempty"`          // direct, punched, relayed, unproven, none: from this cell to it
	Relay          string   `json:"relay,omitempty"`         // the cell a relayed path goes through
	PathSeconds    float64  `json:"path_seconds"`            // age of the path, 0 = not known
	PathAttempts   int      `json:"path_attempts"`           // to make it direct, whoever began
	PathSearched   bool     `json:"path_searched,omitempty"` // a punched path that was found by several sockets
	RTTMicrosecond int64    `json:"rtt_us"`
	HeardSeconds   float64  `json:"heard_seconds"` // since the last verified datagram, -1 = never
	Version        string   `json:"version,omitempty"`
	Arch           string   `json:"arch,omitempty"`
	Runtimes       []string `json:"runtimes"`
	CPUMillicores  uint32   `json:"cpu_millicores"`
	MemoryMiB      uint32   `json:"memory_mib"`
	LimitsEnforced bool     `json:"limits_enforced"`
	Instances      int      `json:"instances"`
	CPUPercent     *int     `json:"cpu_percent,omitempty"` // of the host, smoothed; absent = not known
	MemoryPercent  *int     `json:"memory_percent,omitempty"`
	DiskPercent    *int     `json:"disk_percent,omitempty"`
}

// NetworkInfo says how others reach the answering cell.
type NetworkInfo struct {
	Reach      string        `json:"reach"`      // public, punched, relayed, unknown
	Scope      string        `json:"scope"`      // the kind of network that was judged
	Translated bool          `json:"translated"` // others see another address than this cell has
	Observed   string        `json:"observed,omitempty"`
	Mapping    string        `json:"mapping"` // none, one-port, per-destination, unknown
	Filter     string        `json:"filter"`  // open, closed, unknown
	Mapped     []string      `json:"mapped"`  // addresses that a router opened on request
	Homes      []HomeInfo    `json:"homes"`
	Candidates []AddressInfo `json:"candidates"`
}

// HomeInfo is a cell through which others reach the answering one.
type HomeInfo struct {
	Cell         string  `json:"cell"`
	Hostname     string  `json:"hostname,omitempty"`
	HeardSeconds float64 `json:"heard_seconds"` // straight from it, -1 = never
}

// AddressInfo is one published address.
type AddressInfo struct {
	Address string `json:"address"`
	Reach   string `json:"reach"`
}

// WorkloadStatus is one workload. State: ok, starting, updating, unsatisfied, conflict, invalid, and where
// the restart policy leaves it at that, ended (all that has ended did so with exit code 0) and failed; held:
// its last good version runs instead of what was applied; stalled: its update has failed and was stopped;
// unsupervised: the cell of a copy has lost its runnerd, so nobody knows. Digest is of what shall run now.
type WorkloadStatus struct {
	Key       string         `json:"key"`
	Runtime   string         `json:"runtime"`
	Image     string         `json:"image"`
	Replicas  int            `json:"replicas"`
	Ready     int            `json:"ready"`   // copies that answer, in the version of Digest and where they belong
	Serving   int            `json:"serving"` // copies that answer, in whatever version and place
	State     string         `json:"state"`
	Reason    string         `json:"reason,omitempty"`
	Digest    string         `json:"digest"`
	Instances []InstanceInfo `json:"instances"`
	Notes     []string       `json:"notes,omitempty"`  // what of the specification is not enforced
	Wanted    string         `json:"wanted,omitempty"` // digest of what was applied, while it is held back
	Good      bool           `json:"good,omitempty"`   // this version was ready everywhere
}

// InstanceInfo is one instance anywhere in the cluster, from the ep.* keys.
type InstanceInfo struct {
	Cell     string   `json:"cell"`
	Slot     int      `json:"slot"`
	State    string   `json:"state"`
	Address  string   `json:"address,omitempty"`
	Ports    []uint16 `json:"ports,omitempty"`
	Restarts int      `json:"restarts"`
	Digest   string   `json:"digest"`
	ExitCode *int     `json:"exit_code,omitempty"` // of an instance in state ended or failed; -1 = unknown
	Placed   bool     `json:"placed"`              // false: surplus, kept until its successor answers
	PID      int      `json:"pid,omitempty"`       // of instances on the answering cell
	DataOn   string   `json:"data_on,omitempty"`   // the cell that has what its volumes held before it came here
	OOMKills int      `json:"oom_kills,omitempty"` // likewise: processes killed because of the memory limit
	Reason   string   `json:"reason,omitempty"`
}

// ConflictInfo is one key in CONFLICT (specification 15.3).
type ConflictInfo struct {
	Key    string       `json:"key"`
	Digest string       `json:"digest"` // of the dot set, for resolve
	Values []EntryValue `json:"values"`
}

// EntryValue is one concurrent value of a key.
type EntryValue struct {
	Actor    string `json:"actor"`
	Sequence uint64 `json:"sequence"`
	Value    []byte `json:"value"` // base64 in JSON
	Text     string `json:"text,omitempty"`
	Deleted  bool   `json:"deleted,omitempty"`
	// Sealed names the secrets and files of a specification, never their values (F83).
	Sealed []string `json:"sealed,omitempty"`
}

// ContextEntry is one pair of a key's causal context.
type ContextEntry struct {
	Actor    string `json:"actor"`
	Sequence uint64 `json:"sequence"`
}

// Entries answers CodeGet and comes with CONFLICT replies.
type Entries struct {
	Key     string         `json:"key"`
	Digest  string         `json:"digest"`
	Entries []EntryValue   `json:"entries"`
	Context []ContextEntry `json:"context"`
}

// KeyList answers CodeList.
type KeyList struct {
	Keys []string `json:"keys"`
}

// Alarm is something an operator should know. Severity: info, warning, critical; critical needs a human.
type Alarm struct {
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Hint     string `json:"hint,omitempty"`
}

// Metric is one counter or gauge.
type Metric struct {
	Name  string  `json:"name"`
	Help  string  `json:"help"`
	Kind  string  `json:"kind"` // counter, gauge
	Value float64 `json:"value"`
}

// PeerList answers CodePeers: the routing table, for debugging.
type PeerList struct {
	Peers []CellInfo `json:"peers"`
}

// ConnectReply answers CodeConnect.
type ConnectReply struct {
	Cluster string `json:"cluster"`
	Members int    `json:"members"`
}

// DoorReply answers CodeDoor. Key is set when the door was locked: joiners need HOST#KEY.
type DoorReply struct {
	Locked bool   `json:"locked"`
	Key    string `json:"key,omitempty"`
}

// Explanation answers CodeExplain: the ranking and the reason for each cell passed over.
type Explanation struct {
	Key     string       `json:"key"`
	State   string       `json:"state"`
	Reason  string       `json:"reason,omitempty"`
	Notes   []string     `json:"notes,omitempty"` // what of the specification is not enforced
	Ranking []RankedCell `json:"ranking"`
}

// RankedCell is one cell of a workload's ranking, best first.
type RankedCell struct {
	Cell     string `json:"cell"`
	Score    string `json:"score"`
	Placed   bool   `json:"placed"`
	Verdict  string `json:"verdict"` // "placed", "not needed", or why it was passed over
	Instance string `json:"instance,omitempty"`
}
