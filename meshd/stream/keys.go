package stream

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"colloid.net/meshd/wire"
	"golang.org/x/crypto/chacha20poly1305"
)

// The end-to-end encryption of a stream (F17, F154). Both ends draw an X25519 key for this stream alone
// and put it into STREAM_OPEN and STREAM_ACK 0. The keys of the two directions come from the common
// secret, salted with a secret of the cluster, and from everything that was said in the two messages. A relay
// knows the cluster's secret but no private key: what it passes on it cannot read. The nonce is the sequence
// number, which is used once per direction and key, with the same bytes when it is sent again.

const (
	publicSize = 32
	tagSize    = wire.StreamTagSize
	// dataMax is the data of one datagram.
	dataMax    = wire.StreamDataMax - tagSize // 1134
	labelKeys  = "colloid v1 stream keys"
	privateTry = 4
)

// What is authenticated besides the data: a CLOSE is not an empty DATA.
var (
	associatedData = []byte{0}
	associatedFin  = []byte{1}
)

// cipherAES in ExtensionCipher is AES-256-GCM, which takes about half the time of ChaCha20-Poly1305 where the
// processor has instructions for it. Without them it would be slow and its time could tell the key, so it is
// used only if both ends have them. What was offered and what was chosen are part of the transcript: a relay
// that changes either makes the keys differ.
const cipherAES uint8 = 1

var errKey = errors.New("stream: unusable public key")

// keys are one end's part of the agreement.
type keys struct {
	private *ecdh.PrivateKey
	public  [publicSize]byte
	other   [publicSize]byte
	seal    cipher.AEAD
	open    cipher.AEAD
	offered uint8 // what ExtensionCipher of STREAM_OPEN said
	chosen  uint8 // and that of STREAM_ACK 0
	nonce   [chacha20poly1305.NonceSize]byte
}

// draw makes the private key.
func (k *keys) draw(entropy func([]byte)) {
	var seed [32]byte
	for range privateTry {
		entropy(seed[:])
		private, err := ecdh.X25519().NewPrivateKey(seed[:])
		if err == nil {
			k.private = private
			copy(k.public[:], private.PublicKey().Bytes())
			return
		}
	}
	panic("stream: the source of entropy gives no usable key")
}

// agree derives the keys of both directions and forgets the private one.
func (k *keys) agree(secret []byte, transcript []byte, initiator bool) error {
	other, err := ecdh.X25519().NewPublicKey(k.other[:])
	if err != nil {
		return errKey
	}
	shared, err := k.private.ECDH(other)
	if err != nil {
		return errKey // a point of small order: the result would not be secret
	}
	sum := sha256.Sum256(transcript)
	raw, err := hkdf.Key(sha256.New, shared, secret, labelKeys+string(sum[:]), 64)
	if err != nil {
		panic("stream: " + err.Error()) // only for lengths that are constant here
	}
	first, second := newAEAD(k.chosen, raw[:32]), newAEAD(k.chosen, raw[32:])
	if initiator {
		k.seal, k.open = first, second
	} else {
		k.seal, k.open = second, first
	}
	k.private = nil
	return nil
}

func newAEAD(chosen uint8, key []byte) (aead cipher.AEAD) {
	var err error
	if chosen == cipherAES {
		var block cipher.Block
		if block, err = aes.NewCipher(key); err == nil {
			aead, err = cipher.NewGCM(block)
		}
	} else {
		aead, err = chacha20poly1305.New(key)
	}
	if err != nil {
		panic("stream: " + err.Error())
	}
	return aead
}

// sealData encrypts the first size bytes of a chunk in place, which grow by tagSize.
func (k *keys) sealData(c *chunk, size int, sequence uint32) {
	binary.BigEndian.PutUint32(k.nonce[8:], sequence)
	k.seal.Seal(c[:0], k.nonce[:], c[:size], associatedData)
}

// openData decrypts into a chunk and returns the size, -1 if it is not authentic.
func (k *keys) openData(c *chunk, sealed []byte, sequence uint32) int {
	binary.BigEndian.PutUint32(k.nonce[8:], sequence)
	plain, err := k.open.Open(c[:0], k.nonce[:], sealed, associatedData)
	if err != nil {
		return -1
	}
	return len(plain)
}

// sealFin makes the tag of a CLOSE.
func (k *keys) sealFin(tag *[tagSize]byte, sequence uint32) {
	binary.BigEndian.PutUint32(k.nonce[8:], sequence)
	k.seal.Seal(tag[:0], k.nonce[:], nil, associatedFin)
}

// openFin reports whether a CLOSE is the other end's.
func (k *keys) openFin(tag *[tagSize]byte, sequence uint32) bool {
	binary.BigEndian.PutUint32(k.nonce[8:], sequence)
	_, err := k.open.Open(tag[:0], k.nonce[:], tag[:], associatedFin)
	return err == nil
}

// transcript is what both ends have to agree on.
func (s *Stream) transcript() []byte {
	initiator, responder := s.mux.options.Self, s.peer
	first, second := s.keys.public, s.keys.other
	if !s.initiator {
		initiator, responder = responder, initiator
		first, second = second, first
	}
	t := binary.BigEndian.AppendUint64(nil, uint64(initiator))
	t = binary.BigEndian.AppendUint64(t, uint64(responder))
	t = binary.BigEndian.AppendUint32(t, s.id)
	t = append(t, byte(s.kind), byte(len(s.name)))
	t = append(t, s.name...)
	t = append(t, s.keys.offered, s.keys.chosen)
	t = append(t, first[:]...)
	return append(t, second[:]...)
}
