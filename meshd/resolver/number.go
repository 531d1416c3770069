package resolver

import (
	"crypto/rand"
	"encoding/binary"
)

// newNumber is the number of a forwarded query, which an attacker must not guess.
func newNumber() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint16(b[:])
}
