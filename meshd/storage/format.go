package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every file but the log's entries is an envelope:
//
//	offset  0       4     5        6         8       12
//	        "clld"  kind  version  reserved  length  crc32c   payload
//
// The checksum covers the twelve bytes before it and the payload.
const (
	envelopeMagic = "clld"
	envelopeSize  = 16
	formatVersion = 1
)

// Kinds of files.
const (
	kindIdentity    = 1
	kindIncarnation = 2
	kindCluster     = 3
	kindPeers       = 4
	kindSnapshot    = 5
	kindLog         = 6
	kindJoining     = 7
	kindInventory   = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is wrapped by errors about content that does not fit its checksum or form.
var ErrDamaged = errors.New("content is damaged")

// NewerError says that a later version of the program has written a file.
type NewerError struct {
	Name    string
	Version int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("storage: %s has format version %d, this program knows up to %d: run the newer program, "+
		"or move the state directory away to start as a new cell", e.Name, e.Version, formatVersion)
}

// appendEnvelope appends an envelope around the payload's parts.
func appendEnvelope(dst []byte, kind byte, parts ...[]byte) []byte {
	start, length := len(dst), 0
	for _, part := range parts {
		length += len(part)
	}
	dst = append(dst, envelopeMagic...)
	dst = append(dst, kind, formatVersion, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(length))
	sum := crc32.Update(0, castagnoli, dst[start:])
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	dst = binary.BigEndian.AppendUint32(dst, sum)
	for _, part := range parts {
		dst = append(dst, part...)
	}
	return dst
}

// openEnvelope returns the payload, which points into data, and what follows the envelope.
func openEnvelope(data []byte, name string, kind byte) (payload, rest []byte, err error) {
	if len(data) < envelopeSize || string(data[:4]) != envelopeMagic || data[4] != kind {
		return nil, nil, fmt.Errorf("storage: %s: %w: no header", name, ErrDamaged)
	}
	if data[5] > formatVersion {
		return nil, nil, &NewerError{name, int(data[5])}
	}
	length := int64(binary.BigEndian.Uint32(data[8:]))
	if length > int64(len(data)-envelopeSize) {
		return nil, nil, fmt.Errorf("storage: %s: %w: %d bytes of %d",
			name, ErrDamaged, len(data)-envelopeSize, length)
	}
	payload, rest = data[envelopeSize:envelopeSize+length], data[envelopeSize+length:]
	sum := crc32.Update(crc32.Checksum(data[:12], castagnoli), castagnoli, payload)
	if data[5] != formatVersion || data[6] != 0 || data[7] != 0 || sum != binary.BigEndian.Uint32(data[12:]) {
		return nil, nil, fmt.Errorf("storage: %s: %w: wrong checksum", name, ErrDamaged)
	}
	return payload, rest, nil
}

// parseFile opens an envelope that must be the whole file.
func parseFile(data []byte, name string, kind byte) ([]byte, error) {
	payload, rest, err := openEnvelope(data, name, kind)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("storage: %s: %w: %d bytes too many", name, ErrDamaged, len(rest))
	}
	return payload, err
}

// A log entry is length 4 of the record, crc32c 4, sequence 8, record. The checksum covers length,
// sequence and record, so that a block of zeros is no entry.
const entryHeaderSize = 16

func appendEntry(dst []byte, sequence uint64, record []byte) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(record)))
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, sequence)
	dst = append(dst, record...)
	binary.BigEndian.PutUint32(dst[start+4:], entrySum(dst[start:]))
	return dst
}

func entrySum(entry []byte) uint32 {
	return crc32.Update(crc32.Checksum(entry[:4], castagnoli), castagnoli, entry[8:])
}

// nextEntry takes the first entry off data. ok is false at the end of what is readable.
func nextEntry(data []byte) (sequence uint64, record, rest []byte, ok bool) {
	if len(data) < entryHeaderSize {
		return 0, nil, nil, false
	}
	length := int64(binary.BigEndian.Uint32(data))
	if length == 0 || length > RecordMax || length > int64(len(data)-entryHeaderSize) {
		return 0, nil, nil, false
	}
	entry := data[:entryHeaderSize+length]
	if entrySum(entry) != binary.BigEndian.Uint32(data[4:]) {
		return 0, nil, nil, false
	}
	return binary.BigEndian.Uint64(data[8:]), entry[entryHeaderSize:], data[len(entry):], true
}
