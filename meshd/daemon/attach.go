package daemon

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/message"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

const (
	// AttachmentsMax bounds the streams of this cell that runnerd serves; more are refused with the reason.
	AttachmentsMax = 192
	// requestPatience is how long the opener of a stream may take to say what it wants.
	requestPatience = 10 * time.Second
	// blobsServedMax bounds those of them that give blobs of images to other cells: what is above goes to the
	// registry (F76).
	blobsServedMax = 4
	// attachBlock is what an attachment holds in each direction at most.
	attachBlock = 32 << 10
	// lingerPatience is how long an attachment whose descriptor ended waits until the opener has all of it.
	lingerPatience = time.Minute
)

// attachments are the streams of logs, exec, copy, metrics and blobs that end in this cell, each connected to a
// descriptor of runnerd. It belongs to the reactor's goroutine.
type attachments struct {
	daemon *Daemon
	// waiting are those for which runnerd has not answered, by channel.
	waiting map[uint64]*attachment
	count   int
	blobs   int // of count
}

// serveAttachments names this cell's service for the kinds of streams that runnerd answers.
func (d *Daemon) serveAttachments() {
	d.attachments = attachments{daemon: d, waiting: map[uint64]*attachment{}}
	for _, kind := range []wire.StreamType{
		wire.StreamLogs, wire.StreamExec, wire.StreamMetrics, wire.StreamCopy, wire.StreamBlob,
	} {
		d.cell.Serve(kind, d.attachments.accept)
	}
}

// attachment connects one stream with one descriptor. Each direction has one buffer: while it is not taken,
// nothing more is read, so who does not read makes the other end wait. Everything belongs to the reactor's
// goroutine but what the two goroutines of the descriptor do with their buffer.
type attachment struct {
	owner   *attachments
	stream  *stream.Stream
	head    []byte // of the request, until it is complete
	channel uint64 // asked of runnerd, 0 before and after
	file    *os.File
	timer   *time.Timer
	over    bool
	failed  bool // the last frame has been written by us

	down     []byte // read of the descriptor, not yet taken by the stream
	taken    chan struct{}
	ended    bool          // the descriptor has no more
	up       chan []byte   // to the goroutine that writes; nil until there is one
	writing  bool          // it has a buffer
	upEnded  bool          // the opener sends no more, and up is closed
	closing  sync.Once     // of file
	finished chan struct{} // closed when over
}

// accept takes a stream. Nothing is done for it before it has said what it wants.
func (a *attachments) accept(s *stream.Stream) {
	blob := s.Kind() == wire.StreamBlob
	if a.count >= AttachmentsMax || blob && a.blobs >= blobsServedMax {
		s.Reject(stream.ReasonBusy)
		return
	}
	a.count++
	if blob {
		a.blobs++
	}
	t := &attachment{owner: a, stream: s, taken: make(chan struct{}, 1), finished: make(chan struct{})}
	t.timer = time.AfterFunc(requestPatience, func() {
		a.daemon.inbox.post(func() {
			if t.head != nil || t.channel == 0 && t.file == nil {
				t.fail("nothing was asked for within " + requestPatience.String())
			}
		})
	})
	s.Accept(t)
	t.Readable(s)
}

// Accepted implements stream.Endpoint; these streams are opened by others.
func (t *attachment) Accepted(*stream.Stream) {}

// Readable implements stream.Endpoint.
func (t *attachment) Readable(s *stream.Stream) {
	switch {
	case t.over:
		return
	case t.channel == 0 && t.file == nil && !t.failed:
		t.readRequest()
	case t.file != nil:
		t.pump()
	case t.failed: // what was on its way meanwhile is of no use to anybody
		for piece := s.Peek(); piece != nil; piece = s.Peek() {
			s.Discard(len(piece))
		}
	}
}

func (t *attachment) readRequest() {
	for piece := t.stream.Peek(); piece != nil; piece = t.stream.Peek() {
		// The request ends within a piece: what is behind it stays in the stream.
		had := len(t.head)
		t.head = append(t.head, piece...)
		kind, payload, size, err := attach.Decode(t.head)
		if err != nil || size != 0 && kind != attach.KindRequest {
			t.fail("the stream does not begin with a request: are the cells of one version?")
			return
		}
		if size == 0 {
			t.stream.Discard(len(piece))
			continue
		}
		request, err := attach.ParseRequest(payload)
		t.stream.Discard(size - had)
		t.head = nil
		if err != nil {
			t.fail("the request is not understood (" + err.Error() + "): are the cells of one version?")
			return
		}
		t.request(request)
		return
	}
	if t.stream.End() {
		t.stream.CloseWrite()
	}
}

// request asks runnerd for the descriptor.
func (t *attachment) request(r *attach.Request) {
	d := t.owner.daemon
	command, err := t.command(r)
	if err == nil && d.helper.link == nil {
		err = fmt.Errorf("runnerd of cell %v is not connected: try again", d.cell.Self())
	}
	if err != nil {
		t.fail(err.Error())
		return
	}
	d.helper.channel++
	t.channel = d.helper.channel
	command.Channel = t.channel
	t.owner.waiting[t.channel] = t
	d.helper.descriptors.Claim(t.channel, func(file *os.File) {
		d.inbox.post(func() { t.connect(file) })
	})
	if !d.helper.command(&message.Command{Body: &message.Command_Attach{Attach: command}}) {
		t.refused(fmt.Sprintf("runnerd of cell %v has too much to do: try again", d.cell.Self()))
		return
	}
	t.timer.Stop()
	t.timer = time.AfterFunc(attachPatience, func() {
		d.inbox.post(func() {
			if t.channel != 0 {
				t.refused(fmt.Sprintf("runnerd of cell %v does not answer", d.cell.Self()))
			}
		})
	})
}

