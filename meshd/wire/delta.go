package wire

import (
	"bytes"
	"encoding/binary"
)

// Fixed parts of the two forms of a record.
const (
	DeltaHeadSize  = 28 // hash 8, actor 8, sequence 8, context count 1, value length 2, name length 1
	RecordHeadSize = 11 // hash 8, entry count 1, context count 1, name length 1
	DeltaAckSize   = 8
)

// ValidName reports whether name may be the name of a key: 1 to NameMax bytes of printable ASCII.
func ValidName(name []byte) bool {
	if len(name) == 0 || len(name) > NameMax {
		return false
	}
	for _, b := range name {
		if b < 0x20 || b > 0x7e {
			return false
		}
	}
	return true
}

// CheckVector says whether raw is a list of dots sorted by actor, without doubles, reserved actors
// and zero sequences. The empty list is one.
func CheckVector(raw []byte) error {
	if len(raw)%DotSize != 0 {
		return ErrContext
	}
	last := CellID(0)
	for ; len(raw) > 0; raw = raw[DotSize:] {
		dot := DotAt(raw)
		if dot.Actor <= last || !dot.Actor.Valid() || dot.Sequence == 0 {
			return ErrContext
		}
		last = dot.Actor
	}
	return nil
}

// CheckRecord says whether r may travel or be stored (F22): name valid, context 1..FrameContextMax
// dots as CheckVector wants them, entries exactly EntryCount, sorted by actor, one per actor, each
// dot exactly in the context (F43), values at most ValueMax. Whether KeyHash is the hash of the name
// only the store can tell, which has the key.
func CheckRecord(r *Record) error {
	if !ValidName(r.Name) {
		return ErrName
	}
	if len(r.Context) == 0 || len(r.Context) > FrameContextMax*DotSize {
		return ErrContext
	}
	if err := CheckVector(r.Context); err != nil {
		return err
	}
	context, entries, count := r.Context, r.Entries, 0
	for ; len(entries) > 0; count++ {
		if len(entries) < EntryHeaderSize {
			return ErrLength
		}
		// Both lists ascend, so one walk over the context finds all entries and proves their order.
		for len(context) > 0 && !bytes.Equal(context[:DotSize], entries[:DotSize]) {
			context = context[DotSize:]
		}
		if len(context) == 0 {
			return ErrEntry
		}
		context = context[DotSize:]
		length := int(binary.BigEndian.Uint16(entries[DotSize:]))
		if length > ValueMax {
			return ErrValue
		}
		if EntryHeaderSize+length > len(entries) {
			return ErrLength
		}
		entries = entries[EntryHeaderSize+length:]
	}
	if count != r.EntryCount {
		return ErrLength
	}
	return nil
}

// mustCheck stops a broken record before it leaves: every receiver would drop it and the replicas
// would differ for ever.
func mustCheck(r *Record) {
	if err := CheckRecord(r); err != nil {
		panic("wire: record of key " + string(r.Name) + " is not valid: " + err.Error())
	}
}

// DeltaSize returns the payload size of r as a CRDT_DELTA.
func DeltaSize(r *Record) int {
	return DeltaHeadSize - EntryHeaderSize + len(r.Entries) + len(r.Context) + len(r.Name)
}

// AppendDelta appends the payload of a CRDT_DELTA (specification 3.5.4). It panics unless r is valid
// and has exactly one entry.
func AppendDelta(dst []byte, r *Record) []byte {
	mustCheck(r)
	if r.EntryCount != 1 {
		panic("wire: a delta of key " + string(r.Name) + " must have exactly one entry")
	}
	dst = binary.BigEndian.AppendUint64(dst, r.KeyHash)
	dst = append(dst, r.Entries[:DotSize]...)
	dst = append(dst, byte(len(r.Context)/DotSize), r.Entries[16], r.Entries[17], byte(len(r.Name)))
	dst = append(dst, r.Context...)
	dst = append(dst, r.Entries[EntryHeaderSize:]...)
	return append(dst, r.Name...)
}

