package daemon

import (
	"fmt"
	"os"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/control"
)

const (
	// channelsMax bounds the channels of all workers of this cell together.
	channelsMax = 64
	// channelLineInterval is how often a worker's ended channels have a line in the log, one for all since the last.
	channelLineInterval = time.Second
)

// endedChannels are those of a worker that no line has told of, and when the last line did.
type endedChannels struct {
	channels    int
	invocations uint64
	told        time.Time
}

// channel is one that was made for a client: the client's end of it, with which meshd ends it. One that has ended
// stays with its worker until that has done what was sent before, and says so.
type channel struct {
	worker *worker
	id     uint64
	end    *os.File // nil = it has ended
}

// openChannel carries out WASM_CHANNEL of the command socket, on the client's goroutine. The client's right was
// looked at like that for each invocation; the channel ends with its connection, so it lasts as long as that does.
func (w *workers) openChannel(request control.Request) control.Response {
	refuse := func(errno uint16, text string) control.Response {
		return control.Response{Status: uds.Error, Errno: errno, Text: text}
	}
	if len(request.Payload) == 0 || len(request.Payload) > 255 {
		return refuse(uds.ErrorInvalid, "malformed channel request")
	}
	name := bareName(string(request.Payload))
	mine, theirs, err := invoke.ChannelPair()
	if err != nil {
		return refuse(uds.ErrorIO, err.Error())
	}
	defer theirs.Close()
	c, conn, errno := w.enterChannel(name, mine)
	switch {
	case errno == uds.ErrorNotFound:
		mine.Close()
		return refuse(errno, fmt.Sprintf("%.80q has no instance on this cell that can be invoked through a channel", name))
	case errno != 0:
		mine.Close()
		return refuse(errno, fmt.Sprintf("the instance of %s on this cell is starting, or has %d channels already, or there are %d "+
			"in all: invoke it without", name, invoke.ChannelsMax, channelsMax))
	}
	if err := conn.SendFile(&invoke.ChannelOpen{ID: c.id}, theirs); err != nil {
		w.endChannel(c)
		return refuse(uds.ErrorBusy, fmt.Sprintf("the instance of %s has just ended: try again", name))
	}
	return control.Response{Status: uds.OK, File: mine, Ended: func() { w.endChannel(c) }}
}

// enterChannel picks the worker with the fewest channels and enters one there.
func (w *workers) enterChannel(name string, end *os.File) (*channel, *invoke.Conn, uint16) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	errno := uds.ErrorNotFound
	var best *worker
	for _, candidate := range w.byInstance {
		switch {
		case candidate.name != name || candidate.retiring || candidate.connected && !candidate.takesChannels:
		case !candidate.connected || len(candidate.channels) >= invoke.ChannelsMax:
			errno = uds.ErrorBusy
		case best == nil || len(candidate.channels) < len(best.channels) ||
			len(candidate.channels) == len(best.channels) && candidate.id.Slot < best.id.Slot:
			best = candidate
		}
	}
	switch {
	case best == nil:
		return nil, nil, errno
	case w.channels >= channelsMax:
		return nil, nil, uds.ErrorBusy
	}
	best.nextID++
	c := &channel{worker: best, id: best.nextID, end: end}
	best.channels[c.id] = c
	w.channels++
	return c, best.conn, 0
}

// endChannel ends a channel, unless that has happened: it asks neither its client nor its worker.
func (w *workers) endChannel(c *channel) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.shutChannel(c)
}

// shutChannel is endChannel for a caller who holds the lock. It does not wait for anything.
func (w *workers) shutChannel(c *channel) {
	if c.end == nil {
		return
	}
	invoke.EndChannel(c.end)
	c.end = nil
	w.channels--
}

// channelEnded takes a worker's word that a channel is over. The caller holds the lock.
func (w *workers) channelEnded(to *worker, ended *invoke.ChannelEnd) {
	if s := to.shortcut; s != nil && s.id == ended.ID {
		w.cutShort(s)
		return
	}
	c := to.channels[ended.ID]
	if c == nil {
		return
	}
	w.shutChannel(c)
	delete(to.channels, ended.ID)
	to.ended.channels++
	to.ended.invocations += ended.Invocations
	if now := time.Now(); now.Sub(to.ended.told) >= channelLineInterval {
		w.daemon.log.printf("worker of %s: channels ended: %d, after %d invocations", to.name, to.ended.channels,
			to.ended.invocations)
		to.ended = endedChannels{told: now}
	}
}
