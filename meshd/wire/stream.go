package wire

import "encoding/binary"

// StreamType says what a stream carries (SPEC-REVIEW Part 1 section 16).
type StreamType uint8

// Types of streams.
const (
	StreamLogs    StreamType = 1
	StreamExec    StreamType = 2
	StreamMetrics StreamType = 3
	StreamVolume  StreamType = 4
	StreamInvoke  StreamType = 5 // a call of a Wasm function on a cell that has an instance (F144)
	StreamCopy    StreamType = 6 // files in and out of an instance
	StreamBlob    StreamType = 7 // a blob of an image, for a cell that pulls it (F76)
)

// Sizes of the stream messages. StreamDataMax is the payload of one chunk beside an authentication
// trailer.
const (
	StreamDataMax      = SealedPayloadMax - streamDataHeadSize // 1140
	StreamResetSize    = 5                                     // STREAM_CLOSE with RST
	StreamFinSize      = 25                                    // STREAM_CLOSE with FIN
	RelayOfferSize     = 20
	VolumeRequestSize  = 16
	streamOpenHeadSize = 14
	streamDataHeadSize = 10
	streamAckHeadSize  = 20
)

// Extension tags of STREAM_OPEN and STREAM_ACK.
const (
	ExtensionHops uint8 = 1 // 1 byte: hops so far, refused above 8 (F150)
	ExtensionKey  uint8 = 2 // 32 bytes: X25519 key of the end-to-end encryption (F17)
	// ExtensionGrant carries an operator's grant for exec, see package ipc/grant (F137).
	ExtensionGrant uint8 = 3
	// ExtensionSelective of STREAM_ACK goes on where Selective ends: bit i of byte j says that
	// Sequence+66+8*j+i has arrived (F151).
	ExtensionSelective uint8 = 4
	// ExtensionCipher, 1 byte, of the end-to-end encryption: in STREAM_OPEN bit 0 says that the sender takes
	// AES-256-GCM, in STREAM_ACK 0 that it is used. Otherwise it is ChaCha20-Poly1305.
	ExtensionCipher uint8 = 5
)

// NextExtension takes the first extension (tag 1, length 1, bytes) off raw; ok is false when raw is
// empty or malformed. Unknown tags are to be skipped.
func NextExtension(raw []byte) (tag uint8, value, rest []byte, ok bool) {
	if len(raw) < 2 || len(raw) < 2+int(raw[1]) {
		return 0, nil, nil, false
	}
	end := 2 + int(raw[1])
	return raw[0], raw[2:end:end], raw[end:], true
}

// AppendExtension appends one extension; tags ascend and do not repeat within a message.
func AppendExtension(dst []byte, tag uint8, value []byte) []byte {
	if len(value) > 255 {
		panic("wire: extension longer than 255 bytes")
	}
	return append(append(dst, tag, byte(len(value))), value...)
}

func checkExtensions(raw []byte) error {
	for last := -1; len(raw) > 0; {
		tag, _, rest, ok := NextExtension(raw)
		if !ok || int(tag) <= last {
			return ErrExtension
		}
		last, raw = int(tag), rest
	}
	return nil
}

// StreamOpen is the payload of STREAM_OPEN. A type that the target does not know is no parse error:
// the target has to refuse it audibly (F152).
type StreamOpen struct {
	Stream     uint32
	Target     CellID
	Type       StreamType // not 0
	Name       []byte     // key of the workload or volume
	Extensions []byte     // see NextExtension; together with Name within the payload
}

func (s StreamOpen) check() error {
	switch {
	case !s.Target.Valid():
		return ErrCell
	case s.Type == 0:
		return ErrStream
	case !ValidName(s.Name):
		return ErrName
	case streamOpenHeadSize+len(s.Name)+len(s.Extensions) > PayloadMax:
		return ErrLength
	}
	return checkExtensions(s.Extensions)
}

// AppendStreamOpen appends the payload of STREAM_OPEN. It panics on what no cell accepts.
func AppendStreamOpen(dst []byte, s StreamOpen) []byte {
	if err := s.check(); err != nil {
		panic(err.Error())
	}
	dst = binary.BigEndian.AppendUint32(dst, s.Stream)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Target))
	dst = append(dst, byte(s.Type), byte(len(s.Name)))
	dst = append(dst, s.Name...)
	return append(dst, s.Extensions...)
}

