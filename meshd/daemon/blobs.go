package daemon

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/message"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

const (
	// blobPullsMax bounds the blobs that this host fetches from other cells at a time: runnerd pulls two
	// images at once, one blob of each. More are refused, and come from the registry.
	blobPullsMax = 4
	// holdersMax is how many cells are asked for one blob before the registry is (F76).
	holdersMax = 3
	// holderPatience is how long a cell may take to say whether it has a blob.
	holderPatience = 2500 * time.Millisecond
	// silentLife is how long a cell that did not say so is not asked again, silentMax how many are remembered.
	silentLife = time.Minute
	silentMax  = 64
	avoidMax   = 64
	// blobName stands where other streams name their workload: relays need not know what is fetched.
	blobName = "blob"
)

// blobPulls are the blobs of images that this host's runnerd fetches from other cells. It belongs to the
// reactor's goroutine.
type blobPulls struct {
	daemon *Daemon
	pulls  map[*blobPull]struct{}
	silent map[wire.CellID]clock.Instant // until when not to ask
	// holders is Cell.Holders.
	holders func(image [32]byte, avoid func(wire.CellID) bool, most int) []wire.CellID
}

// blobPull is one of them: one cell after the other is asked until one has the blob; then its bytes go to
// the descriptor that runnerd gives. Nothing is looked at on the way: the fetcher compares the digest. One
// block is held; while the fetcher does not take it, the stream's window closes.
type blobPull struct {
	owner    *blobPulls
	number   uint64 // of Wanted
	request  []byte // the frame that asks
	holders  []wire.CellID
	why      string // what the last cell said
	alone    bool   // there was none to ask
	stream   *stream.Stream
	head     []byte // of the answer, until it is complete
	accepted bool
	channel  uint64 // asked of runnerd, 0 before and after
	timer    *time.Timer
	over     bool

	file    *os.File
	up      chan []byte // to the goroutine that writes
	writing bool        // it has a block
	ended   bool        // the cell sends no more, and up is closed
}

var errNoWanted = errors.New("a wanted blob without number, image or digest")

// wanted begins a pull for runnerd.
func (b *blobPulls) wanted(w *message.Wanted) error {
	if w.Number == 0 || len(w.Image) != 32 || len(w.Digest) != 32 || len(w.Avoid) > avoidMax || w.Offset > 1<<62 {
		return errNoWanted
	}
	p := &blobPull{owner: b, number: w.Number}
	if len(b.pulls) >= blobPullsMax {
		p.none(fmt.Sprintf("%d blobs are being fetched from other cells already", blobPullsMax))
		return nil
	}
	payload, err := (&attach.Request{Blob: hex.EncodeToString(w.Digest), Offset: int64(w.Offset)}).Encode()
	if err != nil {
		return err
	}
	p.request = attach.Append(nil, attach.KindRequest, payload)
	now := b.daemon.reactor.Now()
	p.holders = b.holders([32]byte(w.Image), func(id wire.CellID) bool {
		for _, avoid := range w.Avoid {
			if wire.CellID(avoid) == id {
				return true
			}
		}
		return b.silent[id] > now
	}, holdersMax)
	p.why, p.alone = "no cell is known to have it", len(p.holders) == 0
	b.pulls[p] = struct{}{}
	p.next()
	return nil
}

// attached takes runnerd's answer to the question for a descriptor; only a refusal matters.
func (b *blobPulls) attached(answer *message.Attached) {
	for p := range b.pulls {
		if p.channel == answer.Channel && answer.Error != "" {
			p.finish(stream.ReasonCanceled) // nobody wants it any more
		}
	}
}

// helperGone ends all of them.
func (b *blobPulls) helperGone() {
	for p := range b.pulls {
		p.finish(stream.ReasonCanceled)
	}
}

// remember notes a cell that did not answer.
func (b *blobPulls) remember(id wire.CellID) {
	now := b.daemon.reactor.Now()
	if len(b.silent) >= silentMax {
		clear(b.silent) // they are asked again, which costs a wait and nothing else
	}
	b.silent[id] = now.Add(silentLife)
}

// next asks the next cell.
func (p *blobPull) next() {
	p.stopTimer()
	p.stream, p.head = nil, nil
	if len(p.holders) == 0 {
		p.none(p.why)
		p.finish(stream.ReasonCanceled)
		return
	}
	holder := p.holders[0]
	p.holders = p.holders[1:]
	d := p.owner.daemon
	opened, err := d.cell.Streams().Open(holder, wire.StreamBlob, []byte(blobName), nil, p)
	if err != nil {
		p.why = err.Error()
		p.none(p.why)
		p.finish(stream.ReasonCanceled)
		return
	}
	p.stream = opened
	if n, err := opened.Write(p.request); err != nil || n != len(p.request) {
		p.giveUp("cell " + holder.String() + " cannot be asked now")
		return
	}
	opened.CloseWrite()
	p.timer = time.AfterFunc(holderPatience, func() {
		d.inbox.post(func() {
			if p.stream == opened && !p.accepted && !p.over {
				p.owner.remember(holder)
				p.giveUp("cell " + holder.String() + " does not answer")
			}
		})
	})
}

// giveUp leaves the cell that is being asked and turns to the next one.
func (p *blobPull) giveUp(why string) {
	p.why = why
	asked := p.stream
	p.stream = nil
	asked.Reset(stream.ReasonCanceled)
	p.next()
}

// none tells runnerd that no cell gives the blob.
func (p *blobPull) none(reason string) {
	h := &p.owner.daemon.helper
	if h.link != nil { // a ring without room loses it; runnerd does not wait for ever
		h.command(&message.Command{Body: &message.Command_NoBlob{NoBlob: &message.NoBlob{
			Wanted: p.number, Reason: reason, Alone: p.alone,
		}}})
	}
}

