package cell

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// Network sends datagrams. The slice is only valid during the call.
type Network interface {
	Send(to netip.AddrPort, datagram []byte)
}

// Storage makes things durable. No call blocks; each ends in exactly one Cell.Stored with its ticket.
// Data is copied before return.
type Storage interface {
	// AppendWrite adds one own write to the log; Stored comes after it is on disk (F157).
	AppendWrite(ticket uint64, record []byte)
	// SaveSnapshot replaces the state snapshot and drops log entries appended before the call.
	SaveSnapshot(ticket uint64, data []byte)
	// SavePeers replaces the list of last known contacts (F4).
	SavePeers(ticket uint64, peers []wire.Contact)
	// SaveCluster remembers the cluster this cell belongs to and that it has joined it (F4).
	SaveCluster(ticket uint64, cluster Cluster)
	// SaveIncarnation raises the incarnation; no dot of it may be issued before Stored (F1).
	SaveIncarnation(ticket uint64, incarnation uint32)
	// SaveJoining keeps what a cell on its way into another cluster must not forget; empty data removes it.
	SaveJoining(ticket uint64, data []byte)
	// SaveRecovered ends what Config.Lost says.
	SaveRecovered(ticket uint64)
	// DiscardIdentity makes the next start draw a new cell id: another instance uses this one (F2).
	DiscardIdentity(ticket uint64)
}

// Helper carries actions to runnerd. It reports false when the ring is full or absent; the action is
// then asked for again later (F131).
type Helper interface {
	Do(action reconcile.Action) bool
}

// Logger takes one line for people. The wall clock is the logger's affair (F11).
type Logger interface {
	Log(level Level, text string)
}

// Level of a log line.
type Level uint8

// Levels.
const (
	LevelDebug Level = iota
	LevelInfo
	LevelWarning
	LevelError
)

// Cluster is the membership of a cell in a cluster.
type Cluster struct {
	Key    seal.Key
	Joined bool // it has completed a join, or did genesis and met another cell: never found another cluster
}

// Config is everything a cell is born with. Loaded parts come from Storage's directory.
type Config struct {
	Self        wire.CellID
	Incarnation uint32 // already durable
	SecretHash  uint64
	Cluster     Cluster // Key zero: do genesis
	Genesis     bool    // this run founded the cluster: authoritative at once (F5)
	Peers       []wire.Contact
	Seeds       []netip.AddrPort
	Snapshot    []byte
	Writes      [][]byte // own-write log after the snapshot, AE_STATE record form
	Joining     []byte   // what SaveJoining was given last
	// Lost names files that are damaged or missing, so that acknowledged configuration may be gone: this cell must
	// not take what is left for all there is. Empty: none.
	Lost string
	// Renewed: the id is a new one because files of the one before were damaged. Nobody uses that one any more.
	Renewed bool

	Addresses []state.Candidate // where others reach this cell, best first
	Hostname  string
	Arch      string
	Software  string
	Labels    [][2]string
	KeysMax   uint32 // 0 = 65536
	// Versions of the protocol that this cell speaks, zero = wire.Spoken; Features are those that its contact
	// lists. ContactExtension is appended to it: fields as a later version would write them. A simulation
	// makes cells of a later version with these three (F26, D12).
	Versions         wire.Versions
	Features         uint32
	ContactExtension []byte
	AES              bool   // the processor has instructions for AES-GCM: streams use it with cells that have them too
	RunnerExpected   bool   // the launcher starts a runnerd: until it speaks, what it offered last stays
	Loopback         bool   // accept loopback contacts (tests, demo)
	NoPortSearch     bool   // find no way through routers by many sockets, and help nobody to (F35)
	Directory        string // for status
	Driver           string // for status

	Random  *rand.Rand
	Entropy func([]byte) // cryptographic: nonces, handshakes
	Network Network
	Storage Storage
	Runner  Helper
	Logger  Logger
	Timing  Timing             // zero = Default
	Relays  stream.RelayLimits // of streams between other cells; zero = defaults
	// Observe, if set, hears the name of every key whose register changed, after the cell has taken notice
	// itself. It may look at the cell but not call its inputs. For tests and measurements.
	Observe func(c *Cell, name []byte)
	// Metrics, if set, adds to those of the cell in status.
	Metrics func() []uds.Metric
}

// Timing lets tests shorten what production never changes. Zero fields mean the constants of
// SPEC-REVIEW Part 1 section 5.4.
type Timing struct {
	AntiEntropyInterval time.Duration // 30 s, jitter 20 %
	SnapshotInterval    time.Duration // 10 s
	GarbageInterval     time.Duration // 60 s
	IsolationHold       time.Duration // 30 s
	ReadmissionHold     time.Duration // 10 s, doubling to 5 min
	BootSettle          time.Duration // 10 s
}

// Request is one command of the local socket, already framed, authorised and (for Connect) resolved.
type Request struct {
	Code    uds.Code
	Payload []byte
	// Connect only:
	Addresses []netip.AddrPort
	JoinKey   *seal.Key
	Merge     bool
}

// Response is the answer: a JSON document or raw bytes for OK, an error number and text for Error.
type Response struct {
	Status  uds.ReplyStatus
	Payload []byte
	Errno   uint16
	Text    string
}

// HelperAlarm is one sentence of runnerd for a person, and what can be done, "" if it does not say.
type HelperAlarm struct{ Text, Hint string }

// HelperHello is what runnerd says of itself and its host.
type HelperHello struct {
	Software       string
	Flags          uint32 // state.FlagProcess, FlagOCI, FlagWasm
	Capacity       state.CellCapacity
	Degradations   []string
	Alarms         []HelperAlarm // what a person has to know
	ConnectionTime clock.Instant
	TakesPrepare   bool // it fetches ahead of a start, and answers with HelperPrepared
}