// ParseStreamOpen decodes the payload of STREAM_OPEN.
func ParseStreamOpen(payload []byte) (StreamOpen, error) {
	if len(payload) < streamOpenHeadSize {
		return StreamOpen{}, ErrLength
	}
	end := streamOpenHeadSize + int(payload[13])
	if end > len(payload) {
		return StreamOpen{}, ErrLength
	}
	s := StreamOpen{
		Stream:     binary.BigEndian.Uint32(payload),
		Target:     CellID(binary.BigEndian.Uint64(payload[4:])),
		Type:       StreamType(payload[12]),
		Name:       payload[streamOpenHeadSize:end:end],
		Extensions: payload[end:],
	}
	if err := s.check(); err != nil {
		return StreamOpen{}, err
	}
	return s, nil
}

// StreamData is the payload of STREAM_DATA and VOL_REPL_CHUNK. Sequences start at 1 (F152).
type StreamData struct {
	Stream, Sequence uint32
	Data             []byte
}

// AppendStreamData appends the payload of STREAM_DATA or VOL_REPL_CHUNK.
func AppendStreamData(dst []byte, s StreamData) []byte {
	if s.Sequence == 0 || streamDataHeadSize+len(s.Data) > PayloadMax {
		panic("wire: stream chunk with sequence 0 or too long")
	}
	dst = binary.BigEndian.AppendUint32(dst, s.Stream)
	dst = binary.BigEndian.AppendUint32(dst, s.Sequence)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s.Data)))
	return append(dst, s.Data...)
}

// ParseStreamData decodes the payload of STREAM_DATA or VOL_REPL_CHUNK.
func ParseStreamData(payload []byte) (StreamData, error) {
	if len(payload) < streamDataHeadSize || len(payload) > PayloadMax ||
		len(payload) != streamDataHeadSize+int(binary.BigEndian.Uint16(payload[8:])) {
		return StreamData{}, ErrLength
	}
	s := StreamData{
		Stream:   binary.BigEndian.Uint32(payload),
		Sequence: binary.BigEndian.Uint32(payload[4:]),
		Data:     payload[streamDataHeadSize:],
	}
	if s.Sequence == 0 {
		return StreamData{}, ErrStream
	}
	return s, nil
}

// StreamClose is the payload of STREAM_CLOSE and VOL_REPL_DONE: an orderly end of this direction, or
// with Reset the end of the stream at once (F152). On the wire byte 4 is FIN (bit 0) or RST (bit 1)
// and the reason in bits 2 to 7. A FIN goes on with the sequence number that it occupies and a tag with
// which the two ends know that no relay has made it up; a RST has neither.
type StreamClose struct {
	Stream   uint32
	Reset    bool
	Reason   uint8 // 0..StreamReasonMax
	Sequence uint32
	Tag      [StreamTagSize]byte
}

// StreamReasonMax is the greatest reason that fits.
const StreamReasonMax = 63

// StreamTagSize is the size of the tag of the end-to-end encryption (F17).
const StreamTagSize = 16

const (
	streamFin = 1
	streamRst = 2
)

// AppendStreamClose appends the payload of STREAM_CLOSE or VOL_REPL_DONE.
func AppendStreamClose(dst []byte, s StreamClose) []byte {
	if s.Reason > StreamReasonMax || s.Reset != (s.Sequence == 0) {
		panic("wire: reason of a stream close above 63, or a FIN without sequence")
	}
	dst = binary.BigEndian.AppendUint32(dst, s.Stream)
	if s.Reset {
		return append(dst, s.Reason<<2|streamRst)
	}
	dst = append(dst, s.Reason<<2|streamFin)
	return append(binary.BigEndian.AppendUint32(dst, s.Sequence), s.Tag[:]...)
}

