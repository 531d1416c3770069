package uds

import (
	"encoding/binary"
	"errors"
)

// ExpectAny makes a write unconditional; ExpectAbsent demands that the key holds nothing (F55).
// Any other number is the digest of the dot set that the writer saw.
const (
	ExpectAny    uint64 = 0
	ExpectAbsent uint64 = 1
)

// WriteRequest is the payload of Set, Delete and Resolve: expect u64, key length u8, key, value.
type WriteRequest struct {
	Expect uint64
	Key    string
	Value  []byte
}

var errWrite = errors.New("uds: malformed write request")

// Append encodes w. The key must have at most 255 bytes.
func (w WriteRequest) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, w.Expect)
	dst = append(dst, byte(len(w.Key)))
	dst = append(dst, w.Key...)
	return append(dst, w.Value...)
}

// ParseWriteRequest decodes what Append wrote; Value points into payload.
func ParseWriteRequest(payload []byte) (WriteRequest, error) {
	if len(payload) < 9 || len(payload) < 9+int(payload[8]) {
		return WriteRequest{}, errWrite
	}
	end := 9 + int(payload[8])
	return WriteRequest{binary.BigEndian.Uint64(payload), string(payload[9:end]), payload[end:]}, nil
}
