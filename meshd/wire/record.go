package wire

import "encoding/binary"

// EntryHeaderSize is what precedes the value of an entry.
const EntryHeaderSize = 18

// NextEntry takes the first entry off raw. ok is false when raw is empty or malformed; after a
// Parse that succeeded only the former happens.
func NextEntry(raw []byte) (dot Dot, value, rest []byte, ok bool) {
	if len(raw) < EntryHeaderSize {
		return Dot{}, nil, nil, false
	}
	size := EntryHeaderSize + int(binary.BigEndian.Uint16(raw[16:]))
	if size > len(raw) {
		return Dot{}, nil, nil, false
	}
	return DotAt(raw), raw[EntryHeaderSize:size:size], raw[size:], true
}

// AppendEntry appends one entry. The value must be at most ValueMax bytes.
func AppendEntry(dst []byte, dot Dot, value []byte) []byte {
	if len(value) > ValueMax {
		panic("wire: entry value longer than ValueMax")
	}
	dst = AppendDot(dst, dot)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(value)))
	return append(dst, value...)
}

// DotAt reads the dot at the start of raw, which must hold 16 bytes.
func DotAt(raw []byte) Dot {
	return Dot{CellID(binary.BigEndian.Uint64(raw)), binary.BigEndian.Uint64(raw[8:])}
}

// AppendDot appends the 16 bytes of a dot (a VVEntry).
func AppendDot(dst []byte, dot Dot) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(dot.Actor))
	return binary.BigEndian.AppendUint64(dst, dot.Sequence)
}

// ContextLookup returns the sequence that a raw context (sorted by actor) holds for actor, 0 if none.
func ContextLookup(context []byte, actor CellID) uint64 {
	low, high := 0, len(context)/DotSize
	for low < high {
		middle := int(uint(low+high) >> 1)
		dot := DotAt(context[middle*DotSize:])
		switch {
		case dot.Actor == actor:
			return dot.Sequence
		case dot.Actor < actor:
			low = middle + 1
		default:
			high = middle
		}
	}
	return 0
}
