package daemon

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/control"
	"colloid.net/meshd/state"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// An invocation on a cell without an instance goes by a stream of kind StreamInvoke to one that has some (F144).
// The stream carries the payload of WASM_INVOKE one way, to its end, and the other way an error number of two
// bytes, then the outcome or, if the number is not 0, a sentence. The deadline travels in the invocation. A cell
// that is asked this way asks no further one.
const (
	// forwardsMax is how many invocations of other cells this one runs at a time; more are refused as busy.
	forwardsMax = 64
	// forwardTries is how many cells are asked, one after the other, as long as none has begun.
	forwardTries = 3
	// forwardPatience is how long a stream may take in addition to what the other cell grants its worker.
	forwardPatience = 5 * time.Second
	// forwardReplyMax bounds an answer: the longest outcome is well below.
	forwardReplyMax = invoke.FrameMax
	// Sentences behind EBUSY. A cell of an earlier version says none.
	sentenceBusy     = "the instance has too much to do"
	sentenceStarting = "the instance is starting"
)

// forwarder is the asking end. All but done belongs to the reactor's goroutine.
type forwarder struct {
	target  wire.CellID
	stream  *stream.Stream
	request []byte // what the stream has not taken yet
	reply   []byte
	// accepted: the other cell may have begun. Before it accepts, nothing of the request reaches it.
	accepted bool
	over     bool
	done     chan forwardEnd // with room for one
}

// forwardEnd is how it ended: an answer, or a reason why none came.
type forwardEnd struct {
	reply    []byte
	reason   stream.Reason
	accepted bool
}

// forward has an invocation done by another cell, on the client's goroutine: by one with an instance that is ready, as
// far as is known, before others. began is false if none has begun it; r is then the most telling refusal, if any.
func (w *workers) forward(ctx context.Context, name string, call *invoke.Invocation) (r control.Response, began bool) {
	var hosts []wire.CellID
	if !w.onReactor(ctx, func() { hosts = w.hostsFor(name) }) {
		return r, false
	}
	request := invoke.AppendCall(nil, name, call)
	for _, host := range hosts[:min(len(hosts), forwardTries)] {
		answer, again := w.forwardTo(ctx, host, name, request, call.Patience()+forwardPatience)
		if !again {
			return answer, true
		}
		if r.Errno == 0 || answer.Errno == uds.ErrorBusy {
			r = answer
		}
	}
	return r, false
}

// hostsFor lists the other cells that may do an invocation, the best first. It runs on the reactor's goroutine.
func (w *workers) hostsFor(name string) []wire.CellID {
	var ready, others []wire.CellID
	for _, host := range w.hosts(state.PrefixWasm + name) {
		switch serves := w.daemon.cell.Serves(name, host); {
		case host == w.daemon.cell.Self() || serves == 0:
		case serves == 2:
			ready = append(ready, host)
		default:
			others = append(others, host)
		}
	}
	w.forwarded++
	turn := func(hosts []wire.CellID) []wire.CellID { // not always the same one
		if len(hosts) < 2 {
			return hosts
		}
		at := int(w.forwarded % uint64(len(hosts)))
		return append(hosts[at:len(hosts):len(hosts)], hosts[:at]...)
	}
	return append(turn(ready), turn(others)...)
}

