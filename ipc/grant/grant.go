// Package grant is the one-time permission of an operator for one exec stream (F137). An operator signs it
// with a private key that no cell has; it travels in STREAM_OPEN; runnerd, which knows the operators' public
// keys from its own policy file, checks it and remembers its nonce until it expires, so that it opens one
// shell once.
//
// Relays can read a grant. What protects it from a relay that would use it first is its short life and the
// workload it names, and that its use is logged on the host.
package grant

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Sizes.
const (
	NonceSize   = 16
	KeyIDSize   = 8
	NameMax     = 96
	version     = 1
	fixedSize   = 1 + KeyIDSize + 8 + NonceSize + 1
	Size        = fixedSize + NameMax + ed25519.SignatureSize // the most
	LifetimeMax = time.Hour
)

// signedPrefix keeps signatures of grants apart from all others.
const signedPrefix = "colloid v1 exec grant\x00"

// Errors.
var (
	ErrMalformed = errors.New("malformed grant")
	ErrSignature = errors.New("the signature of the grant is not valid for this key")
	ErrExpired   = errors.New("the grant has expired")
)

// Grant permits one exec stream into one workload until it expires.
type Grant struct {
	KeyID    [KeyIDSize]byte // which of the operators' keys signed it
	Workload string          // key, such as spread.web
	Expiry   time.Time       // whole seconds, wall clock
	Nonce    [NonceSize]byte
}

// KeyID names a public key: its first eight bytes.
func KeyID(key ed25519.PublicKey) (id [KeyIDSize]byte) {
	copy(id[:], key)
	return id
}

func (g *Grant) body() ([]byte, error) {
	if len(g.Workload) == 0 || len(g.Workload) > NameMax || g.Expiry.Unix() < 0 {
		return nil, fmt.Errorf("grant for %q until %v: %w", g.Workload, g.Expiry, ErrMalformed)
	}
	b := append([]byte{version}, g.KeyID[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(g.Expiry.Unix()))
	b = append(b, g.Nonce[:]...)
	return append(append(b, byte(len(g.Workload))), g.Workload...), nil
}

// Sign encodes a grant with its signature; KeyID is filled in.
func Sign(g Grant, key ed25519.PrivateKey) ([]byte, error) {
	g.KeyID = KeyID(key.Public().(ed25519.PublicKey))
	body, err := g.body()
	if err != nil {
		return nil, err
	}
	return append(body, ed25519.Sign(key, append([]byte(signedPrefix), body...))...), nil
}

// Parse decodes a grant without believing it: KeyID says with which key Verify has to be called.
func Parse(raw []byte) (Grant, error) {
	if len(raw) < fixedSize || raw[0] != version {
		return Grant{}, ErrMalformed
	}
	name := int(raw[fixedSize-1])
	if name == 0 || name > NameMax || len(raw) != fixedSize+name+ed25519.SignatureSize {
		return Grant{}, ErrMalformed
	}
	seconds := binary.BigEndian.Uint64(raw[1+KeyIDSize:])
	if seconds > 1<<40 {
		return Grant{}, ErrMalformed
	}
	g := Grant{Workload: string(raw[fixedSize : fixedSize+name]), Expiry: time.Unix(int64(seconds), 0).UTC()}
	copy(g.KeyID[:], raw[1:])
	copy(g.Nonce[:], raw[1+KeyIDSize+8:])
	return g, nil
}

// Verify decodes a grant and checks its signature and its time. The caller has to refuse a nonce that was
// used before, until Expiry, and a workload that is not the one it was asked for.
func Verify(raw []byte, key ed25519.PublicKey, now time.Time) (Grant, error) {
	g, err := Parse(raw)
	if err != nil {
		return Grant{}, err
	}
	body := raw[:len(raw)-ed25519.SignatureSize]
	if g.KeyID != KeyID(key) || !ed25519.Verify(key, append([]byte(signedPrefix), body...), raw[len(body):]) {
		return Grant{}, ErrSignature
	}
	if !now.Before(g.Expiry) || g.Expiry.Sub(now) > LifetimeMax {
		return Grant{}, ErrExpired
	}
	return g, nil
}
