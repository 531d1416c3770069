package uds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Errors of framing.
var (
	// ErrFrameTooLarge is returned for a frame above its bound, before anything of it is read.
	ErrFrameTooLarge = errors.New("uds: frame is larger than allowed")
	// ErrPath is wrapped by errors about socket paths that cannot work.
	ErrPath = errors.New("uds: unusable socket path")
)

// payloadLimit is what the three length bytes can say.
const payloadLimit = 1<<24 - 1

// AppendFrame appends one frame. It panics on a payload that no length field can hold.
func AppendFrame(dst []byte, code byte, payload []byte) []byte {
	if len(payload) > payloadLimit {
		panic(fmt.Sprintf("uds: frame of %d bytes", len(payload)))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(code)<<24|uint32(len(payload)))
	return append(dst, payload...)
}

// ParseFrame takes the first frame off data; payload points into it. io.ErrUnexpectedEOF means that
// more bytes are needed.
func ParseFrame(data []byte, payloadMax int) (code byte, payload, rest []byte, err error) {
	if len(data) < FrameHeaderSize {
		return 0, nil, data, io.ErrUnexpectedEOF
	}
	code, length := parseHeader(data)
	if length > payloadMax {
		return code, nil, data, ErrFrameTooLarge
	}
	if len(data) < FrameHeaderSize+length {
		return code, nil, data, io.ErrUnexpectedEOF
	}
	end := FrameHeaderSize + length
	return code, data[FrameHeaderSize:end:end], data[end:], nil
}

func parseHeader(header []byte) (code byte, length int) {
	word := binary.BigEndian.Uint32(header)
	return byte(word >> 24), int(word & payloadLimit)
}

// ReadFrame reads one frame, using buffer's capacity for the payload if it suffices. The payload
// grows as bytes arrive, not by the length that was announced. io.EOF means that the other side has
// closed between frames, io.ErrUnexpectedEOF in the middle of one.
func ReadFrame(r io.Reader, payloadMax int, buffer []byte) (code byte, payload []byte, err error) {
	var header [FrameHeaderSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	return readPayload(r, header, payloadMax, buffer)
}

func readPayload(r io.Reader, header [FrameHeaderSize]byte, payloadMax int, buffer []byte) (
	byte, []byte, error,
) {
	code, length := parseHeader(header[:])
	if length > payloadMax {
		return code, nil, ErrFrameTooLarge
	}
	payload := buffer[:0]
	for len(payload) < length {
		const step = 16 << 10
		want := min(length-len(payload), step)
		if spare := cap(payload) - len(payload); spare < want {
			payload = append(payload, make([]byte, want)...)[:len(payload)]
		}
		n, err := io.ReadFull(r, payload[len(payload):len(payload)+want])
		payload = payload[:len(payload)+n]
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return code, nil, err
		}
	}
	return code, payload, nil
}

// WriteFrame writes one frame with a single Write.
func WriteFrame(w io.Writer, code byte, payload []byte) error {
	_, err := w.Write(AppendFrame(make([]byte, 0, FrameHeaderSize+len(payload)), code, payload))
	return err
}

// AppendReply appends the frames of a successful reply: chunks of at most ReplyChunkMax bytes and an
// empty one at the end.
func AppendReply(dst, payload []byte) []byte {
	for len(payload) > 0 {
		n := min(len(payload), ReplyChunkMax)
		dst = AppendFrame(dst, byte(OK), payload[:n])
		payload = payload[n:]
	}
	return AppendFrame(dst, byte(OK), nil)
}

// AppendError appends an ERROR frame; the text is cut to 4 KiB.
func AppendError(dst []byte, errno uint16, text string) []byte {
	payload := binary.BigEndian.AppendUint16(nil, errno)
	return AppendFrame(dst, byte(Error), append(payload, text[:min(len(text), 4<<10)]...))
}

// PathMax is the longest socket path that the kernel takes.
const PathMax = 107

// CheckPath refuses paths that cannot be bound or that the file system's permissions do not protect:
// abstract sockets belong to no directory (F135), and the kernel cuts long names (F136).
func CheckPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("%w: it is empty: set COLLOID_DIR or --socket", ErrPath)
	case path[0] == '@' || path[0] == 0:
		return fmt.Errorf("%w %q: abstract sockets have no permissions, use a path of the file system",
			ErrPath, path)
	case len(path) > PathMax:
		return fmt.Errorf("%w %s: %d bytes, the kernel takes %d: set COLLOID_DIR to a shorter path",
			ErrPath, path, len(path), PathMax)
	case path[0] != '/' && path[0] != '.':
		return fmt.Errorf("%w %s: write it as an absolute path, or begin with ./", ErrPath, path)
	}
	for i := range len(path) {
		if path[i] == 0 {
			return fmt.Errorf("%w %q: it contains a zero byte", ErrPath, path)
		}
	}
	return nil
}
