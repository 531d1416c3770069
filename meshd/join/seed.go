package join

import (
	"io"
	"net/netip"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/seal"
)

// Door is what a seed's cluster demands of joiners.
type Door struct {
	Locked bool     // only joiners with the door key may come in
	Key    seal.Key // of the cluster; zero answers nobody
	// Outdated: joiner and cluster have no protocol version in common (F26).
	Outdated bool
}

// Seed answers joiners on behalf of a member. It belongs to one goroutine.
type Seed struct {
	random  io.Reader
	limiter *limiter
	reply   [RequestSize]byte

	doorOf, door seal.Key // door key of a cluster key, derived once
}

// NewSeed returns a seed. random must be cryptographic; zero fields of limits mean DefaultLimits.
func NewSeed(random io.Reader, limits Limits) *Seed {
	return &Seed{random: random, limiter: newLimiter(limits)}
}

// Answer takes the payload of a JOIN and returns that of the JOIN_REPLY, valid until the next call and
// never larger than the request; ok is false when the request deserves no answer. It calls welcome at
// most once, for a hello that came by the demanded door. The source address is not proven at that
// point and through an open door neither is the hello, so welcome must only look things up. It
// returns false for a joiner that gets no answer now and may ask again.
func (s *Seed) Answer(now clock.Instant, from netip.AddrPort, payload []byte, door Door,
	welcome func(Hello) (Welcome, bool)) (reply []byte, ok bool) {
	// Only full-size requests: the reply must not be larger, and the version may be another one.
	if len(payload) != RequestSize || door.Key.IsZero() || !from.IsValid() {
		return nil, false
	}
	switch s.limiter.take(now, from.Addr()) {
	case drop:
		return nil, false
	case refuse:
		return s.refuse(payload, reasonTooMany), true
	}
	if payload[0] != joinVersion || door.Outdated {
		return s.refuse(payload, reasonVersion), true
	}
	var psk *seal.Key
	switch payload[1] {
	case modeOpen:
		if door.Locked {
			return s.refuse(payload, reasonLocked), true
		}
	case modeLocked:
		psk = s.doorKey(door.Key)
	default:
		return nil, false
	}
	state := handshake(s.random, false, psk)
	raw, _, _, err := state.ReadMessage(nil, payload[requestHeadSize:])
	if err != nil {
		return s.refuse(payload, reasonKey), true
	}
	hello, err := parseHello(raw)
	if err != nil {
		return nil, false
	}
	answer, ok := welcome(hello)
	if !ok {
		return nil, false
	}
	reply = s.head(payload, kindWelcome)
	reply, _, _, err = state.WriteMessage(reply, appendWelcome(nil, answer))
	if err != nil {
		return nil, false // the joiner's ephemeral key is a point of low order
	}
	if len(reply) > len(payload) {
		panic("join: reply larger than its request")
	}
	return reply, true
}

func (s *Seed) doorKey(cluster seal.Key) *seal.Key {
	if s.doorOf != cluster {
		s.doorOf, s.door = cluster, DoorKey(cluster)
	}
	return &s.door
}

func (s *Seed) head(payload []byte, kind byte) []byte {
	reply := append(s.reply[:0], joinVersion, kind)
	return append(reply, payload[requestHeadSize:requestHeadSize+echoSize]...)
}

// refuse answers in the clear. It says what the joiner must do and nothing of the cluster.
func (s *Seed) refuse(payload []byte, reason byte) []byte {
	return append(s.head(payload, kindRefused), reason)
}
