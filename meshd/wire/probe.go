package wire

import (
	"encoding/binary"
	"net/netip"
)

// Payload sizes of the probe messages.
const (
	PingSize       = AddressSize
	FindNodeSize   = 8
	PingReqSize    = ContactSize
	PingReqAckSize = 8 + 1 + AddressSize
)

// NodesMax is how many contacts a NODES message holds beside an authentication trailer. The open
// wire has room for one more.
const (
	NodesMax     = (SealedPayloadMax - 2) / ContactSize // 41
	nodesOpenMax = (PayloadMax - 2) / ContactSize       // 42
)

// AppendPing appends the payload of a PING or PONG: the receiver's address as the sender observed it.
// The zero AddrPort says "unknown"; in a PING it must be that unless the peer was heard within 60 s (F23).
func AppendPing(dst []byte, observed netip.AddrPort) []byte { return appendObserved(dst, observed) }

// ParsePing decodes the payload of a PING or PONG; the zero AddrPort means "unknown".
func ParsePing(payload []byte) (observed netip.AddrPort, err error) {
	if len(payload) != PingSize {
		return netip.AddrPort{}, ErrLength
	}
	return parseObserved(payload)
}

// AppendFindNode appends the payload of FIND_NODE.
func AppendFindNode(dst []byte, target CellID) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(target))
}

// ParseFindNode decodes the payload of FIND_NODE. The target is a point of the id space, so reserved
// ids are accepted.
func ParseFindNode(payload []byte) (target CellID, err error) {
	if len(payload) != FindNodeSize {
		return 0, ErrLength
	}
	return CellID(binary.BigEndian.Uint64(payload)), nil
}

// Nodes is the payload of NODES, checked by ParseNodes.
type Nodes struct{ raw []byte }

// Len returns the number of contacts.
func (n Nodes) Len() int { return len(n.raw) / ContactSize }

// At returns contact i, 0 <= i < Len.
func (n Nodes) At(i int) Contact { return contactAt(n.raw[i*ContactSize : (i+1)*ContactSize]) }

// AppendNodes appends the payload of NODES. It panics on more than 42 contacts; beside an
// authentication trailer only NodesMax fit. A contact that no cell would accept (Contact.Check, with
// loopback allowed) is left out: one peer without a usable address must not spoil the answer.
func AppendNodes(dst []byte, contacts []Contact) []byte {
	if len(contacts) > nodesOpenMax {
		panic("wire: more contacts than a NODES message holds")
	}
	at, count := len(dst), uint16(0)
	dst = append(dst, 0, 0)
	for i := range contacts {
		if contacts[i].Check(Options{Loopback: true}) == nil {
			dst = AppendContact(dst, contacts[i])
			count++
		}
	}
	binary.BigEndian.PutUint16(dst[at:], count)
	return dst
}

// ParseNodes checks the payload of NODES. One bad contact condemns the message: its sender is broken.
func ParseNodes(payload []byte, o Options) (Nodes, error) {
	if len(payload) < 2 {
		return Nodes{}, ErrLength
	}
	raw := payload[2:]
	count := int(binary.BigEndian.Uint16(payload))
	if count > nodesOpenMax || len(raw) != count*ContactSize {
		return Nodes{}, ErrLength
	}
	for i := range count {
		if err := contactAt(raw[i*ContactSize:]).Check(o); err != nil {
			return Nodes{}, err
		}
	}
	return Nodes{raw}, nil
}

// AppendPingReq appends the payload of PING_REQ: please probe the target for me. Only the id counts,
// the receiver uses the address it knows itself (F37).
func AppendPingReq(dst []byte, target Contact) []byte { return AppendContact(dst, target) }

// ParsePingReq decodes the payload of PING_REQ.
func ParsePingReq(payload []byte, o Options) (target Contact, err error) {
	return ParseContact(payload, o)
}

// PingReqAck is the payload of PING_REQ_ACK.
type PingReqAck struct {
	Target    CellID
	Reachable bool           // false is never evidence against the target (F37)
	Observed  netip.AddrPort // the helper's address as the target sees it, zero = unknown
}

// AppendPingReqAck appends the payload of PING_REQ_ACK.
func AppendPingReqAck(dst []byte, a PingReqAck) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(a.Target))
	reachable := byte(0)
	if a.Reachable {
		reachable = 1
	}
	return appendObserved(append(dst, reachable), a.Observed)
}

// ParsePingReqAck decodes the payload of PING_REQ_ACK.
func ParsePingReqAck(payload []byte) (PingReqAck, error) {
	if len(payload) != PingReqAckSize {
		return PingReqAck{}, ErrLength
	}
	a := PingReqAck{Target: CellID(binary.BigEndian.Uint64(payload)), Reachable: payload[8] == 1}
	if !a.Target.Valid() {
		return PingReqAck{}, ErrCell
	}
	if payload[8] > 1 {
		return PingReqAck{}, ErrFlag
	}
	observed, err := parseObserved(payload[9:])
	if err != nil {
		return PingReqAck{}, err
	}
	a.Observed = observed
	return a, nil
}
