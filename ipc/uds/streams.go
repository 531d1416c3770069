package uds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Streams over the command socket. A client sends STREAM_OPEN with a number of its choice, the handle, and
// from then on both sides send STREAM_DATA and STREAM_CLOSE with it; the daemon says STREAM_OPEN once the
// other end has accepted. Nothing is acknowledged: a side that does not read makes the other wait, all
// streams of the connection together, and nobody queues without bound.

// Kinds of streams, as on the wire (SPEC-REVIEW Part 1 section 16).
const (
	StreamLogs    uint8 = 1
	StreamExec    uint8 = 2
	StreamMetrics uint8 = 3
	StreamVolume  uint8 = 4
	StreamInvoke  uint8 = 5
	StreamCopy    uint8 = 6
)

// Bounds of streams over the command socket.
const (
	// ClientStreamsMax is how many streams one connection may carry.
	ClientStreamsMax = 64
	// StreamingClientsMax of ClientsMax connections may carry streams; the rest is kept for short commands.
	StreamingClientsMax = 96
	// StreamingReadersMax of them may belong to those who may only read, and StreamingUserMax to one user who
	// is neither root nor the daemon's.
	StreamingReadersMax = 48
	StreamingUserMax    = 32
	// StreamsReadersMax is how many streams those who may only read have together, StreamsReadersCellMax how
	// many of them to one cell: less than a cell takes, and than it takes of one other cell.
	StreamsReadersMax     = 96
	StreamsReadersCellMax = 48
	// StreamQueueMax is how many bytes towards a client wait in the daemon before it stops reading streams.
	StreamQueueMax = 256 << 10
	// StreamChunkMax is the most data in one frame of a client.
	StreamChunkMax = RequestMax - 4
)

// ErrMalformedStream: a frame about streams that is none.
var ErrMalformedStream = errors.New("malformed stream request")

// StreamOpen is the payload of CodeStreamOpen from the client.
type StreamOpen struct {
	Handle uint32
	Kind   uint8
	Cell   uint64 // 0: a cell that runs Name, this one first
	Name   string // key of the workload, such as spread.web
	Grant  []byte // of package ipc/grant, for exec; may be empty
}

// Append encodes the request.
func (s *StreamOpen) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, s.Handle)
	dst = append(dst, s.Kind)
	dst = binary.BigEndian.AppendUint64(dst, s.Cell)
	dst = append(append(dst, byte(len(s.Name))), s.Name...)
	return append(append(dst, byte(len(s.Grant))), s.Grant...)
}

// ParseStreamOpen decodes a request. The grant points into the payload.
func ParseStreamOpen(payload []byte) (StreamOpen, error) {
	if len(payload) < 15 {
		return StreamOpen{}, ErrMalformedStream
	}
	s := StreamOpen{
		Handle: binary.BigEndian.Uint32(payload), Kind: payload[4], Cell: binary.BigEndian.Uint64(payload[5:]),
	}
	rest := payload[13:]
	name := int(rest[0])
	if len(rest) < 2+name {
		return StreamOpen{}, ErrMalformedStream
	}
	s.Name = string(rest[1 : 1+name])
	rest = rest[1+name:]
	if len(rest) != 1+int(rest[0]) || s.Kind == 0 || name == 0 {
		return StreamOpen{}, ErrMalformedStream
	}
	s.Grant = rest[1:]
	return s, nil
}

// Flags of STREAM_CLOSE.
const (
	StreamFin   uint8 = 1 // this direction ends
	StreamReset uint8 = 2 // the stream ends
)

// StreamClose is the payload of CodeStreamClose, both ways. Errno and text come from the daemon only, with
// StreamReset; errno 0 is an orderly end.
type StreamClose struct {
	Handle uint32
	Flag   uint8
	Errno  uint16
	Text   string
}

const closeTextMax = 1 << 10

// Append encodes it; the text is cut to 1 KiB.
func (s *StreamClose) Append(dst []byte) []byte {
	dst = append(binary.BigEndian.AppendUint32(dst, s.Handle), s.Flag)
	dst = binary.BigEndian.AppendUint16(dst, s.Errno)
	return append(dst, s.Text[:min(len(s.Text), closeTextMax)]...)
}

