package state

import (
	"encoding/binary"
	"errors"
	"fmt"

	"colloid.net/meshd/wire"
)

// Values are a version byte and a list of (tag 1, length 1, bytes), tags ascending. Only the tags of
// lists repeat. Unknown tags are skipped, so that later versions may add facts without breaking
// earlier readers (D12); a later version that adds what nobody may overlook uses a tag with the high bit,
// which makes the whole value unreadable to those that do not know it. Everything else that a writer of
// this version would not produce is an error.

const (
	valueVersion = 1
	tlvLengthMax = 255
	tagCritical  = 0x80 // bit of the tags that must be understood
)

var errTLV = errors.New("state: malformed value")

// ErrCritical: a value holds a field that must be understood and that this version does not know (D12).
var ErrCritical = errors.New("state: a field that must be understood is not known to this version")

func appendTLV(dst []byte, tag byte, value []byte) []byte {
	if len(value) > tlvLengthMax {
		panic("state: field longer than 255 bytes")
	}
	dst = append(dst, tag, byte(len(value)))
	return append(dst, value...)
}

func appendTLV64(dst []byte, tag byte, value uint64) []byte {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], value)
	return appendTLV(dst, tag, raw[:])
}

func appendTLV32(dst []byte, tag byte, value uint32) []byte {
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], value)
	return appendTLV(dst, tag, raw[:])
}

// tags is a set of tags below 32.
type tags uint32

func (s tags) has(tag byte) bool { return tag < 32 && s>>tag&1 != 0 }

// eachTLV calls f for every record behind the version byte. Of the tags in single one record at most
// may be there.
func eachTLV(value []byte, single tags, f func(tag byte, field []byte) error) error {
	if len(value) < 1 || len(value) > wire.ValueMax || value[0] != valueVersion {
		return errTLV
	}
	last := -1
	for rest := value[1:]; len(rest) > 0; {
		if len(rest) < 2 {
			return errTLV
		}
		tag, end := rest[0], 2+int(rest[1])
		if len(rest) < end || int(tag) < last || int(tag) == last && single.has(tag) {
			return errTLV
		}
		if tag&tagCritical != 0 {
			return fmt.Errorf("%w: tag %d", ErrCritical, tag)
		}
		if err := f(tag, rest[2:end]); err != nil {
			return err
		}
		last, rest = int(tag), rest[end:]
	}
	return nil
}

// textOf decodes a text for people. Only printable ASCII is accepted: these texts end up on terminals.
func textOf(field []byte) (string, error) {
	for _, b := range field {
		if !isPrintable(b) {
			return "", errTLV
		}
	}
	return string(field), nil
}

func isPrintable(b byte) bool { return b >= 0x20 && b <= 0x7e }

// Printable cuts a text to limit bytes and replaces what is not printable ASCII by question marks. All texts
// for people that travel between cells have this form: they end up on terminals.
func Printable(text string, limit int) []byte {
	out := []byte(text[:min(len(text), limit)])
	for i, b := range out {
		if !isPrintable(b) {
			out[i] = '?'
		}
	}
	return out
}

func uint64Of(field []byte) (uint64, error) {
	if len(field) != 8 {
		return 0, errTLV
	}
	return binary.BigEndian.Uint64(field), nil
}

func uint32Of(field []byte) (uint32, error) {
	if len(field) != 4 {
		return 0, errTLV
	}
	return binary.BigEndian.Uint32(field), nil
}