// Accepted implements stream.Endpoint.
func (p *blobPull) Accepted(*stream.Stream) {}

// Readable implements stream.Endpoint.
func (p *blobPull) Readable(s *stream.Stream) {
	switch {
	case p.over || s != p.stream:
	case p.accepted:
		p.pump()
	default:
		p.readAnswer()
	}
}

// readAnswer waits for the frame that says whether the cell has the blob. What is behind it stays in the stream.
func (p *blobPull) readAnswer() {
	for piece := p.stream.Peek(); piece != nil; piece = p.stream.Peek() {
		had := len(p.head)
		p.head = append(p.head, piece...)
		kind, payload, size, err := attach.Decode(p.head)
		switch {
		case err != nil, size == 0 && len(p.head) > attach.HeaderSize+attach.PayloadMax:
			p.owner.remember(p.stream.Peer())
			p.giveUp(fmt.Sprintf("cell %v answers with something else", p.stream.Peer()))
			return
		case size == 0:
			p.stream.Discard(len(piece))
			continue
		case kind == attach.KindFailed:
			p.giveUp(fmt.Sprintf("cell %v: %.200q", p.stream.Peer(), payload))
			return
		case kind != attach.KindAccepted:
			p.owner.remember(p.stream.Peer())
			p.giveUp(fmt.Sprintf("cell %v answers with frame %d", p.stream.Peer(), kind))
			return
		}
		p.stream.Discard(size - had)
		p.head = nil
		p.connect()
		return
	}
	if p.stream.End() {
		p.giveUp(fmt.Sprintf("cell %v ends without an answer", p.stream.Peer()))
	}
}

// connect asks runnerd where the bytes shall go.
func (p *blobPull) connect() {
	p.accepted = true
	p.stopTimer()
	d := p.owner.daemon
	d.helper.channel++
	p.channel = d.helper.channel
	d.helper.descriptors.Claim(p.channel, func(file *os.File) {
		d.inbox.post(func() { p.carry(file) })
	})
	sent := d.helper.command(&message.Command{Body: &message.Command_Attach{Attach: &message.Attach{
		Channel: p.channel, Id: &message.InstanceID{},
		What: &message.Attach_BlobSink{BlobSink: &message.BlobSink{Wanted: p.number, Cell: uint64(p.stream.Peer())}},
	}}})
	if !sent {
		p.finish(stream.ReasonCanceled)
		return
	}
	p.timer = time.AfterFunc(attachPatience, func() {
		d.inbox.post(func() {
			if p.channel != 0 {
				p.finish(stream.ReasonCanceled)
			}
		})
	})
}

// carry joins the descriptor to the stream.
func (p *blobPull) carry(file *os.File) {
	if p.over || p.channel == 0 {
		file.Close()
		return
	}
	p.channel = 0
	p.stopTimer()
	p.file = pollable(file)
	p.up = make(chan []byte, 1)
	go p.write(p.file, p.up)
	go p.watch(p.file)
	p.pump()
}

// pump gives the writing goroutine what came, one block at a time.
func (p *blobPull) pump() {
	if p.file == nil || p.writing || p.ended || p.over {
		return
	}
	var block []byte
	for piece := p.stream.Peek(); piece != nil && len(block)+len(piece) <= attachBlock; piece = p.stream.Peek() {
		block = append(block, piece...)
		p.stream.Discard(len(piece))
	}
	switch {
	case len(block) > 0:
		p.writing = true
		p.up <- block // has room: one at a time
	case p.stream.End():
		p.ended = true
		close(p.up)
	}
}

// write writes to the descriptor until the cell has sent everything; then the fetcher reads the end.
func (p *blobPull) write(file *os.File, up <-chan []byte) {
	for block := range up {
		_, err := file.Write(block)
		p.owner.daemon.inbox.post(func() {
			p.writing = false
			if err != nil {
				p.finish(stream.ReasonCanceled)
				return
			}
			p.pump()
		})
	}
	shutdownWrite(file)
}

// watch notices that the fetcher wants no more, also while nothing comes for it.
func (p *blobPull) watch(file *os.File) {
	_, _ = io.Copy(io.Discard, file)
	p.owner.daemon.inbox.post(func() { p.finish(stream.ReasonCanceled) })
}

// Writable implements stream.Endpoint: the request is always taken at once.
func (p *blobPull) Writable(*stream.Stream) {}

// Closed implements stream.Endpoint.
func (p *blobPull) Closed(s *stream.Stream, reason stream.Reason) {
	switch {
	case p.over || s != p.stream:
	case !p.accepted:
		p.why = fmt.Sprintf("cell %v: %v", s.Peer(), reason)
		p.next()
	case reason != stream.ReasonNone:
		p.finish(reason) // the fetcher finds that bytes are missing
	}
}

func (p *blobPull) stopTimer() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// finish ends everything that belongs to the pull. It may be called again.
func (p *blobPull) finish(reason stream.Reason) {
	if p.over {
		return
	}
	p.over = true
	delete(p.owner.pulls, p)
	p.stopTimer()
	if h := &p.owner.daemon.helper; p.channel != 0 && h.descriptors != nil {
		h.descriptors.Abandon(p.channel)
	}
	p.channel = 0
	if p.stream != nil {
		p.stream.Reset(reason)
	}
	if p.up != nil && !p.ended {
		p.ended = true
		close(p.up)
	}
	if p.file != nil {
		_ = p.file.SetDeadline(time.Unix(1, 0))
		p.file.Close()
	}
}