// ParseStreamClose decodes the payload of STREAM_CLOSE or VOL_REPL_DONE.
func ParseStreamClose(payload []byte) (StreamClose, error) {
	if len(payload) != StreamResetSize && len(payload) != StreamFinSize {
		return StreamClose{}, ErrLength
	}
	s := StreamClose{Stream: binary.BigEndian.Uint32(payload), Reason: payload[4] >> 2}
	switch payload[4] & (streamFin | streamRst) {
	case streamRst:
		s.Reset = true
		if len(payload) != StreamResetSize {
			return StreamClose{}, ErrLength
		}
	case streamFin:
		if len(payload) != StreamFinSize {
			return StreamClose{}, ErrLength
		}
		s.Sequence = binary.BigEndian.Uint32(payload[5:])
		copy(s.Tag[:], payload[9:])
		if s.Sequence == 0 {
			return StreamClose{}, ErrStream
		}
	default:
		return StreamClose{}, ErrStream
	}
	return s, nil
}

// StreamAck is the payload of STREAM_ACK. Sequence 0 accepts the stream (F152).
type StreamAck struct {
	Stream     uint32
	Sequence   uint32 // everything up to here has arrived
	Credit     uint32 // chunks the receiver takes beyond Sequence (F151)
	Selective  uint64 // bit i: Sequence+2+i has arrived too
	Extensions []byte
}

// AppendStreamAck appends the payload of STREAM_ACK.
func AppendStreamAck(dst []byte, s StreamAck) []byte {
	if err := checkExtensions(s.Extensions); err != nil || streamAckHeadSize+len(s.Extensions) > PayloadMax {
		panic("wire: malformed extensions of a stream acknowledgement")
	}
	dst = binary.BigEndian.AppendUint32(dst, s.Stream)
	dst = binary.BigEndian.AppendUint32(dst, s.Sequence)
	dst = binary.BigEndian.AppendUint32(dst, s.Credit)
	dst = binary.BigEndian.AppendUint64(dst, s.Selective)
	return append(dst, s.Extensions...)
}

// ParseStreamAck decodes the payload of STREAM_ACK.
func ParseStreamAck(payload []byte) (StreamAck, error) {
	if len(payload) < streamAckHeadSize || len(payload) > PayloadMax {
		return StreamAck{}, ErrLength
	}
	s := StreamAck{
		Stream:     binary.BigEndian.Uint32(payload),
		Sequence:   binary.BigEndian.Uint32(payload[4:]),
		Credit:     binary.BigEndian.Uint32(payload[8:]),
		Selective:  binary.BigEndian.Uint64(payload[12:]),
		Extensions: payload[streamAckHeadSize:],
	}
	if err := checkExtensions(s.Extensions); err != nil {
		return StreamAck{}, err
	}
	return s, nil
}

// RelayOffer is the payload of RELAY_OFFER, advisory only (F154).
type RelayOffer struct {
	Stream         uint32
	Source, Target CellID
}

// AppendRelayOffer appends the payload of RELAY_OFFER.
func AppendRelayOffer(dst []byte, r RelayOffer) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.Stream)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Source))
	return binary.BigEndian.AppendUint64(dst, uint64(r.Target))
}

// ParseRelayOffer decodes the payload of RELAY_OFFER.
func ParseRelayOffer(payload []byte) (RelayOffer, error) {
	if len(payload) != RelayOfferSize {
		return RelayOffer{}, ErrLength
	}
	r := RelayOffer{
		Stream: binary.BigEndian.Uint32(payload),
		Source: CellID(binary.BigEndian.Uint64(payload[4:])),
		Target: CellID(binary.BigEndian.Uint64(payload[12:])),
	}
	if !r.Source.Valid() || !r.Target.Valid() {
		return RelayOffer{}, ErrCell
	}
	return r, nil
}

// VolumeRequest is the payload of VOL_REPL_REQ. The header's nonce of all VOL_REPL messages is the id
// of the stream they belong to (F24).
type VolumeRequest struct {
	VolumeHash uint64 // key hash of the volume's meta key
	Generation uint64 // the follower's; 0 asks for a full snapshot
}

// AppendVolumeRequest appends the payload of VOL_REPL_REQ.
func AppendVolumeRequest(dst []byte, v VolumeRequest) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, v.VolumeHash), v.Generation)
}

// ParseVolumeRequest decodes the payload of VOL_REPL_REQ.
func ParseVolumeRequest(payload []byte) (VolumeRequest, error) {
	if len(payload) != VolumeRequestSize {
		return VolumeRequest{}, ErrLength
	}
	return VolumeRequest{binary.BigEndian.Uint64(payload), binary.BigEndian.Uint64(payload[8:])}, nil
}
