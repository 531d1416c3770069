package daemon

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"colloid.net/ipc/invoke"
	"colloid.net/meshd/state"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// A module opens streams to functions of other modules with colloid_stream_open (section 13.5). It asks for each
// step with a request (ipc/invoke), and the answer comes when the step is done; so nothing is buffered here but the
// one chunk that is being written, and the stream's window holds back whoever is faster. Only streams of kind
// StreamInvoke may be opened: the others give people a look into instances, which modules have no business with.

// moduleStreamsMax bounds the streams of all modules of this cell, of the 256 that a cell may have.
const moduleStreamsMax = 64

// moduleStream is one stream of a module. It belongs to the reactor's goroutine.
type moduleStream struct {
	owner  *workers
	worker *worker
	conn   *invoke.Conn // that it belongs to
	name   string       // of the workload at the other end
	hosts  []wire.CellID
	stream *stream.Stream
	number uint16

	accepted bool
	over     bool          // Closed has come
	reason   stream.Reason // why

	opening chan *invoke.Answer // who waits for the other end, nil = nobody; all have room for one
	reading chan *invoke.Answer
	limit   int // of reading
	writing chan *invoke.Answer
	data    []byte // of writing, what the stream has not taken yet
}

// streamRequest carries out one request about a stream, on a goroutine of its own.
func (w *workers) streamRequest(to *worker, conn *invoke.Conn, request *invoke.Request) *invoke.Answer {
	done := make(chan *invoke.Answer, 1)
	w.daemon.inbox.post(func() {
		w.mutex.Lock()
		current := to.conn == conn
		w.mutex.Unlock()
		if !current { // what it had was ended, and nothing must come after that
			done <- &invoke.Answer{Errno: invoke.ErrorGone}
			return
		}
		w.streamStep(to, conn, request, done)
	})
	select {
	case answer := <-done:
		return answer
	case <-w.daemon.stopped:
		return &invoke.Answer{Errno: invoke.ErrorGone}
	}
}

// streamStep begins a step; done gets the answer, at once or when the stream allows it.
func (w *workers) streamStep(to *worker, conn *invoke.Conn, request *invoke.Request, done chan *invoke.Answer) {
	if request.Operation == invoke.OperationStreamOpen {
		w.openStream(to, conn, request, done)
		return
	}
	m := to.streams[request.Index]
	switch {
	case m == nil:
		done <- &invoke.Answer{Errno: invoke.ErrorNotFound}
	case request.Operation == invoke.OperationStreamRead && m.reading == nil:
		m.reading, m.limit = done, request.Limit()
		m.pumpRead()
	case request.Operation == invoke.OperationStreamWrite && m.writing == nil:
		m.writing, m.data = done, request.Value
		m.pumpWrite()
	case request.Operation == invoke.OperationStreamFinish && m.writing == nil:
		if !m.over {
			m.stream.CloseWrite()
		}
		done <- &invoke.Answer{}
	case request.Operation == invoke.OperationStreamClose:
		m.drop(stream.ReasonCanceled)
		done <- &invoke.Answer{}
	default: // an honest worker waits for the step before
		done <- &invoke.Answer{Errno: invoke.ErrorBusy}
	}
}

// openStream opens a stream to an instance of another module: one of this cell if there is one, else of up to
// forwardTries cells, one after the other until one accepts.
func (w *workers) openStream(to *worker, conn *invoke.Conn, request *invoke.Request, done chan *invoke.Answer) {
	name := bareName(request.Key)
	hosts := w.hosts(state.PrefixWasm + name)
	errno := uint16(0)
	switch {
	case request.Index != invoke.StreamInvoke:
		errno = invoke.ErrorUnsupported
	case !state.ValidWorkloadName(name):
		errno = invoke.ErrorInvalid
	case len(hosts) == 0:
		errno = invoke.ErrorNotFound
	case len(to.streams) >= invoke.StreamsMax || w.streams >= moduleStreamsMax:
		errno = invoke.ErrorBusy
	}
	if errno != 0 {
		done <- &invoke.Answer{Errno: errno}
		return
	}
	if own := w.daemon.cell.Self(); slices.Contains(hosts, own) {
		others := w.hostsFor(name)
		hosts = append([]wire.CellID{own}, others...)
		if len(others) > 0 && w.daemon.cell.Serves(name, own) < w.daemon.cell.Serves(name, others[0]) {
			hosts = others // one that is ready is better than the own one that is not
		}
	} else if others := w.hostsFor(name); len(others) > 0 {
		hosts = others
	}
	m := &moduleStream{
		owner: w, worker: to, conn: conn, name: name, hosts: hosts[:min(len(hosts), forwardTries)], opening: done,
	}
	for to.streams[m.number] != nil {
		m.number++
	}
	to.streams[m.number] = m
	w.streams++
	m.next(stream.ReasonNotFound)
}

