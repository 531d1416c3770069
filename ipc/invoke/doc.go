// Package invoke is the protocol between meshd and the worker process of a Wasm instance.
//
// The two are connected by a SOCK_SEQPACKET pair of their own that runnerd makes and hands to both
// (docs/ARCHITECTURE.md): one frame is one message of the socket, so a frame is either there as a whole
// or not at all. A frame is
//
//	u8 kind, u64 id, then what the kind says; integers are big-endian
//
// Both sides are hostile to each other: the worker runs what strangers compiled, meshd reads what
// strangers send. Each frame is parsed completely or the connection ends. Nothing is ever allocated by a
// length that was sent: all lengths lie within one frame, which FrameMax bounds.
//
// The nouns: an Invocation asks for one call of a function, its Result answers with the same id. A
// Request asks meshd for the workload's own key-value space or about a stream to another module, Answers
// carry the same id; a snapshot has several. A Metric needs no answer. Hello is the first frame of the
// worker.
//
// A Channel is a way for invocations of one client straight to a worker, without meshd in between:
// ChannelOpen brings the worker its end, a descriptor, and ChannelEnd says that it is over. On it only
// Invocations and Results travel. meshd makes it for a client that may invoke anything, and ends it
// (EndChannel) with that client's connection, with the instance, and with its own connection to the worker.
// For clients that invoke again and again through it, meshd has one of its own.
//
// A stream belongs to the connection over which it was opened: meshd ends it when that ends, and a worker
// with a new connection forgets it. Data is asked for, never pushed, so who does not read holds the other end
// back.
package invoke

// Version of the protocol; Hello carries it. Workers outlive meshd, so meshd takes those of every version.
const (
	Version         = 2
	versionFirst    = 1
	versionChannels = 2 // from it on a worker takes channels
)

// Bounds of the protocol.
const (
	FrameMax     = 64 << 10 // of one frame, and so of arguments and of output with what describes them
	FunctionMax  = 128      // bytes of the name of a function
	ArgumentsMax = 64
	ArgumentSum  = 48 << 10 // bytes of all arguments
	OutputMax    = 60 << 10
	TextMax      = 512 // bytes of an error sentence
	KeyMax       = 92  // bytes of a key behind "kv.<workload>."; what fits depends on the workload's name
	ValueMax     = 512
	MetricMax    = 64 // bytes of the name of a metric

	// DeadlineDefaultMilliseconds bounds an invocation that names no deadline (F144), DeadlineMaxMilliseconds
	// any other.
	DeadlineDefaultMilliseconds = 1000
	DeadlineMaxMilliseconds     = 60_000

	// InvocationsMax is how many invocations may wait at one worker, RequestsMax how many requests.
	InvocationsMax = 64
	RequestsMax    = 16

	// ChannelsMax is how many channels of clients one worker has at most. Each has one invocation under way,
	// and what its socket holds waiting. WorkerChannelsMax is what it takes in all: meshd may have one of its
	// own.
	ChannelsMax       = 16
	WorkerChannelsMax = ChannelsMax + 1

	// WritesPerSecond and KeysMax bound what one workload writes on one cell, and owns (F19).
	WritesPerSecond = 10
	KeysMax         = 1000
	// StreamsMax is how many streams one worker may have, StreamChunkMax how many bytes one request reads or
	// writes, StreamsPerSecond how many a workload opens on one cell.
	StreamsMax       = 16
	StreamChunkMax   = 32 << 10
	StreamsPerSecond = 20
	// ReadsPerSecond and MetricsPerSecond keep a module from occupying meshd.
	ReadsPerSecond   = 1000
	MetricsPerSecond = 100
	MetricNamesMax   = 32
)

// Kind is the first byte of a frame.
type Kind uint8

// Kinds of frames.
const (
	KindInvocation  Kind = 1 // to the worker
	KindAnswer      Kind = 2 // to the worker
	KindChannelOpen Kind = 3 // to the worker, with a descriptor
	KindHello       Kind = 16
	KindResult      Kind = 17
	KindRequest     Kind = 18
	KindMetric      Kind = 19
	KindChannelEnd  Kind = 20
)

// Error numbers in results and answers. They follow errno.
const (
	ErrorPermission  uint16 = 1   // EPERM: the capability is not granted
	ErrorNotFound    uint16 = 2   // ENOENT: no such function or key
	ErrorIO          uint16 = 5   // EIO: the module trapped, or the disk failed
	ErrorTryAgain    uint16 = 11  // EAGAIN: over a rate, or the cell is not ready
	ErrorBusy        uint16 = 16  // EBUSY: too many wait already
	ErrorInvalid     uint16 = 22  // EINVAL
	ErrorNoSpace     uint16 = 28  // ENOSPC: KeysMax, or the store is full
	ErrorTimeout     uint16 = 62  // ETIME: the deadline passed (F144)
	ErrorUnsupported uint16 = 95  // EOPNOTSUPP
	ErrorGone        uint16 = 104 // ECONNRESET: the connection between worker and meshd ended
)

// Style says how a module is used.
type Style uint8

// Styles of modules.
const (
	StyleFunctions Style = 1 // waits for invocations
	StyleService   Style = 2 // its _start runs as the workload and takes no invocations
)

// Operation of a Request.
type Operation uint8

// StreamInvoke is the kind of the streams that modules open, as meshd's wire format numbers it: to a function
// of another module. What travels in it is described in docs/wasm.md.
const StreamInvoke = 5

// Operations on the workload's own key-value space (F148).
const (
	OperationGet      Operation = 1
	OperationSet      Operation = 2
	OperationDelete   Operation = 3
	OperationSnapshot Operation = 4 // all keys as of one moment, for deterministic modules (F143)
)

// Operations on streams (section 13.5). They name a stream by the number that StreamOpen gave.
const (
	OperationStreamOpen   Operation = 5 // answered when the other end has accepted
	OperationStreamRead   Operation = 6 // answered when there is something, or the end: no bytes
	OperationStreamWrite  Operation = 7 // answered when all was taken
	OperationStreamFinish Operation = 8 // nothing more will be written
	OperationStreamClose  Operation = 9 // in both directions; its number is free then
)

// IsStream reports whether an operation is about a stream.
func (o Operation) IsStream() bool { return o >= OperationStreamOpen && o <= OperationStreamClose }
