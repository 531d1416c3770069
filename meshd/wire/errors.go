package wire

import "errors"

// Reasons to drop a datagram. They are variables so that a flood of bad datagrams costs no
// allocation, and so that drops can be counted by kind (F26).
var (
	// ErrShort: fewer bytes than a header.
	ErrShort = errors.New("wire: datagram shorter than its header")
	// ErrLong: more than DatagramMax bytes; no cell sends such a datagram.
	ErrLong = errors.New("wire: datagram longer than 1200 bytes")
	// ErrVersion: another version of the protocol; the peer is newer, or it is not a cell (F26).
	// ParseHeader returns the header filled.
	ErrVersion = errors.New("wire: unknown protocol version")
	// ErrType: the type is not in this version's table (F26). ParseHeader returns the header filled.
	ErrType = errors.New("wire: unknown message type")
	// ErrLength: lengths inside the message do not sum to its payload_len, or a count is out of bounds.
	ErrLength = errors.New("wire: lengths do not sum up")
	// ErrTrailer: what follows the payload is neither nothing nor an authentication trailer.
	ErrTrailer = errors.New("wire: malformed trailer")
	// ErrCell: a cell id that cannot name a cell.
	ErrCell = errors.New("wire: reserved cell id")
	// ErrName: a key name that is empty, too long or not printable ASCII.
	ErrName = errors.New("wire: malformed key name")
	// ErrValue: a value longer than ValueMax.
	ErrValue = errors.New("wire: value longer than 512 bytes")
	// ErrEntry: entries unsorted, doubled, with a reserved actor, sequence zero, or not in the context.
	ErrEntry = errors.New("wire: malformed entries")
	// ErrContext: a context or vector that is unsorted, doubled, empty where it may not be, too long,
	// or that holds a reserved actor or sequence zero.
	ErrContext = errors.New("wire: malformed context")
	// ErrAddress: an address nobody can be reached at.
	ErrAddress = errors.New("wire: unusable address")
	// ErrReach: a reachability class outside the table.
	ErrReach = errors.New("wire: unknown reachability class")
	// ErrRange: a Merkle range outside the tree, or a response that does not fit its range.
	ErrRange = errors.New("wire: malformed merkle range")
	// ErrStream: a stream message with sequence 0, type 0, or not exactly one of FIN and RST.
	ErrStream = errors.New("wire: malformed stream message")
	// ErrExtension: extensions cut off or not in ascending order.
	ErrExtension = errors.New("wire: malformed extension")
	// ErrFlag: a boolean that is neither 0 nor 1.
	ErrFlag = errors.New("wire: malformed flag")
)