// ParseDelta decodes the payload of a CRDT_DELTA into r, which is undefined after an error. Name and
// context point into the payload, the entry into r's own buffer, made at first use.
func ParseDelta(payload []byte, r *Record) error {
	if len(payload) < DeltaHeadSize {
		return ErrLength
	}
	contextSize := int(payload[24]) * DotSize
	valueLength := int(binary.BigEndian.Uint16(payload[25:]))
	if valueLength > ValueMax {
		return ErrValue
	}
	if len(payload) != DeltaHeadSize+contextSize+valueLength+int(payload[27]) {
		return ErrLength
	}
	valueAt := DeltaHeadSize + contextSize
	nameAt := valueAt + valueLength
	if r.entry == nil {
		r.entry = make([]byte, 0, EntryHeaderSize+ValueMax)
	}
	r.entry = append(r.entry[:0], payload[8:24]...)
	r.entry = append(r.entry, payload[25:27]...)
	r.entry = append(r.entry, payload[valueAt:nameAt]...)
	r.KeyHash = binary.BigEndian.Uint64(payload)
	r.Name = payload[nameAt:]
	r.EntryCount = 1
	r.Entries = r.entry
	r.Context = payload[DeltaHeadSize:valueAt:valueAt]
	return CheckRecord(r)
}

// RecordSize returns the size of r as one record of AE_STATE.
func RecordSize(r *Record) int {
	return RecordHeadSize + len(r.Entries) + len(r.Context) + len(r.Name)
}

// AppendStateRecord appends one record of an AE_STATE payload (specification 3.5.7). It panics unless
// r is valid. A message holds as many records as fit the payload.
func AppendStateRecord(dst []byte, r *Record) []byte {
	mustCheck(r)
	dst = binary.BigEndian.AppendUint64(dst, r.KeyHash)
	dst = append(dst, byte(r.EntryCount), byte(len(r.Context)/DotSize), byte(len(r.Name)))
	dst = append(dst, r.Entries...)
	dst = append(dst, r.Context...)
	return append(dst, r.Name...)
}

// NextStateRecord takes the first record off an AE_STATE payload that is not yet empty. r points
// into the payload and is undefined after an error.
func NextStateRecord(payload []byte, r *Record) (rest []byte, err error) {
	if len(payload) < RecordHeadSize {
		return nil, ErrLength
	}
	count := int(payload[8])
	if count > FrameContextMax {
		return nil, ErrEntry
	}
	contextAt := RecordHeadSize
	for range count {
		if len(payload) < contextAt+EntryHeaderSize {
			return nil, ErrLength
		}
		contextAt += EntryHeaderSize + int(binary.BigEndian.Uint16(payload[contextAt+DotSize:]))
	}
	nameAt := contextAt + int(payload[9])*DotSize
	end := nameAt + int(payload[10])
	if end > len(payload) {
		return nil, ErrLength
	}
	r.KeyHash = binary.BigEndian.Uint64(payload)
	r.Name = payload[nameAt:end:end]
	r.EntryCount = count
	r.Entries = payload[RecordHeadSize:contextAt:contextAt]
	r.Context = payload[contextAt:nameAt:nameAt]
	return payload[end:], CheckRecord(r)
}

// CheckState checks a whole AE_STATE payload and counts its records, so that a receiver can reject a
// malformed message before it has applied half of it.
func CheckState(payload []byte) (records int, err error) {
	if len(payload) == 0 {
		return 0, ErrLength
	}
	var r Record
	for ; len(payload) > 0; records++ {
		if payload, err = NextStateRecord(payload, &r); err != nil {
			return 0, err
		}
	}
	return records, nil
}

// AppendDeltaAck appends the payload of CRDT_DELTA_ACK. For an AE_STATE message keyHash is that of
// its first record; what is acknowledged is the nonce of the header.
func AppendDeltaAck(dst []byte, keyHash uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, keyHash)
}

// ParseDeltaAck decodes the payload of CRDT_DELTA_ACK.
func ParseDeltaAck(payload []byte) (keyHash uint64, err error) {
	if len(payload) != DeltaAckSize {
		return 0, ErrLength
	}
	return binary.BigEndian.Uint64(payload), nil
}
