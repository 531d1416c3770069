// Package wire holds the byte formats that cells exchange (specification section 3, rebuilt in
// SPEC-REVIEW Part 1 section 3.2): one header, one payload per message type, nothing else.
//
// All integers are big-endian and packed. Parsers never allocate, never trust a length, and
// reject what they do not fully understand (F22); what they return points into the datagram and is
// valid only until the datagram's buffer is reused. For every message, Parse(Append(x)) = x and
// Append(Parse(b)) = b.
//
//	offset  0        1        2             4            12          16
//	        version  type     payload_len   sender_id    msg_nonce   payload ... [trailer 24]
package wire

import (
	"fmt"
	"net/netip"
)

// Limits of the protocol (specification Appendix A).
const (
	Version        = 0x01
	Port           = 12421
	HeaderSize     = 16
	TrailerSize    = 24   // counter 8, AEAD tag 16 (F12)
	HopTrailerSize = 32   // of a STREAM_OPEN that a relay passes on: the relay's id behind (F149, F150)
	DatagramMax    = 1200 // RES-2
	PayloadMax     = DatagramMax - HeaderSize
	// SealedPayloadMax leaves room for the head that a relay needs in front (F36).
	SealedPayloadMax = PayloadMax - TrailerSize - RelayHeadSize
	ValueMax         = 512
	NameMax          = 96
	FrameContextMax  = 32 // context entries in one frame; registers have no limit (F49)
	ContactSize      = 28
	DotSize          = 16
)

// Type is the message type in the header.
type Type uint8

// Message types.
const (
	TypePing          Type = 0x01
	TypePong          Type = 0x02
	TypeFindNode      Type = 0x03
	TypeNodes         Type = 0x04
	TypeDelta         Type = 0x05
	TypeDeltaAck      Type = 0x06
	TypeAEBegin       Type = 0x07
	TypeAEState       Type = 0x08
	TypeAEEnd         Type = 0x09
	TypePingReq       Type = 0x0A
	TypePingReqAck    Type = 0x0B
	TypeLeave         Type = 0x0C
	TypePunchReq      Type = 0x0D
	TypePunchSyn      Type = 0x0E
	TypePunchKeep     Type = 0x0F
	TypeStreamOpen    Type = 0x10
	TypeStreamData    Type = 0x11
	TypeStreamClose   Type = 0x12
	TypeStreamAck     Type = 0x13
	TypeRelayOffer    Type = 0x14
	TypeAEMerkleReq   Type = 0x15
	TypeAEMerkleResp  Type = 0x16
	TypeAEVector      Type = 0x17
	TypeVolumeRequest Type = 0x20
	TypeVolumeChunk   Type = 0x21
	TypeVolumeDone    Type = 0x22
	TypeGatewayClaim  Type = 0x30
	TypeJoin          Type = 0x40 // Noise handshake, joiner to seed (decision D1)
	TypeJoinReply     Type = 0x41
)

// CellID names one cell (specification 2.1). Zero and all ones are never valid.
type CellID uint64

// String returns the canonical form: 16 lower-case hexadecimal digits (F61).
func (c CellID) String() string {
	const digits = "0123456789abcdef"
	var text [16]byte
	for i := range text {
		text[i] = digits[c>>(60-4*i)&0xf]
	}
	return string(text[:])
}

// ParseCellID accepts exactly what String prints of a valid id.
func ParseCellID(s string) (CellID, error) {
	c, ok := DecodeCellID(s)
	if !ok {
		return 0, fmt.Errorf("cell id %q: want 16 lower-case hexadecimal digits, neither all 0 nor all f", s)
	}
	return c, nil
}

// DecodeCellID is ParseCellID for the hot path: it does not allocate and says only whether text is
// the canonical form of a valid id.
func DecodeCellID[T ~string | ~[]byte](text T) (CellID, bool) {
	if len(text) != 16 {
		return 0, false
	}
	var c CellID
	for i := range 16 {
		digit := text[i]
		switch {
		case digit >= '0' && digit <= '9':
			c = c<<4 | CellID(digit-'0')
		case digit >= 'a' && digit <= 'f':
			c = c<<4 | CellID(digit-'a'+10)
		default:
			return 0, false
		}
	}
	return c, c.Valid()
}

// Valid reports whether c may name a cell.
func (c CellID) Valid() bool { return c != 0 && c != ^CellID(0) }

// Reach is a reachability class (specification 6.1).
type Reach uint8

// Reachability classes, best first after ReachUnknown.
const (
	ReachUnknown Reach = 0
	ReachPublic  Reach = 1
	ReachPunched Reach = 2
	ReachRelayed Reach = 3
)

var reachNames = [...]string{"unknown", "public", "punched", "relayed"}

// String returns the name of the class, "unknown" for numbers that are none.
func (r Reach) String() string {
	if int(r) >= len(reachNames) {
		return reachNames[0]
	}
	return reachNames[r]
}

// Header is the 16-byte common header.
type Header struct {
	Version       uint8
	Type          Type
	PayloadLength uint16
	Sender        CellID
	Nonce         uint32
}

// Dot names one write: the Sequence-th of Actor. Sequence = incarnation (24 bits) << 40 | counter (F1).
type Dot struct {
	Actor    CellID
	Sequence uint64
}

// CounterBits is the width of the counter part of a sequence.
const CounterBits = 40

// Incarnation returns the run of the actor that issued the dot.
func (d Dot) Incarnation() uint32 { return uint32(d.Sequence >> CounterBits) }

// Contact is the 28-byte NodeContact of the wire.
type Contact struct {
	ID      CellID
	Address netip.AddrPort // IPv4 is kept unmapped
	Reach   Reach
	Flags   uint8 // see package state for the bits
}

// Record carries one register, or a part of one that is itself a valid older register (F43).
// It is the common form of a CRDT_DELTA, of one AE_STATE record and of a snapshot line.
//
// Entries holds EntryCount times (actor 8, sequence 8, value length 2, value), sorted by actor, at
// most one per actor. Context holds (actor 8, sequence 8) pairs sorted by actor and unique; it
// contains every entry's dot exactly. The slices belong to somebody else.
//
// A CRDT_DELTA keeps its value behind the context, so ParseDelta has to copy the entry together; it
// does so into a buffer that the record keeps. Reuse one Record for a stream of datagrams and
// nothing is allocated. A copy of a Record shares that buffer: do not parse into both.
type Record struct {
	KeyHash    uint64
	Name       []byte
	EntryCount int
	Entries    []byte
	Context    []byte

	entry []byte // ParseDelta's, EntryHeaderSize+ValueMax once used
}
