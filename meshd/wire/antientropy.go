package wire

import "encoding/binary"

// Bounds of the anti-entropy messages beside an authentication trailer (F44).
const (
	BeginVectorMax  = (SealedPayloadMax - beginHeadSize) / DotSize  // 71
	VectorMax       = (SealedPayloadMax - vectorHeadSize) / DotSize // 71
	MerkleRangesMax = SealedPayloadMax / MerkleRangeSize            // 287
	MerkleLevelsMax = 7                                             // 128 hashes in one response
	MerkleDepth     = 16                                            // leaf = top 16 bits of the key hash

	MerkleRangeSize    = 4
	beginHeadSize      = 13
	vectorHeadSize     = 5
	merkleHeadSize     = 5
	beginVectorOpenMax = (PayloadMax - beginHeadSize) / DotSize // 73
)

// Begin is the payload of AE_BEGIN. Vector is the first part of the stability vector (F45), at most
// BeginVectorMax dots; the rest follows in AE_VV messages.
type Begin struct {
	KeyCount uint32
	Root     uint64 // of the Merkle tree
	Vector   []byte // dots as CheckVector wants them
}

// AppendBegin appends the payload of AE_BEGIN.
func AppendBegin(dst []byte, b Begin) []byte {
	mustVector(b.Vector, BeginVectorMax)
	dst = binary.BigEndian.AppendUint32(dst, b.KeyCount)
	dst = binary.BigEndian.AppendUint64(dst, b.Root)
	dst = append(dst, byte(len(b.Vector)/DotSize))
	return append(dst, b.Vector...)
}

// mustVector holds a vector to what its receiver will demand.
func mustVector(vector []byte, dotsMax int) {
	if len(vector) > dotsMax*DotSize {
		panic("wire: vector longer than its message holds")
	}
	if err := CheckVector(vector); err != nil {
		panic(err.Error())
	}
}

// ParseBegin decodes the payload of AE_BEGIN.
func ParseBegin(payload []byte) (Begin, error) {
	if len(payload) < beginHeadSize || payload[12] > beginVectorOpenMax ||
		len(payload) != beginHeadSize+int(payload[12])*DotSize {
		return Begin{}, ErrLength
	}
	b := Begin{
		KeyCount: binary.BigEndian.Uint32(payload),
		Root:     binary.BigEndian.Uint64(payload[4:]),
		Vector:   payload[beginHeadSize:],
	}
	if err := CheckVector(b.Vector); err != nil {
		return Begin{}, err
	}
	return b, nil
}

// Vector is the payload of AE_VV: dots Offset.. of a stability vector of Total dots (F44). Part may be
// empty only where Offset equals Total, which says that AE_BEGIN had it all.
type Vector struct {
	Total, Offset uint16
	Part          []byte // at most VectorMax dots
}

func (v Vector) check() error {
	count := len(v.Part) / DotSize
	if int(v.Offset)+count > int(v.Total) || count == 0 && v.Offset != v.Total {
		return ErrLength
	}
	return CheckVector(v.Part)
}

// AppendVector appends the payload of AE_VV.
func AppendVector(dst []byte, v Vector) []byte {
	mustVector(v.Part, VectorMax)
	if err := v.check(); err != nil {
		panic(err.Error())
	}
	dst = binary.BigEndian.AppendUint16(dst, v.Total)
	dst = binary.BigEndian.AppendUint16(dst, v.Offset)
	dst = append(dst, byte(len(v.Part)/DotSize))
	return append(dst, v.Part...)
}

// ParseVector decodes the payload of AE_VV.
func ParseVector(payload []byte) (Vector, error) {
	if len(payload) < vectorHeadSize || payload[4] > VectorMax ||
		len(payload) != vectorHeadSize+int(payload[4])*DotSize {
		return Vector{}, ErrLength
	}
	v := Vector{
		Total:  binary.BigEndian.Uint16(payload),
		Offset: binary.BigEndian.Uint16(payload[2:]),
		Part:   payload[vectorHeadSize:],
	}
	if err := v.check(); err != nil {
		return Vector{}, err
	}
	return v, nil
}

