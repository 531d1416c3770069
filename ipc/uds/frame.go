// Package uds is the protocol between the command line and meshd over the local socket
// (SPEC-REVIEW Part 1 section 5.2): one byte command or status, three bytes length, payload.
package uds

// Code is the first byte of a request.
type Code uint8

// Commands. The level says who may send them: any member of group colloid reads, uid 0, the
// daemon's own user and group colloid-admin write (F135).
const (
	CodeHello   Code = 0x01 // r  proto u16 -> HelloReply (JSON)
	CodeStatus  Code = 0x02 // r  flags u8 -> Status (JSON)
	CodeGet     Code = 0x03 // r  key -> Entries (JSON)
	CodeSet     Code = 0x04 // w  WriteRequest -> dot; CONFLICT with Entries if expect differs (F55)
	CodeDelete  Code = 0x05 // w  expect u64, key -> dot
	CodeResolve Code = 0x06 // w  as Set, expect required
	CodeList    Code = 0x07 // r  prefix -> KeyList (JSON)
	CodeConnect Code = 0x08 // w  flags u8 (1 = merge), address text -> ConnectReply (JSON)
	CodeLeave   Code = 0x09 // w  drain limit seconds u16, then, if any, flags u8 (1: force, 2: abandon volumes) -> empty or LeaveReply
	CodeForget  Code = 0x0A // w  cell id u64 -> empty
	CodePeers   Code = 0x0B // r  -> PeerList (JSON)
	CodeExplain Code = 0x0E // r  workload key -> Explanation (JSON)
	CodeDoor    Code = 0x0F // w  u8: 0 unlock, 1 lock -> DoorReply (JSON)

	// Streams have no replies; the daemon sends these codes itself, see streams.go.
	CodeStreamOpen  Code = 0x10 // r logs and metrics, w the rest: StreamOpen; from the daemon: handle u32
	CodeStreamData  Code = 0x11 // as opened: handle u32, data
	CodeStreamClose Code = 0x12 // as opened: StreamClose

	CodeWasmInvoke  Code = 0x20 // w  package invoke, AppendCall -> AppendOutcome
	CodeWasmChannel Code = 0x21 // w  name of the workload -> empty, with a descriptor: package invoke, Channel
	CodeDrain       Code = 0x28 // w  cell id u64, u8: 0 uncordon, 1 drain -> empty
	CodeEnvironment Code = 0x29 // w  EnvironmentRequest -> digest, 32 bytes (F83)
	CodeAcceptLoss  Code = 0x2a // w  empty -> empty
)

// ReplyStatus is the first byte of a reply frame.
type ReplyStatus uint8

// Reply statuses. A reply is any number of OK frames with a payload and one empty OK frame that ends
// it, or one frame of another status.
const (
	OK       ReplyStatus = 0x00
	Error    ReplyStatus = 0x01 // errno-like u16, then text
	NotFound ReplyStatus = 0x02
	Conflict ReplyStatus = 0x03 // Entries (JSON)
)

// Error numbers in ERROR replies. They follow errno where one fits.
const (
	ErrorPermission  uint16 = 1   // EPERM: the caller may not
	ErrorNotFound    uint16 = 2   // ENOENT: with a sentence that says where else
	ErrorIO          uint16 = 5   // EIO
	ErrorBusy        uint16 = 16  // EBUSY: syncing, try again (F56)
	ErrorExists      uint16 = 17  // EEXIST
	ErrorInvalid     uint16 = 22  // EINVAL: the request is malformed or not allowed as it is
	ErrorNoSpace     uint16 = 28  // ENOSPC
	ErrorDeadline    uint16 = 62  // ETIME: a function did not return before its deadline (F144)
	ErrorTimeout     uint16 = 110 // ETIMEDOUT
	ErrorUnreachable uint16 = 113 // EHOSTUNREACH
)

// Bounds of the protocol (F136).
const (
	ProtocolVersion   = 1
	FrameHeaderSize   = 4
	RequestMax        = 64 << 10
	ReplyChunkMax     = 64 << 10
	ClientsMax        = 160
	OutputQueueMax    = 1 << 20
	RequestTimeoutSec = 5
)

// How ClientsMax connections are shared, so that nobody who may only look locks others out. Root and the user
// of the daemon have all of them; who else may change has all but the last RootClients, and who may only read
// all but the last RootClients and OperatorClients.
const (
	RootClients     = 16
	OperatorClients = 16
	// UserClientsMax bounds the connections of one user who is neither root nor the daemon's.
	UserClientsMax = 64
)