// forwardTo asks one cell. again says that it did not begin, so another may be asked.
func (w *workers) forwardTo(ctx context.Context, target wire.CellID, name string, request []byte,
	patience time.Duration,
) (r control.Response, again bool) {
	f := &forwarder{target: target, request: request, done: make(chan forwardEnd, 1)}
	w.daemon.inbox.post(func() { f.open(w.daemon, name) })
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var end forwardEnd
	select {
	case end = <-f.done:
	case <-timer.C:
		end = forwardEnd{reason: stream.ReasonTimeout, accepted: true}
	case <-w.daemon.stopped:
		end = forwardEnd{reason: stream.ReasonStopping, accepted: true}
	case <-ctx.Done():
		end = forwardEnd{reason: stream.ReasonStopping, accepted: true}
	}
	w.daemon.inbox.post(f.cancel)
	if end.reason != stream.ReasonNone {
		errno := uds.ErrorUnreachable
		switch {
		case end.reason == stream.ReasonBusy:
			errno = uds.ErrorBusy
		case end.reason == stream.ReasonTimeout:
			errno = uds.ErrorTimeout
		case end.accepted: // the function may have run
			errno = invoke.ErrorGone
		}
		return control.Response{Status: uds.Error, Errno: errno,
			Text: fmt.Sprintf("%s on cell %v: %v", name, target, end.reason)}, !end.accepted
	}
	return parseForwarded(name, target, end.reply)
}

// parseForwarded reads the answer of another cell. Its own refusals come before it begins anything.
func parseForwarded(name string, target wire.CellID, reply []byte) (r control.Response, again bool) {
	errno, outcome := uint16(0), []byte(nil)
	if len(reply) >= 2 {
		errno, outcome = binary.BigEndian.Uint16(reply), reply[2:]
	}
	switch {
	case len(reply) < 2, errno != 0 && len(outcome) > invoke.TextMax:
		return control.Response{Status: uds.Error, Errno: invoke.ErrorIO,
			Text: fmt.Sprintf("%s on cell %v: the answer is not understood", name, target)}, false
	case errno == uds.ErrorNotFound && len(outcome) == 0: // it has none, or none any more: that is no reason to tell
		return control.Response{}, true
	case errno == uds.ErrorBusy:
		why := absenceStarting
		if string(outcome) == sentenceBusy {
			why = absenceBusy
		}
		return control.Response{Status: uds.Error, Errno: uds.ErrorBusy,
			Text: why.refusal(name, "cell "+target.String())}, true
	case errno != 0:
		return control.Response{Status: uds.Error, Errno: errno,
			Text: fmt.Sprintf("%s on cell %v: %s", name, target, state.Printable(string(outcome), invoke.TextMax))}, false
	}
	if _, err := invoke.ParseOutcome(outcome); err != nil {
		return control.Response{Status: uds.Error, Errno: invoke.ErrorIO,
			Text: fmt.Sprintf("%s on cell %v: the answer is not understood", name, target)}, false
	}
	return control.Response{Status: uds.OK, Payload: outcome}, false
}

func (f *forwarder) open(d *Daemon, name string) {
	opened, err := d.cell.Streams().Open(f.target, wire.StreamInvoke, []byte(state.PrefixWasm+name), nil, f)
	if err != nil {
		f.finish(stream.ReasonBusy)
		return
	}
	f.stream = opened
	f.Writable(opened)
}

func (f *forwarder) finish(reason stream.Reason) {
	if !f.over {
		f.over = true
		f.done <- forwardEnd{reply: f.reply, reason: reason, accepted: f.accepted}
	}
}

// cancel ends a stream that nobody waits for any more; one that has ended is not harmed.
func (f *forwarder) cancel() {
	if f.stream != nil && !f.over {
		f.over = true
		f.stream.Reset(stream.ReasonCanceled)
	}
}

// Accepted implements stream.Endpoint.
func (f *forwarder) Accepted(s *stream.Stream) {
	f.accepted = true
	f.Writable(s)
}

// Writable implements stream.Endpoint.
func (f *forwarder) Writable(s *stream.Stream) {
	if len(f.request) == 0 {
		return
	}
	n, err := s.Write(f.request)
	if f.request = f.request[n:]; err == nil && len(f.request) == 0 {
		s.CloseWrite()
	}
}

// Readable implements stream.Endpoint.
func (f *forwarder) Readable(s *stream.Stream) {
	var fits bool
	if f.reply, fits = gather(s, f.reply, forwardReplyMax); !fits {
		f.finish(stream.ReasonProtocol)
		s.Reset(stream.ReasonProtocol)
	} else if s.End() {
		f.finish(stream.ReasonNone)
	}
}

