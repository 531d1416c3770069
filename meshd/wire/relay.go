package wire

import "encoding/binary"

// A relayed datagram is a sealed datagram of its origin, not changed by a byte, behind ten bytes that say
// whom it is for (F36). They are not authenticated: whoever changes them sends the datagram to another
// cell, once, as anybody on the path can (see package seal). What a relay relies on is the seal inside,
// which every member can check, and its replay window, which lets no datagram pass it twice: so neither
// loops nor strangers are served.
//
//	offset  0        1        2           10
//	        version  kind     target      header ... payload ... trailer
const RelayHeadSize = 10

// Kinds of relayed datagrams. They stand where a header has its message type and are none.
const (
	// RelayFirst comes from the origin itself; the relay may pass it on to another one, near the target.
	RelayFirst Type = 0x18
	// RelayLast has been passed on; whoever is not the target hands it to the target or drops it.
	RelayLast Type = 0x19
)

// IsRelay reports whether a datagram claims to be a relayed one.
func IsRelay(datagram []byte) bool {
	return len(datagram) >= 2 && (Type(datagram[1]) == RelayFirst || Type(datagram[1]) == RelayLast)
}

// AppendRelay appends the ten bytes that go in front of a sealed datagram for target. It panics on
// anything but the two kinds and a valid target.
func AppendRelay(dst []byte, kind Type, target CellID) []byte {
	if kind != RelayFirst && kind != RelayLast || !target.Valid() {
		panic("wire: relay head of kind " + kind.String() + " for cell " + target.String())
	}
	dst = append(dst, Version, byte(kind))
	return binary.BigEndian.AppendUint64(dst, uint64(target))
}

// ParseRelay splits a relayed datagram. inner is a whole datagram with a trailer as long as one is; only
// opening it says whether it is authentic.
func ParseRelay(datagram []byte) (kind Type, target CellID, inner []byte, err error) {
	if len(datagram) < RelayHeadSize+HeaderSize+TrailerSize {
		return 0, 0, nil, ErrShort
	}
	if len(datagram) > DatagramMax {
		return 0, 0, nil, ErrLong
	}
	if datagram[0] != Version {
		return 0, 0, nil, ErrVersion
	}
	if !IsRelay(datagram) {
		return 0, 0, nil, ErrType
	}
	target = CellID(binary.BigEndian.Uint64(datagram[2:]))
	if !target.Valid() {
		return 0, 0, nil, ErrCell
	}
	return Type(datagram[1]), target, datagram[RelayHeadSize:], nil
}
