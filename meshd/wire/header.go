package wire

import "encoding/binary"

// typeNames lists the message types of this version; a type without a name is unknown.
var typeNames = [256]string{
	TypePing: "PING", TypePong: "PONG", TypeFindNode: "FIND_NODE", TypeNodes: "NODES",
	TypeDelta: "CRDT_DELTA", TypeDeltaAck: "CRDT_DELTA_ACK",
	TypeAEBegin: "AE_BEGIN", TypeAEState: "AE_STATE", TypeAEEnd: "AE_END",
	TypePingReq: "PING_REQ", TypePingReqAck: "PING_REQ_ACK", TypeLeave: "LEAVE",
	TypePunchReq: "PUNCH_REQ", TypePunchSyn: "PUNCH_SYN", TypePunchKeep: "PUNCH_KEEPALIVE",
	TypeStreamOpen: "STREAM_OPEN", TypeStreamData: "STREAM_DATA", TypeStreamClose: "STREAM_CLOSE",
	TypeStreamAck: "STREAM_ACK", TypeRelayOffer: "RELAY_OFFER",
	TypeAEMerkleReq: "AE_MERKLE_REQ", TypeAEMerkleResp: "AE_MERKLE_RESP", TypeAEVector: "AE_VV",
	TypeVolumeRequest: "VOL_REPL_REQ", TypeVolumeChunk: "VOL_REPL_CHUNK", TypeVolumeDone: "VOL_REPL_DONE",
	TypeGatewayClaim: "GW_CLAIM", TypeJoin: "JOIN", TypeJoinReply: "JOIN_REPLY",
}

// Known reports whether t is in this version's table.
func (t Type) Known() bool { return typeNames[t] != "" }

// String returns the name of the specification, or "UNKNOWN".
func (t Type) String() string {
	if t.Known() {
		return typeNames[t]
	}
	return "UNKNOWN"
}

// Joining reports whether t belongs to the join handshake, which has its own encryption and hence no
// trailer (decision D1).
func (t Type) Joining() bool { return t == TypeJoin || t == TypeJoinReply }

// Relayable reports whether datagrams of type t may come through a relay, so that their source
// address says nothing about the sender named in the header (F149, F155).
func (t Type) Relayable() bool {
	switch t {
	case TypeStreamOpen, TypeStreamData, TypeStreamClose, TypeStreamAck,
		TypeVolumeRequest, TypeVolumeChunk, TypeVolumeDone:
		return true
	}
	return false
}

// LooksLike is the cheap first test of a datagram: it rejects what ParseHeader would certainly
// reject for its size, version or type.
func LooksLike(datagram []byte) bool {
	return len(datagram) >= HeaderSize && len(datagram) <= DatagramMax &&
		(datagram[0] == Version || datagram[0] != 0 && Type(datagram[1]).Joining()) && Type(datagram[1]).Known()
}

// ParseHeader is Spoken.ParseHeader.
func ParseHeader(datagram []byte) (header Header, payload, trailer []byte, err error) {
	return Spoken.ParseHeader(datagram)
}

// ParseHeader splits a datagram into header, payload and trailer (specification 3.3). The trailer is
// empty on an open wire and in the join handshake, else TrailerSize bytes, of a STREAM_OPEN also
// HopTrailerSize; anything else is an error. With ErrVersion and ErrType the header is filled, so that the
// caller can count by version and by type (F26). The join handshake is the same in all versions; there the
// version is the greatest that the sender speaks.
func (v Versions) ParseHeader(datagram []byte) (header Header, payload, trailer []byte, err error) {
	if len(datagram) < HeaderSize {
		return Header{}, nil, nil, ErrShort
	}
	if len(datagram) > DatagramMax {
		return Header{}, nil, nil, ErrLong
	}
	header = Header{
		Version:       datagram[0],
		Type:          Type(datagram[1]),
		PayloadLength: binary.BigEndian.Uint16(datagram[2:]),
		Sender:        CellID(binary.BigEndian.Uint64(datagram[4:])),
		Nonce:         binary.BigEndian.Uint32(datagram[12:]),
	}
	if !v.Includes(header.Version) && (header.Version == 0 || !header.Type.Joining()) {
		return header, nil, nil, ErrVersion
	}
	if !header.Type.Known() {
		return header, nil, nil, ErrType
	}
	end := HeaderSize + int(header.PayloadLength)
	if end > len(datagram) {
		return header, nil, nil, ErrLength
	}
	trailer = datagram[end:]
	hop := len(trailer) == HopTrailerSize && header.Type == TypeStreamOpen
	if len(trailer) != 0 && !hop && (len(trailer) != TrailerSize || header.Type.Joining()) {
		return header, nil, nil, ErrTrailer
	}
	if !header.Sender.Valid() {
		return header, nil, nil, ErrCell
	}
	return header, datagram[HeaderSize:end:end], trailer, nil
}

// AppendHeader appends the 16 bytes of h; its version 0 means Version. It panics when the sender is no cell
// or the payload would not fit a datagram.
func AppendHeader(dst []byte, h Header) []byte {
	if h.PayloadLength > PayloadMax || !h.Type.Known() || !h.Sender.Valid() {
		panic("wire: header that no cell accepts: type " + h.Type.String() + " sender " + h.Sender.String())
	}
	if h.Version == 0 {
		h.Version = Version
	}
	dst = append(dst, h.Version, byte(h.Type))
	dst = binary.BigEndian.AppendUint16(dst, h.PayloadLength)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Sender))
	return binary.BigEndian.AppendUint32(dst, h.Nonce)
}

// ParseEmpty checks the payload of the messages that have none: AE_END, LEAVE, PUNCH_KEEPALIVE.
func ParseEmpty(payload []byte) error {
	if len(payload) != 0 {
		return ErrLength
	}
	return nil
}
