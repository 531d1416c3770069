package pcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Sizes and numbers of RFC 6887.
const (
	version    = 2
	opMap      = 1
	answerBit  = 0x80
	protocol   = 17 // UDP
	headerSize = 24
	mapSize    = 36
	// MessageSize is the size of a MAP request and of the answer to one that has no options.
	MessageSize = headerSize + mapSize
	// datagramMax is the largest message of the protocol.
	datagramMax = 1100
	// NonceSize is the size of a mapping's nonce.
	NonceSize = 12
)

// Nonce is what the owner of a mapping is recognized by.
type Nonce [NonceSize]byte

// Request asks for a mapping, or for its end with a Lifetime of zero.
type Request struct {
	Nonce    Nonce
	Client   netip.Addr     // of this host, as the router sees it
	Internal uint16         // port of this host
	Wanted   netip.AddrPort // what the router should give if it can; zero for no wish
	Lifetime time.Duration  // in whole seconds
}

// Mapping is what a router granted.
type Mapping struct {
	External netip.AddrPort
	Lifetime time.Duration
}

// Errors of answers. ErrVersion is said by routers that speak NAT-PMP or nothing like it.
var (
	ErrVersion = errors.New("the router does not speak PCP version 2")
	errForeign = errors.New("no answer to what was asked")
)

// resultNames are the results of RFC 6887 7.4, in its order; 0 is success.
var resultNames = [...]string{"success", "unsupported version", "not authorized", "malformed request",
	"unsupported operation", "unsupported option", "malformed option", "network failure", "no resources",
	"unsupported protocol", "quota exceeded", "cannot provide the external address", "address mismatch",
	"excessive remote peers"}

// Refusal is a router's answer that it does not do what was asked.
type Refusal uint8

func (r Refusal) Error() string {
	if int(r) < len(resultNames) {
		return "the router refuses: " + resultNames[r]
	}
	return fmt.Sprintf("the router refuses with result %d", uint8(r))
}

// Append appends the request.
func (r Request) Append(dst []byte) []byte {
	dst = append(dst, version, opMap, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Lifetime/time.Second))
	dst = appendAddress(dst, r.Client)
	dst = append(dst, r.Nonce[:]...)
	dst = append(dst, protocol, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, r.Internal)
	dst = binary.BigEndian.AppendUint16(dst, r.Wanted.Port())
	wanted := r.Wanted.Addr()
	if !wanted.IsValid() { // no wish, in the family of the client
		wanted = netip.IPv6Unspecified()
		if r.Client.Unmap().Is4() {
			wanted = netip.IPv4Unspecified()
		}
	}
	return appendAddress(dst, wanted)
}

// appendAddress appends 16 bytes; addresses of version 4 are mapped ones.
func appendAddress(dst []byte, address netip.Addr) []byte {
	raw := address.As16()
	return append(dst, raw[:]...)
}

// Parse decodes the answer to a request. It accepts nothing but an answer to exactly this one: errForeign
// says that another may still come, every other error is the router's.
func (r Request) Parse(datagram []byte) (Mapping, error) {
	if len(datagram) < 4 || len(datagram) > datagramMax || datagram[1]&answerBit == 0 {
		return Mapping{}, errForeign
	}
	if datagram[0] != version { // NAT-PMP answers in 8 bytes and its own version
		return Mapping{}, ErrVersion
	}
	if len(datagram) < headerSize || len(datagram)%4 != 0 || datagram[1] != answerBit|opMap {
		return Mapping{}, errForeign
	}
	result := Refusal(datagram[3])
	lifetime := time.Duration(binary.BigEndian.Uint32(datagram[4:])) * time.Second
	if result == 1 {
		return Mapping{}, ErrVersion
	}
	if len(datagram) < MessageSize || !r.repeated(datagram[headerSize:]) {
		return Mapping{}, errForeign
	}
	if result != 0 {
		return Mapping{}, result
	}
	if len(datagram) != MessageSize {
		return Mapping{}, errForeign // an option that nobody asked for
	}
	if r.Lifetime == 0 {
		return Mapping{}, nil
	}
	external := netip.AddrPortFrom(netip.AddrFrom16([16]byte(datagram[headerSize+20:])).Unmap(),
		binary.BigEndian.Uint16(datagram[headerSize+18:]))
	switch {
	case lifetime == 0:
		return Mapping{}, errors.New("the router opened a port for no time")
	case external.Port() == 0 || !external.Addr().IsGlobalUnicast():
		return Mapping{}, fmt.Errorf("the router opened %v, where nobody can be", external)
	}
	return Mapping{External: external, Lifetime: min(lifetime, r.Lifetime)}, nil
}

// repeated reports whether the body of an answer repeats nonce, protocol and port.
func (r Request) repeated(body []byte) bool {
	return Nonce(body[:NonceSize]) == r.Nonce && body[NonceSize] == protocol &&
		binary.BigEndian.Uint16(body[16:]) == r.Internal
}
