package seal

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"colloid.net/meshd/wire"
)

const (
	counterSize = 8
	tagSize     = chacha20poly1305.Overhead
	nonceSize   = chacha20poly1305.NonceSize
	// incarnationMax keeps incarnation<<40 within 64 bits.
	incarnationMax = 1<<(64-wire.CounterBits) - 1
)

// The trailer is exactly counter and tag.
var _ [wire.TrailerSize]byte = [counterSize + tagSize]byte{}

// Sealer seals the datagrams of one cell.
type Sealer struct {
	self    wire.CellID
	aead    cipher.AEAD
	counter uint64 // of the last datagram
	last    uint64 // the greatest counter of this incarnation
	nonce   [nonceSize]byte
}

// NewSealer returns the sealer of cell self for one run of it. The incarnation must be durable and must
// not have been used with this key and cell before (F1, F13). It panics on a zero key, a reserved cell
// id or an incarnation of more than 24 bits.
func NewSealer(k Key, self wire.CellID, incarnation uint32) *Sealer {
	if !self.Valid() || incarnation > incarnationMax {
		panic(fmt.Sprintf("seal: cell %s incarnation %d cannot send", self, incarnation))
	}
	first := uint64(incarnation) << wire.CounterBits
	s := &Sealer{self: self, counter: first, last: first + (1<<wire.CounterBits - 1)}
	s.Rekey(k)
	return s
}

// Rekey seals with k from now on. The counter goes on, so that going back to an earlier key is safe.
func (s *Sealer) Rekey(k Key) { s.aead = newAEAD(newSenderKeys(k).of(s.self)) }

func newAEAD(key []byte) cipher.AEAD {
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		panic("seal: " + err.Error())
	}
	return aead
}

// Counter returns the counter of the last sealed datagram.
func (s *Sealer) Counter() uint64 { return s.counter }

// Seal encrypts the payload of datagram (header and payload, nothing else) in place and appends the
// trailer; the result shares the memory of datagram when that has wire.TrailerSize bytes of spare
// capacity, as it should. It panics when the header does not fit the datagram or names another sender,
// when the payload exceeds wire.SealedPayloadMax, and when 2^40 datagrams have been sent in one run:
// the next run has a new incarnation.
func (s *Sealer) Seal(datagram []byte) []byte {
	if len(datagram) >= wire.HeaderSize && wire.CellID(binary.BigEndian.Uint64(datagram[4:])) != s.self {
		panic(fmt.Sprintf("seal: cell %s cannot seal the datagram of another", s.self))
	}
	return s.seal(datagram, wire.TrailerSize)
}

// SealHop is Seal for a STREAM_OPEN that this cell passes on: the header names the originator, and
// this cell's id goes behind the trailer, so that the next hop knows whose key and counter it is
// (F149, F150).
func (s *Sealer) SealHop(datagram []byte) []byte {
	if len(datagram) < wire.HeaderSize || wire.Type(datagram[1]) != wire.TypeStreamOpen ||
		wire.CellID(binary.BigEndian.Uint64(datagram[4:])) == s.self {
		panic(fmt.Sprintf("seal: cell %s passes on what is not another cell's STREAM_OPEN", s.self))
	}
	return binary.BigEndian.AppendUint64(s.seal(datagram, wire.HopTrailerSize), uint64(s.self))
}

func (s *Sealer) seal(datagram []byte, trailerSize int) []byte {
	size := len(datagram)
	if size < wire.HeaderSize || size > wire.DatagramMax-wire.RelayHeadSize-trailerSize ||
		int(binary.BigEndian.Uint16(datagram[2:])) != size-wire.HeaderSize {
		panic(fmt.Sprintf("seal: cell %s cannot seal a datagram of %d bytes with this header", s.self, size))
	}
	if s.counter == s.last {
		panic(fmt.Sprintf("seal: cell %s has no counters left in this incarnation", s.self))
	}
	s.counter++
	binary.BigEndian.PutUint64(s.nonce[nonceSize-counterSize:], s.counter)
	header := datagram[:wire.HeaderSize]
	sealed := s.aead.Seal(header, s.nonce[:], datagram[wire.HeaderSize:], header)
	// The cipher put the tag right behind the payload, where the counter belongs.
	sealed = append(sealed, s.nonce[nonceSize-counterSize:]...)
	trailer := sealed[size:]
	copy(trailer[counterSize:], trailer[:tagSize])
	copy(trailer, s.nonce[nonceSize-counterSize:])
	return sealed
}