// ParseStreamClose decodes it.
func ParseStreamClose(payload []byte) (StreamClose, error) {
	if len(payload) < 7 || len(payload) > 7+closeTextMax || payload[4] != StreamFin && payload[4] != StreamReset {
		return StreamClose{}, ErrMalformedStream
	}
	return StreamClose{
		Handle: binary.BigEndian.Uint32(payload), Flag: payload[4],
		Errno: binary.BigEndian.Uint16(payload[5:]), Text: string(payload[7:]),
	}, nil
}

// AppendStreamData appends a whole frame of data.
func AppendStreamData(dst []byte, handle uint32, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(CodeStreamData)<<24|uint32(4+len(data)))
	return append(binary.BigEndian.AppendUint32(dst, handle), data...)
}

// StreamEvent is what the daemon says about one stream.
type StreamEvent struct {
	Handle uint32
	Opened bool   // the other end has accepted
	Data   []byte // valid until the next call of Next
	Fin    bool   // the other end sends no more
	Closed bool   // the stream is over; nothing follows for this handle
	Err    error  // why, nil for an orderly end; a *ReplyError
}

// StreamConnection is a connection that carries streams. Next belongs to one goroutine, the other methods
// may be called from several.
type StreamConnection struct {
	connection net.Conn
	buffer     []byte
	mutex      sync.Mutex // one frame at a time
	out        []byte
}

// DialStreams connects to the daemon's socket for streams.
func DialStreams(path string) (*StreamConnection, error) {
	connection, err := dial(path)
	if err != nil {
		return nil, err
	}
	return &StreamConnection{connection: connection}, nil
}

// Open asks for a stream; Next tells what becomes of it. Handles are the caller's to choose, each once.
func (c *StreamConnection) Open(open StreamOpen) error {
	if len(open.Name) > 255 || len(open.Grant) > 255 {
		return fmt.Errorf("stream to %q: name or grant longer than 255 bytes", open.Name)
	}
	return c.send(CodeStreamOpen, open.Append(nil))
}

// Write sends data; it waits while the other end does not take it.
func (c *StreamConnection) Write(handle uint32, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), StreamChunkMax)
		c.mutex.Lock()
		c.out = AppendStreamData(c.out[:0], handle, p[:n])
		_, err := c.connection.Write(c.out)
		c.mutex.Unlock()
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// CloseWrite ends this direction.
func (c *StreamConnection) CloseWrite(handle uint32) error {
	return c.send(CodeStreamClose, (&StreamClose{Handle: handle, Flag: StreamFin}).Append(nil))
}

// Cancel ends a stream at once.
func (c *StreamConnection) Cancel(handle uint32) error {
	return c.send(CodeStreamClose, (&StreamClose{Handle: handle, Flag: StreamReset}).Append(nil))
}

// Close ends the connection and with it all streams.
func (c *StreamConnection) Close() error { return c.connection.Close() }

// SetReadDeadline bounds the next calls of Next.
func (c *StreamConnection) SetReadDeadline(t time.Time) error { return c.connection.SetReadDeadline(t) }

func (c *StreamConnection) send(code Code, payload []byte) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return WriteFrame(c.connection, byte(code), payload)
}

// Next waits for what the daemon says next. An error of another kind than *ReplyError ends the connection.
func (c *StreamConnection) Next() (StreamEvent, error) {
	code, payload, err := ReadFrame(c.connection, OutputQueueMax, c.buffer)
	if err == io.EOF || err == io.ErrUnexpectedEOF || errors.Is(err, syscall.ECONNRESET) {
		err = errors.New("the daemon has closed the connection")
	}
	if err != nil {
		return StreamEvent{}, err
	}
	c.buffer = payload[:0]
	if code == byte(Error) {
		return StreamEvent{}, parseError(payload)
	}
	if len(payload) < 4 {
		return StreamEvent{}, ErrMalformedStream
	}
	event := StreamEvent{Handle: binary.BigEndian.Uint32(payload)}
	switch Code(code) {
	case CodeStreamOpen:
		event.Opened = true
	case CodeStreamData:
		event.Data = payload[4:]
	case CodeStreamClose:
		end, err := ParseStreamClose(payload)
		if err != nil {
			return StreamEvent{}, err
		}
		event.Fin, event.Closed = end.Flag == StreamFin, end.Flag == StreamReset
		if end.Errno != 0 {
			event.Err = &ReplyError{Errno: end.Errno, Text: end.Text}
		}
	default:
		return StreamEvent{}, fmt.Errorf("frame %#x is unknown: the daemon may be of a later version", code)
	}
	return event, nil
}