// Closed implements stream.Endpoint.
func (f *forwarder) Closed(_ *stream.Stream, reason stream.Reason) {
	if reason == stream.ReasonNone {
		reason = stream.ReasonFailed // the answer's end would have come before
	}
	f.finish(reason)
}

// gather reads what there is, as long as it is not more than limit in all.
func gather(s *stream.Stream, got []byte, limit int) ([]byte, bool) {
	for piece := s.Peek(); piece != nil; piece = s.Peek() {
		if len(got)+len(piece) > limit {
			return got, false
		}
		got = append(got, piece...)
		s.Discard(len(piece))
	}
	return got, true
}

// forwarded is the end that was asked. All of it belongs to the reactor's goroutine.
type forwarded struct {
	workers *workers
	stream  *stream.Stream
	request []byte
	reply   []byte // what the stream has not taken yet
	cancel  context.CancelFunc
	running bool
	over    bool
}

// serveForwarded takes an invocation of another cell, on the reactor's goroutine.
func (w *workers) serveForwarded(s *stream.Stream) {
	if w.serving >= forwardsMax {
		s.Reject(stream.ReasonBusy)
		return
	}
	w.serving++
	s.Accept(&forwarded{workers: w, stream: s})
}

// Accepted implements stream.Endpoint.
func (*forwarded) Accepted(*stream.Stream) {}

// Readable implements stream.Endpoint.
func (f *forwarded) Readable(s *stream.Stream) {
	var fits bool
	if f.request, fits = gather(s, f.request, uds.RequestMax); !fits || f.running {
		if !fits {
			s.Reset(stream.ReasonProtocol)
		}
		return
	}
	if !s.End() {
		return
	}
	name, call, err := invoke.ParseCall(f.request)
	if name = bareName(name); err != nil || state.PrefixWasm+name != s.Name() {
		s.Reset(stream.ReasonProtocol)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.running, f.cancel = true, cancel
	go f.run(ctx, name, call)
}

// run has the invocation done, on a goroutine of its own: at most forwardsMax of them, each as long as
// workers.call allows.
func (f *forwarded) run(ctx context.Context, name string, call *invoke.Invocation) {
	result, why := f.workers.call(ctx, name, call, false)
	var reply []byte
	switch {
	case why == absenceMissing:
		reply = binary.BigEndian.AppendUint16(nil, uds.ErrorNotFound)
	case why == absenceBusy:
		reply = append(binary.BigEndian.AppendUint16(nil, uds.ErrorBusy), sentenceBusy...)
	case why == absenceStarting:
		reply = append(binary.BigEndian.AppendUint16(nil, uds.ErrorBusy), sentenceStarting...)
	case result.Errno != 0:
		reply = binary.BigEndian.AppendUint16(nil, deadlineErrno(result.Errno))
		reply = append(reply, result.Output[:min(len(result.Output), invoke.TextMax)]...)
	default:
		reply = invoke.AppendOutcome([]byte{0, 0}, result)
	}
	f.workers.daemon.inbox.post(func() {
		f.cancel()
		f.workers.serving--
		f.running = false
		f.reply = reply
		if !f.over {
			f.Writable(f.stream)
		}
	})
}

// Writable implements stream.Endpoint.
func (f *forwarded) Writable(s *stream.Stream) {
	if len(f.reply) == 0 || f.over {
		return
	}
	n, err := s.Write(f.reply)
	if f.reply = f.reply[n:]; err == nil && len(f.reply) == 0 {
		s.CloseWrite()
	}
}

// Closed implements stream.Endpoint. A function that runs goes on to its end; nobody waits for it.
func (f *forwarded) Closed(*stream.Stream, stream.Reason) {
	f.over = true
	switch {
	case f.running:
		f.cancel()
	case f.cancel == nil: // it never began
		f.workers.serving--
	}
}
