package wire

import "encoding/binary"

// Payload sizes of the hole-punching messages (F21).
const (
	PunchReqSize = ContactSize + 8
	PunchSynSize = 8
)

// What a PUNCH_REQ asks for stands in the Flags of its Target.
const (
	// PunchAsk comes from A: bring me and the target together.
	PunchAsk = 0
	// PunchGo comes from the coordinator to B: the target, who is there as I see it, wants to send you
	// PUNCH_SYN.
	PunchGo = 1
	// PunchDial comes from A: have the target send me a PING, from a port that I never sent to (F31).
	PunchDial = 2
	// PunchDialGo comes from the coordinator: send such a PING to the target. Its nonce is the low half
	// of the rendezvous.
	PunchDialGo = 3
	// PunchSearch comes from A, whose router uses another port for each destination: tell the target and me
	// of each other, so that we search for a port that lets us through.
	PunchSearch = 4
	// PunchSearchGo comes from the coordinator, as PunchGo does.
	PunchSearchGo = 5
	// PunchSearchReady comes from B to A, through a relay: I take part.
	PunchSearchReady = 6
	// PunchSearchBusy is sent in its place: ask again later.
	PunchSearchBusy = 7
	// PunchSearchBegin comes from A to B: my sockets are open, send.
	PunchSearchBegin = 8
	// PunchAccept comes from B to the coordinator whose PunchGo it follows: I send, tell A to.
	PunchAccept = 9
	// PunchStart comes from the coordinator to A, after PunchAccept: send PUNCH_SYN to B, who does so too.
	PunchStart = 10
)

// PunchReq is the payload of PUNCH_REQ (F35): from A to the coordinator it names B, from B to it A; from the
// coordinator to A and to B it names the other one as the coordinator observes it. Who does not know what it
// asks for ignores it.
type PunchReq struct {
	Target     Contact
	Rendezvous uint64 // echoed in both sides' PUNCH_SYN
}

// AppendPunchReq appends the payload of PUNCH_REQ.
func AppendPunchReq(dst []byte, p PunchReq) []byte {
	return binary.BigEndian.AppendUint64(AppendContact(dst, p.Target), p.Rendezvous)
}

// ParsePunchReq decodes the payload of PUNCH_REQ.
func ParsePunchReq(payload []byte, o Options) (PunchReq, error) {
	if len(payload) != PunchReqSize {
		return PunchReq{}, ErrLength
	}
	target, err := ParseContact(payload[:ContactSize], o)
	if err != nil {
		return PunchReq{}, err
	}
	return PunchReq{target, binary.BigEndian.Uint64(payload[ContactSize:])}, nil
}

// AppendPunchSyn appends the payload of PUNCH_SYN.
func AppendPunchSyn(dst []byte, rendezvous uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, rendezvous)
}

// ParsePunchSyn decodes the payload of PUNCH_SYN.
func ParsePunchSyn(payload []byte) (rendezvous uint64, err error) {
	if len(payload) != PunchSynSize {
		return 0, ErrLength
	}
	return binary.BigEndian.Uint64(payload), nil
}
