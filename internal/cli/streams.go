package cli

import (
	"errors"
	"io"
	"sync"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
)

// streamRoom is how many pieces of one stream wait for their reader; a slow one makes all streams of the
// connection wait, up to their sources.
const streamRoom = 8

// multiplexer carries several streams over one connection to the daemon.
type multiplexer struct {
	connection *uds.StreamConnection
	mutex      sync.Mutex
	streams    map[uint32]*remote
	last       uint32
	broken     error
	over       chan struct{} // closed once broken is set
}

// remote is one stream. Reading belongs to one goroutine, writing to another.
type remote struct {
	of     *multiplexer
	handle uint32
	pieces chan []byte // closed at the end
	rest   []byte
	quit   chan struct{} // closed by Close
	once   sync.Once
	err    error // valid when pieces is closed; nil is an orderly end
}

// dialStreams connects to the daemon of a session for streams.
func dialStreams(s *session) (*multiplexer, error) {
	connection, err := uds.DialStreams(s.path)
	if err != nil {
		return nil, fail(ExitUnreachable, "%w", err)
	}
	m := &multiplexer{connection: connection, streams: map[uint32]*remote{}, over: make(chan struct{})}
	go m.receive()
	return m, nil
}

// ended reports that the connection is over; then broken says why.
func (m *multiplexer) ended() bool {
	select {
	case <-m.over:
		return true
	default:
		return false
	}
}

func (m *multiplexer) close() { m.connection.Close() }

func (m *multiplexer) receive() {
	for {
		event, err := m.connection.Next()
		if err != nil {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			m.broken = err
			close(m.over)
			for handle, r := range m.streams {
				delete(m.streams, handle)
				r.err = err
				close(r.pieces)
			}
			return
		}
		m.mutex.Lock()
		r := m.streams[event.Handle]
		if event.Closed || event.Fin { // after its end there is nothing to hear of a stream
			delete(m.streams, event.Handle)
		}
		m.mutex.Unlock()
		if r == nil {
			continue
		}
		if len(event.Data) > 0 {
			select {
			case r.pieces <- append([]byte(nil), event.Data...):
			case <-r.quit:
			}
		}
		if event.Closed || event.Fin {
			r.err = event.Err
			close(r.pieces)
		}
	}
}

// open opens a stream to a cell and sends the request.
func (m *multiplexer) open(kind uint8, cell uint64, name string, grant []byte, request *attach.Request) (*remote, error) {
	payload, err := request.Encode()
	if err != nil {
		return nil, fail(ExitUsage, "%w", err)
	}
	m.mutex.Lock()
	if m.broken != nil {
		m.mutex.Unlock()
		return nil, m.broken
	}
	m.last++
	r := &remote{of: m, handle: m.last, pieces: make(chan []byte, streamRoom), quit: make(chan struct{})}
	m.streams[r.handle] = r
	m.mutex.Unlock()
	err = m.connection.Open(uds.StreamOpen{Handle: r.handle, Kind: kind, Cell: cell, Name: name, Grant: grant})
	if err == nil {
		_, err = r.Write(attach.Append(nil, attach.KindRequest, payload))
	}
	if err != nil {
		err = m.reason(err)
	}
	return r, err
}

// reasonPatience is how long what the daemon has said before it hung up may take to be read.
const reasonPatience = time.Second

// reason is why a write failed: the daemon has said it, or else the error of the write.
func (m *multiplexer) reason(err error) error {
	select {
	case <-m.over:
		return m.broken
	case <-time.After(reasonPatience):
		return err
	}
}

// Read implements io.Reader.
func (r *remote) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		piece, ok := <-r.pieces
		if !ok {
			if r.err != nil {
				return 0, r.err
			}
			return 0, io.EOF
		}
		r.rest = piece
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Write implements io.Writer.
func (r *remote) Write(p []byte) (int, error) {
	if err := r.of.connection.Write(r.handle, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite ends this direction.
func (r *remote) CloseWrite() error { return r.of.connection.CloseWrite(r.handle) }

// Close ends the stream.
func (r *remote) Close() {
	r.once.Do(func() {
		close(r.quit)
		_ = r.of.connection.Cancel(r.handle)
	})
}

// refused is what the cell or the host of an instance answers instead of serving.
type refused struct{ reason string }

func (r *refused) Error() string { return r.reason }

// next reads one frame; a refusal is an error.
func next(reader *attach.Reader) (attach.Kind, []byte, error) {
	kind, payload, err := reader.Next()
	if err == nil && kind == attach.KindFailed {
		return kind, nil, &refused{printable(string(payload))}
	}
	return kind, payload, err
}

// streamTrouble puts into words why a stream ended that should not have.
func streamTrouble(err error) string {
	var reply *uds.ReplyError
	var no *refused
	switch {
	case errors.As(err, &no):
		return no.reason
	case errors.As(err, &reply):
		return printable(reply.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection ended without a reason: runnerd of that cell may have been restarted"
	case err == nil:
		return "ended"
	}
	return printable(err.Error())
}
