package state

import (
	"encoding/binary"
	"errors"
)

// Values below are lists of (tag 1, length 1, bytes), tags ascending; a tag may repeat. Unknown tags
// are skipped, so that later versions may add facts without breaking earlier readers (D12).

const (
	valueVersion = 1
	tlvLengthMax = 255
)

var errTLV = errors.New("state: malformed value")

func appendTLV(dst []byte, tag byte, value []byte) []byte {
	if len(value) > tlvLengthMax {
		value = value[:tlvLengthMax]
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

// eachTLV calls f for every record behind the version byte.
func eachTLV(value []byte, f func(tag byte, field []byte) error) error {
	if len(value) < 1 || value[0] != valueVersion {
		return errTLV
	}
	last := byte(0)
	for rest := value[1:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) || rest[0] < last {
			return errTLV
		}
		last = rest[0]
		if err := f(rest[0], rest[2:2+int(rest[1])]); err != nil {
			return err
		}
		rest = rest[2+int(rest[1]):]
	}
	return nil
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