// command translates a request, for the instance that it means.
func (t *attachment) command(r *attach.Request) (*message.Attach, error) {
	kind := t.stream.Kind()
	if kind == wire.StreamMetrics {
		return &message.Attach{What: &message.Attach_Usage{
			Usage: &message.Usage{IntervalMilliseconds: r.IntervalMilliseconds},
		}}, nil
	}
	if kind == wire.StreamBlob {
		digest, err := hex.DecodeString(r.Blob)
		if err != nil || len(digest) != 32 {
			return nil, fmt.Errorf("the request names blob %.80q, expected a digest", r.Blob)
		}
		return &message.Attach{Id: &message.InstanceID{}, What: &message.Attach_Blob{ // an id: older ones insist on it
			Blob: &message.Blob{Digest: digest, Offset: uint64(r.Offset)},
		}}, nil
	}
	if r.Key != t.stream.Name() {
		return nil, fmt.Errorf("the request is about %.96q, the stream about %.96q", r.Key, t.stream.Name())
	}
	id, err := t.owner.instance(r)
	if err != nil {
		return nil, err
	}
	command := &message.Attach{Id: &message.InstanceID{
		KeyHash: id.KeyHash, Slot: uint32(id.Slot), Digest: id.Digest,
	}}
	switch kind {
	case wire.StreamLogs:
		command.What = &message.Attach_Logs{Logs: &message.Logs{
			TailLines: r.TailLines, SinceUnixMilliseconds: r.SinceUnixMilliseconds, Follow: r.Follow,
		}}
	case wire.StreamExec:
		command.What = &message.Attach_Exec{Exec: &message.Exec{
			Arguments: r.Arguments, Terminal: r.Terminal, Input: r.Input, Rows: uint32(r.Rows),
			Columns: uint32(r.Columns), Grant: t.stream.Grant(),
		}}
	case wire.StreamCopy:
		command.What = &message.Attach_Copy{Copy: &message.Copy{
			Path: r.Path, Into: r.Into, Grant: t.stream.Grant(),
		}}
	default:
		return nil, errors.New("this kind of stream has no instance")
	}
	return command, nil
}

// instance finds the instance of this cell that a request means: with its digest, or the one that serves.
func (a *attachments) instance(r *attach.Request) (reconcile.InstanceID, error) {
	var found *reconcile.Actual
	for _, actual := range a.daemon.cell.Instances(r.Key) {
		named := r.Digest == "" || fmt.Sprintf("%016x", actual.ID.Digest) == r.Digest
		if actual.ID.Slot != r.Slot || !named {
			continue
		}
		if found == nil || actual.State == reconcile.Ready && found.State != reconcile.Ready {
			found = &actual
		}
	}
	if found == nil {
		return reconcile.InstanceID{}, fmt.Errorf("cell %v runs no such instance of %.96s: see `colloid status`",
			a.daemon.cell.Self(), r.Key)
	}
	return found.ID, nil
}

// attached takes runnerd's answer; it reports whether the channel is one of these. Only a refusal matters:
// the descriptor comes by itself.
func (a *attachments) attached(answer *message.Attached) bool {
	t := a.waiting[answer.Channel]
	if t != nil && answer.Error != "" {
		t.refused(answer.Error)
	}
	return t != nil
}

// helperGone ends those that wait for an answer; the descriptors of the others say it themselves.
func (a *attachments) helperGone() {
	for _, t := range a.waiting {
		t.refused(fmt.Sprintf("runnerd of cell %v has ended: try again", a.daemon.cell.Self()))
	}
}

// refused ends what runnerd does not serve.
func (t *attachment) refused(reason string) {
	t.release()
	t.fail(reason)
}

// release forgets the claim of a descriptor.
func (t *attachment) release() {
	if t.channel == 0 {
		return
	}
	delete(t.owner.waiting, t.channel)
	if h := &t.owner.daemon.helper; h.descriptors != nil {
		h.descriptors.Abandon(t.channel)
	}
	t.channel = 0
}

// fail says why there is nothing, as the last frame.
func (t *attachment) fail(reason string) {
	if t.over || t.failed {
		return
	}
	t.failed, t.head = true, nil
	_, err := t.stream.Write(attach.Append(nil, attach.KindFailed, []byte(reason[:min(len(reason), 1<<10)])))
	if err != nil {
		t.stream.Reset(stream.ReasonFailed)
		return
	}
	t.stream.CloseWrite()
	t.linger()
}

// linger ends the stream if the opener does not within a while.
func (t *attachment) linger() {
	t.timer.Stop()
	t.timer = time.AfterFunc(lingerPatience, func() {
		t.owner.daemon.inbox.post(func() {
			if !t.over {
				t.stream.Reset(stream.ReasonTimeout)
			}
		})
	})
}

// Closed implements stream.Endpoint.
func (t *attachment) Closed(*stream.Stream, stream.Reason) {
	if t.over {
		return
	}
	t.over = true
	t.owner.count--
	if t.stream.Kind() == wire.StreamBlob {
		t.owner.blobs--
	}
	t.timer.Stop()
	t.release()
	close(t.finished)
	if t.up != nil && !t.upEnded {
		close(t.up)
	}
	t.closeFile()
}
