package seal

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"colloid.net/meshd/wire"
)

// KeySize is the size of a cluster key.
const KeySize = 32

// Key is the secret that all cells of a cluster share. It prints as the id of its cluster, never as
// itself: use the bytes to store it and join.FormatDoorKey to show what a joiner needs.
type Key [KeySize]byte

// Labels keep the uses of one key apart; changing one changes the protocol.
const (
	labelSender = "colloid v1 datagram sender"
	labelHash   = "colloid v1 key hash"
)

// GenerateKey draws a cluster key; random must be cryptographic.
func GenerateKey(random io.Reader) (Key, error) {
	var k Key
	if _, err := io.ReadFull(random, k[:]); err != nil {
		return Key{}, fmt.Errorf("draw cluster key: %w", err)
	}
	if k.IsZero() {
		return Key{}, fmt.Errorf("draw cluster key: the random source gives only zeros")
	}
	return k, nil
}

// IsZero reports whether k was never set.
func (k Key) IsZero() bool { return k == Key{} }

// Format implements fmt.Formatter for every verb, so that no log line can hold a key.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "key of cluster %016x", ClusterID(k)) }

// ClusterID names the cluster of a key in public: the first 8 bytes of its SHA-256 (F7).
func ClusterID(k Key) uint64 {
	sum := sha256.Sum256(k[:])
	return binary.BigEndian.Uint64(sum[:])
}

// HashKey returns the SipHash key for key hashes and placement scores. It depends on the cluster, so
// that outsiders cannot search for colliding names (F16) and foreign records fail their hash (F7).
func HashKey(k Key) (k0, k1 uint64) {
	raw := Derive(k, labelHash)
	return binary.BigEndian.Uint64(raw[:]), binary.BigEndian.Uint64(raw[8:])
}

// Derive returns the key for one purpose: HKDF-SHA256 without salt, the label as info.
func Derive(k Key, label string) Key {
	raw, err := hkdf.Key(sha256.New, k[:], nil, label, KeySize)
	if err != nil {
		panic("seal: " + err.Error()) // only for lengths that are constant here
	}
	return Key(raw)
}

// senderKeys derives the keys of senders. It is HKDF-SHA256 cut in two: the extraction done once per
// cluster key, and the first block of the expansion, which is one HMAC and does not allocate.
type senderKeys struct {
	mac   hash.Hash
	input [len(labelSender) + 9]byte
	key   [KeySize]byte
}

func newSenderKeys(k Key) *senderKeys {
	if k.IsZero() {
		panic("seal: cluster key was never set")
	}
	extracted, err := hkdf.Extract(sha256.New, k[:], nil)
	if err != nil {
		panic("seal: " + err.Error())
	}
	s := &senderKeys{mac: hmac.New(sha256.New, extracted)}
	copy(s.input[:], labelSender)
	s.input[len(s.input)-1] = 1 // number of the first block
	return s
}

// of returns the key of one sender, valid until the next call.
func (s *senderKeys) of(sender wire.CellID) []byte {
	binary.BigEndian.PutUint64(s.input[len(labelSender):], uint64(sender))
	s.mac.Reset()
	s.mac.Write(s.input[:])
	return s.mac.Sum(s.key[:0])
}
