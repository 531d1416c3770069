package join

import (
	"bytes"
	"crypto/subtle"
	"io"

	"colloid.net/meshd/seal"
)

// repliesMax bounds the replies that one attempt works on, each of which costs two X25519 operations.
// Replies that do not echo the request are thrown away before and do not count.
const repliesMax = 64

// Joiner is one attempt to join. Its request may be sent to several seeds and repeated; the first
// welcome that proves itself ends the attempt. When to repeat and when to give up is the caller's
// decision. For a new attempt make a new Joiner.
type Joiner struct {
	// Loopback accepts members on loopback addresses (F22); for tests and the demo on one machine.
	Loopback bool

	hello   Hello
	psk     *seal.Key
	secret  [dhSize]byte // what the ephemeral key is made from
	request []byte
	replies int
	over    bool
}

// NewJoiner starts an attempt. psk is the door key of a locked cluster, nil without. random must be
// cryptographic and is read here only; a failing one panics. So does a reserved cell id.
func NewJoiner(random io.Reader, hello Hello, psk *seal.Key) *Joiner {
	if !hello.Self.Valid() {
		panic("join: reserved cell id " + hello.Self.String())
	}
	j := &Joiner{hello: hello}
	if psk != nil {
		key := *psk
		j.psk = &key
	}
	if _, err := io.ReadFull(random, j.secret[:]); err != nil {
		panic("join: random source failed: " + err.Error())
	}
	j.request, _ = j.start()
	if len(j.request) != RequestSize {
		panic("join: request has the wrong size")
	}
	return j
}

// messageReader is the half of a handshake that Finish needs.
type messageReader func(message []byte) (payload []byte, err error)

// start performs the joiner's first step. It gives the same request each time, because the ephemeral
// key comes from j.secret; so every reply meets a fresh handshake, and a bad one can spoil nothing.
func (j *Joiner) start() (request []byte, read messageReader) {
	state := handshake(bytes.NewReader(j.secret[:]), true, j.psk)
	size := RequestSize - requestHeadSize - dhSize
	if j.psk != nil {
		size -= tagSize
	}
	padded := make([]byte, size)
	appendHello(padded[:0], j.hello)
	request = append(make([]byte, 0, RequestSize), joinVersion, modeOf(j.psk))
	request, _, _, err := state.WriteMessage(request, padded)
	if err != nil {
		panic("join: " + err.Error())
	}
	return request, func(message []byte) ([]byte, error) {
		payload, _, _, err := state.ReadMessage(nil, message)
		return payload, err
	}
}

// Request returns the payload of the JOIN to send.
func (j *Joiner) Request() []byte { return j.request }

// Finish takes the payload of a JOIN_REPLY. A welcome that comes back without an error ends the attempt,
// unless it is an Unproven refusal: then other seeds may still say otherwise. After an error other than
// ErrFinished the attempt stands as before; ignore the reply.
func (j *Joiner) Finish(payload []byte) (Welcome, error) {
	if j.over {
		return Welcome{}, ErrFinished
	}
	if len(payload) < replyHeadSize || len(payload) > RequestSize {
		return Welcome{}, ErrMalformed
	}
	echo := j.request[requestHeadSize : requestHeadSize+echoSize]
	if subtle.ConstantTimeCompare(payload[2:replyHeadSize], echo) != 1 {
		return Welcome{}, ErrUnrelated
	}
	body := payload[replyHeadSize:]
	switch {
	case payload[1] == kindRefused && len(body) == 1:
		// Readable whatever the version: it is how a seed of another version says so.
		return Welcome{Refused: refusalText(body[0]), Unproven: true}, nil
	case payload[0] != joinVersion || payload[1] != kindWelcome:
		return Welcome{}, ErrMalformed
	}
	if j.replies == repliesMax {
		j.over = true
		return Welcome{}, ErrFinished
	}
	j.replies++
	_, read := j.start()
	raw, err := read(body)
	if err != nil {
		return Welcome{}, ErrUnrelated
	}
	welcome, err := parseWelcome(raw, j.Loopback)
	if err != nil {
		return Welcome{}, err
	}
	j.over = true
	return welcome, nil
}

func refusalText(reason byte) string {
	if int(reason) < len(refusals) && refusals[reason] != "" {
		return refusals[reason]
	}
	return refusalUnknown
}