// next asks the next cell; reason is why there is no other.
func (m *moduleStream) next(reason stream.Reason) {
	for len(m.hosts) > 0 {
		host := m.hosts[0]
		m.hosts = m.hosts[1:]
		opened, err := m.owner.daemon.cell.Streams().Open(host, wire.StreamInvoke,
			[]byte(state.PrefixWasm+m.name), nil, m)
		if err == nil {
			m.stream = opened
			return
		}
		reason = stream.ReasonBusy
	}
	m.end(reason)
	m.forget()
}

// end remembers that nothing more happens and answers who waits.
func (m *moduleStream) end(reason stream.Reason) {
	m.over, m.reason = true, reason
	errno := errnoOfReason(reason)
	if errno == 0 {
		errno = invoke.ErrorGone // of what can no longer be done
	}
	for _, waiting := range []*chan *invoke.Answer{&m.opening, &m.writing} {
		if *waiting != nil {
			*waiting <- &invoke.Answer{Errno: errno}
			*waiting = nil
		}
	}
	m.data = nil
	m.pumpRead()
}

// forget takes the stream from its worker.
func (m *moduleStream) forget() {
	if m.worker.streams[m.number] == m {
		delete(m.worker.streams, m.number)
		m.owner.streams--
	}
}

// drop ends the stream for its module, whatever it is doing.
func (m *moduleStream) drop(reason stream.Reason) {
	m.forget()
	if !m.over {
		m.hosts = nil
		m.end(reason)
		m.stream.Reset(reason)
	}
}

// endStreams ends the streams of a connection that has ended.
func (w *workers) endStreams(of *worker, conn *invoke.Conn) {
	for _, m := range of.streams {
		if m.conn == conn {
			m.drop(stream.ReasonCanceled)
		}
	}
}

// pumpRead answers a read if there is something to say.
func (m *moduleStream) pumpRead() {
	if m.reading == nil {
		return
	}
	answer := &invoke.Answer{}
	if m.over {
		answer.Errno = errnoOfReason(m.reason) // 0: the end, no bytes
	} else {
		block := make([]byte, m.limit)
		n, err := m.stream.Read(block)
		switch {
		case n > 0:
			answer.Value = block[:n]
		case err == nil:
			return // it waits
		case !errors.Is(err, io.EOF):
			answer.Errno = invoke.ErrorGone
		}
	}
	m.reading <- answer
	m.reading = nil
}

// pumpWrite answers a write once the stream has taken all of it.
func (m *moduleStream) pumpWrite() {
	if m.writing == nil {
		return
	}
	answer := &invoke.Answer{}
	if m.over {
		answer.Errno = invoke.ErrorGone
	} else {
		n, err := m.stream.Write(m.data)
		if m.data = m.data[n:]; err != nil {
			answer.Errno = invoke.ErrorGone
		} else if len(m.data) > 0 {
			return
		}
	}
	m.writing <- answer
	m.writing, m.data = nil, nil
}

// Accepted implements stream.Endpoint.
func (m *moduleStream) Accepted(*stream.Stream) {
	m.accepted = true
	if m.opening != nil {
		m.opening <- &invoke.Answer{Value: binary.BigEndian.AppendUint16(nil, m.number)}
		m.opening = nil
	}
}

// Readable implements stream.Endpoint.
func (m *moduleStream) Readable(*stream.Stream) { m.pumpRead() }

// Writable implements stream.Endpoint.
func (m *moduleStream) Writable(*stream.Stream) { m.pumpWrite() }

// Closed implements stream.Endpoint.
func (m *moduleStream) Closed(_ *stream.Stream, reason stream.Reason) {
	switch {
	case m.over: // the module has closed it
	case !m.accepted: // it did not begin there
		m.next(reason)
	default:
		m.end(reason)
	}
}

// errnoOfReason translates why a stream ended, 0 for an orderly end.
func errnoOfReason(reason stream.Reason) uint16 {
	switch reason {
	case stream.ReasonNone:
		return 0
	case stream.ReasonRefused:
		return invoke.ErrorPermission
	case stream.ReasonNotFound, stream.ReasonKind:
		return invoke.ErrorNotFound
	case stream.ReasonBusy:
		return invoke.ErrorBusy
	case stream.ReasonTimeout:
		return invoke.ErrorTimeout
	}
	return invoke.ErrorGone
}
