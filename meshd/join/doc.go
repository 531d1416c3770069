// Package join brings a cell into a cluster (decision D1). Nouns: the Joiner, one attempt of the cell
// that wants in; the Seed, which answers for a member; the Door, open or locked; the door key, which a
// locked cluster asks for. The package does no I/O: it makes and reads the payloads of JOIN and
// JOIN_REPLY, the caller sends them.
//
//	JOIN       version 1 | mode 1 | Noise message 1: e 32, hello 16 + zeros  (always 1184 bytes)
//	JOIN_REPLY version 1 | kind 1 | echo 16 | Noise message 2: e 32, welcome, tag 16, or reason 1
//
// The handshake is Noise_NN_25519_ChaChaPoly_BLAKE2s, or with a door key Noise_NNpsk0, in which both
// sides prove that they know it. Echo is the first half of the joiner's ephemeral key, so that who does
// not see the request cannot answer it. A reply is never larger than its request, so the seed is no
// amplifier for forged source addresses; and the seed keeps nothing of a request but a rate limit.
//
// What it does not give: through an open door both sides are anonymous, and somebody on the path can
// pose as the seed (D1 accepts that; a locked cluster does not have it). Refusals are sent in the clear
// because there is no common key then; they are marked as such, and somebody on the path can forge
// them to keep a cell out, as he could by dropping datagrams.
//
// Limits: MembersMax contacts in a welcome, repliesMax replies per attempt, Limits of the seed.
package join

import (
	"errors"
	"io"

	"github.com/flynn/noise"

	"colloid.net/meshd/seal"
	"colloid.net/meshd/wire"
)

// RequestSize is the payload size of every JOIN.
const RequestSize = wire.PayloadMax

// MembersMax bounds the contacts of a welcome.
const MembersMax = 32

const (
	joinVersion = 1

	modeOpen   = 1 // Noise_NN
	modeLocked = 2 // Noise_NNpsk0

	kindWelcome = 1
	kindRefused = 2

	dhSize          = 32
	tagSize         = 16
	requestHeadSize = 2
	echoSize        = 16
	replyHeadSize   = 2 + echoSize
	helloSize       = 16
	replySizeMax    = replyHeadSize + dhSize + welcomeSizeMax + tagSize
)

// A reply with a full welcome still fits its request.
var _ [RequestSize - replySizeMax]struct{}

var (
	// ErrMalformed: the payload is not what this version of the handshake sends.
	ErrMalformed = errors.New("join: malformed payload")
	// ErrUnrelated: the reply does not belong to this attempt; wait for another.
	ErrUnrelated = errors.New("join: reply to another request")
	// ErrFinished: this attempt has had its welcome, or too many wrong replies; make a new Joiner.
	ErrFinished = errors.New("join: attempt is over")
)

// Hello is what a joiner says of itself.
type Hello struct {
	Self       wire.CellID
	SecretHash uint64 // of its instance secret: tells a restart from a collision of ids (F3)
}

func appendHello(dst []byte, h Hello) []byte {
	dst = wire.AppendDot(dst, wire.Dot{Actor: h.Self, Sequence: h.SecretHash})
	return dst
}

// parseHello reads the hello and demands zeros behind it.
func parseHello(raw []byte) (Hello, error) {
	if len(raw) < helloSize {
		return Hello{}, ErrMalformed
	}
	dot := wire.DotAt(raw)
	for _, b := range raw[helloSize:] {
		if b != 0 {
			return Hello{}, ErrMalformed
		}
	}
	if !dot.Actor.Valid() {
		return Hello{}, ErrMalformed
	}
	return Hello{dot.Actor, dot.Sequence}, nil
}

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s)

// handshake starts one side. The prologue ties it to this protocol, so that its messages mean nothing
// to another version or another use of the same keys.
func handshake(random io.Reader, initiator bool, psk *seal.Key) *noise.HandshakeState {
	config := noise.Config{
		CipherSuite: suite,
		Random:      random,
		Pattern:     noise.HandshakeNN,
		Initiator:   initiator,
		Prologue:    append([]byte("colloid join"), wire.Version, byte(wire.TypeJoin), joinVersion, modeOf(psk)),
	}
	if psk != nil {
		config.PresharedKey = psk[:]
	}
	state, err := noise.NewHandshakeState(config)
	if err != nil {
		panic("join: " + err.Error()) // only for a bad configuration
	}
	return state
}

func modeOf(psk *seal.Key) byte {
	if psk == nil {
		return modeOpen
	}
	return modeLocked
}