// MerkleRange names the 1<<Levels nodes that lie Levels below the node (Depth, Prefix), where Prefix
// is the top Depth bits of the key hash, right-aligned. Depth+Levels <= MerkleDepth, Levels <=
// MerkleLevelsMax.
type MerkleRange struct {
	Depth  uint8
	Prefix uint16
	Levels uint8
}

// Check says whether m lies in the tree and fits one response.
func (m MerkleRange) Check() error {
	if m.Depth > MerkleDepth || m.Levels > MerkleLevelsMax || m.Depth+m.Levels > MerkleDepth ||
		uint32(m.Prefix)>>m.Depth != 0 {
		return ErrRange
	}
	return nil
}

// Width returns the number of nodes in the range.
func (m MerkleRange) Width() int { return 1 << m.Levels }

func appendRange(dst []byte, m MerkleRange) []byte {
	if err := m.Check(); err != nil {
		panic(err.Error())
	}
	dst = append(dst, m.Depth)
	dst = binary.BigEndian.AppendUint16(dst, m.Prefix)
	return append(dst, m.Levels)
}

func rangeAt(raw []byte) MerkleRange {
	return MerkleRange{Depth: raw[0], Prefix: binary.BigEndian.Uint16(raw[1:]), Levels: raw[3]}
}

// AppendMerkleReq appends one range to the payload of AE_MERKLE_REQ; call it once per range, at most
// MerkleRangesMax times.
func AppendMerkleReq(dst []byte, m MerkleRange) []byte { return appendRange(dst, m) }

// CheckMerkleReq checks a whole AE_MERKLE_REQ payload and counts its ranges, at least one.
func CheckMerkleReq(payload []byte) (ranges int, err error) {
	if len(payload) == 0 || len(payload)%MerkleRangeSize != 0 || len(payload) > PayloadMax {
		return 0, ErrLength
	}
	for ; len(payload) > 0; payload = payload[MerkleRangeSize:] {
		if err := rangeAt(payload).Check(); err != nil {
			return 0, err
		}
		ranges++
	}
	return ranges, nil
}

// NextMerkleReq takes the first range off an AE_MERKLE_REQ payload that is not yet empty.
func NextMerkleReq(payload []byte) (m MerkleRange, rest []byte, err error) {
	if len(payload) < MerkleRangeSize {
		return MerkleRange{}, nil, ErrLength
	}
	m = rangeAt(payload)
	if err := m.Check(); err != nil {
		return MerkleRange{}, nil, err
	}
	return m, payload[MerkleRangeSize:], nil
}

// MerkleHashes is the payload of AE_MERKLE_RESP, checked by ParseMerkleResp.
type MerkleHashes struct {
	Range MerkleRange
	raw   []byte
}

// Len returns the number of hashes, which is Range.Width().
func (h MerkleHashes) Len() int { return len(h.raw) / 8 }

// At returns hash i, 0 <= i < Len, of the node (Depth+Levels, Prefix<<Levels | i).
func (h MerkleHashes) At(i int) uint64 { return binary.BigEndian.Uint64(h.raw[i*8:]) }

// AppendMerkleResp appends the payload of AE_MERKLE_RESP. It panics unless there is one hash per node.
func AppendMerkleResp(dst []byte, m MerkleRange, hashes []uint64) []byte {
	dst = appendRange(dst, m)
	if len(hashes) != m.Width() {
		panic("wire: merkle response does not cover its range")
	}
	dst = append(dst, byte(len(hashes)))
	for _, hash := range hashes {
		dst = binary.BigEndian.AppendUint64(dst, hash)
	}
	return dst
}

// ParseMerkleResp decodes the payload of AE_MERKLE_RESP.
func ParseMerkleResp(payload []byte) (MerkleHashes, error) {
	if len(payload) < merkleHeadSize {
		return MerkleHashes{}, ErrLength
	}
	m := rangeAt(payload)
	if err := m.Check(); err != nil {
		return MerkleHashes{}, err
	}
	if int(payload[4]) != m.Width() || len(payload) != merkleHeadSize+8*m.Width() {
		return MerkleHashes{}, ErrLength
	}
	return MerkleHashes{m, payload[merkleHeadSize:]}, nil
}
