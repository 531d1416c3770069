// Package attach is what travels between the command line and an instance: in a stream between two cells,
// over the command socket before it, and over the descriptor that runnerd hands to meshd behind it. It is the
// same from end to end; cells on the way pass bytes on.
//
// The nouns. A frame is one byte kind, three bytes length, payload. The opener's first frame is a Request.
// The answer is Accepted or Failed; then come lines of logs, the input, output and exit of a program, or
// figures, by the kind of stream (package uds). A copy is a program that reads or writes a tar archive
// (package tree).
//
// Limits: PayloadMax bytes in a frame. Both ends take each other for hostile: what is not understood ends the
// stream.
package attach

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind is the first byte of a frame.
type Kind uint8

// Kinds of frames. The numbers are part of the protocol.
const (
	KindRequest  Kind = 1  // opener: Request (JSON)
	KindAccepted Kind = 2  // what was asked for begins; again, with a limit of input
	KindFailed   Kind = 3  // one sentence; nothing follows
	KindInput    Kind = 4  // opener: bytes for the program
	KindInputEnd Kind = 5  // opener: the program's input ends
	KindOutput   Kind = 6  // bytes of standard output, or of the terminal
	KindErrors   Kind = 7  // bytes of standard error
	KindResize   Kind = 8  // opener: rows u16, columns u16
	KindSignal   Kind = 9  // opener: number u8
	KindExit     Kind = 10 // Exit; nothing follows
	KindLine     Kind = 11 // Line of a log
	KindPresent  Kind = 12 // empty: what is kept has been sent, what follows is new
	KindUsage    Kind = 13 // Usage (JSON)
)

// Bounds.
const (
	HeaderSize = 4
	PayloadMax = 32 << 10
	// LineMax is the longest line of a log in one frame; longer ones are cut into several.
	LineMax = 16 << 10
	// SignalMax is the greatest number of a signal.
	SignalMax = 64
)

// ErrMalformed: bytes that are no frame, or a payload that does not fit its kind.
var ErrMalformed = errors.New("malformed frame")

// Append appends a frame. It panics if the payload is longer than PayloadMax: callers cut.
func Append(dst []byte, kind Kind, payload []byte) []byte {
	if len(payload) > PayloadMax {
		panic(fmt.Sprintf("attach: payload of %d bytes, at most %d fit", len(payload), PayloadMax))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(kind)<<24|uint32(len(payload)))
	return append(dst, payload...)
}

// Decode takes the first frame from a buffer; size is 0 while it is not complete. The payload points into the
// buffer.
func Decode(buffer []byte) (kind Kind, payload []byte, size int, err error) {
	if len(buffer) < HeaderSize {
		return 0, nil, 0, nil
	}
	head := binary.BigEndian.Uint32(buffer)
	kind, length := Kind(head>>24), int(head&0xffffff)
	if kind == 0 || kind > KindUsage || length > PayloadMax {
		return 0, nil, 0, fmt.Errorf("kind %d with %d bytes: %w", kind, length, ErrMalformed)
	}
	if len(buffer) < HeaderSize+length {
		return 0, nil, 0, nil
	}
	return kind, buffer[HeaderSize : HeaderSize+length], HeaderSize + length, nil
}

// Reader reads frames. It is for one goroutine.
type Reader struct{ from *bufio.Reader }

// NewReader reads frames from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{bufio.NewReaderSize(r, HeaderSize+PayloadMax)}
}

// Next returns the next frame, whose payload holds until the next call. io.EOF is an end between two frames.
func (r *Reader) Next() (Kind, []byte, error) {
	head, err := r.from.Peek(HeaderSize)
	if err != nil {
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	length := int(binary.BigEndian.Uint32(head) & 0xffffff)
	if length > PayloadMax {
		return 0, nil, ErrMalformed
	}
	whole, err := r.from.Peek(HeaderSize + length)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, nil, err
	}
	kind, payload, size, err := Decode(whole)
	if err != nil {
		return 0, nil, err
	}
	_, _ = r.from.Discard(size) // was peeked
	return kind, payload, nil
}

// Writer writes frames, from several goroutines.
type Writer struct {
	mutex  sync.Mutex
	to     io.Writer
	buffer []byte
}

// NewWriter writes frames to w, each in one call of Write.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w} }

// Write sends a payload as one frame, or as several if it does not fit one.
func (w *Writer) Write(kind Kind, payload []byte) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for {
		n := min(len(payload), PayloadMax)
		w.buffer = Append(w.buffer[:0], kind, payload[:n])
		if _, err := w.to.Write(w.buffer); err != nil {
			return err
		}
		if payload = payload[n:]; len(payload) == 0 {
			return nil
		}
	}
}

// Fail sends the last frame: one sentence.
func (w *Writer) Fail(reason string) error { return w.Write(KindFailed, []byte(cut(reason))) }

func cut(text string) string { return text[:min(len(text), 1<<10)] }
