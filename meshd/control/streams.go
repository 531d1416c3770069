package control

import (
	"encoding/binary"
	"fmt"
	"time"

	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// Sink is where a stream's news go, on their way to the client. Its methods do not block and may be called
// from any goroutine.
type Sink interface {
	// Opened: the other end has accepted.
	Opened()
	// Data takes a copy of p, or nothing: then Handle.Resume is called when there is room.
	Data(p []byte) bool
	// Fin: the other end sends no more.
	Fin()
	// Closed is the last call. errno 0 is an orderly end.
	Closed(errno uint16, text string)
}

// Handle is a client's stream. Its methods are called from the client's goroutines.
type Handle interface {
	// Write keeps p until the stream has taken it; then the channel yields, also when the stream is over.
	// One Write at a time.
	Write(p []byte) <-chan struct{}
	// CloseWrite ends the client's direction.
	CloseWrite()
	// Cancel ends the stream. Closed follows.
	Cancel()
	// Resume says that Data may be called again.
	Resume()
}

// streams is what one client has open.
type streams struct {
	open    map[uint32]*sink
	buffer  []byte // frames for the client, at most StreamQueueMax of data, and closingMax of others
	spare   []byte
	blocked bool // somebody was refused room
}

// sink implements Sink for one stream of a client.
type sink struct {
	client *client
	handle uint32
	cell   uint64 // where to, 0 = wherever the workload runs
	stream Handle
}

// frame appends one frame for the client. The client's mutex is held.
func (s *sink) frame(code uds.Code, payload []byte) {
	c := s.client
	if c.broken {
		return
	}
	c.streams.buffer = uds.AppendFrame(c.streams.buffer, byte(code), payload)
	c.ready.Signal()
}

// Opened implements Sink.
func (s *sink) Opened() {
	s.client.mutex.Lock()
	defer s.client.mutex.Unlock()
	s.frame(uds.CodeStreamOpen, binary.BigEndian.AppendUint32(nil, s.handle))
}

// Data implements Sink.
func (s *sink) Data(p []byte) bool {
	c := s.client
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.broken {
		return true // nobody reads it; Cancel is on its way
	}
	if len(c.streams.buffer)+len(p) > uds.StreamQueueMax {
		c.streams.blocked = true
		return false
	}
	c.streams.buffer = uds.AppendStreamData(c.streams.buffer, s.handle, p)
	c.ready.Signal()
	return true
}

// Fin implements Sink.
func (s *sink) Fin() {
	s.client.mutex.Lock()
	defer s.client.mutex.Unlock()
	s.frame(uds.CodeStreamClose, (&uds.StreamClose{Handle: s.handle, Flag: uds.StreamFin}).Append(nil))
}

// Closed implements Sink.
func (s *sink) Closed(errno uint16, text string) {
	c := s.client
	c.mutex.Lock()
	defer c.mutex.Unlock()
	s.frame(uds.CodeStreamClose, (&uds.StreamClose{
		Handle: s.handle, Flag: uds.StreamReset, Errno: errno, Text: text,
	}).Append(nil))
	delete(c.streams.open, s.handle)
}

// isStream reports whether a request is about streams.
func isStream(code uds.Code) bool { return code >= uds.CodeStreamOpen && code <= uds.CodeStreamClose }

// stream handles one request about streams; it reports false when the client is to go. While a stream does
// not take data, no further request of this client is read.
func (c *client) stream(code uds.Code, payload []byte) bool {
	switch code {
	case uds.CodeStreamOpen:
		return c.openStream(payload)
	case uds.CodeStreamData:
		if len(payload) < 4 {
			return c.malformed()
		}
		if stream := c.find(binary.BigEndian.Uint32(payload)); stream != nil {
			return c.waitWritten(stream, stream.Write(payload[4:]))
		}
	case uds.CodeStreamClose:
		end, err := uds.ParseStreamClose(payload)
		if err != nil {
			return c.malformed()
		}
		stream := c.find(end.Handle)
		switch {
		case stream == nil: // it has ended meanwhile
		case end.Flag == uds.StreamReset:
			stream.Cancel()
		default:
			stream.CloseWrite()
		}
	}
	return true
}

// hangupInterval is how often a client whose stream takes nothing is looked after.
const hangupInterval = time.Second

// waitWritten waits until a stream has taken what the client wrote, or the client is gone: nobody reads from
// its connection meanwhile, so the kernel is asked.
func (c *client) waitWritten(stream Handle, taken <-chan struct{}) bool {
	timer := time.NewTicker(hangupInterval)
	defer timer.Stop()
	for {
		select {
		case <-taken:
			return true
		case <-timer.C:
			if c.hungUp() {
				stream.Cancel()
				return false
			}
		case <-c.server.context.Done():
			return false
		}
	}
}

// hungUp reports whether the client has closed its connection.
func (c *client) hungUp() bool {
	gone := true
	raw, err := c.connection.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		list := []unix.PollFd{{Fd: int32(fd)}} // hang-up and errors are reported unasked
		_, err := unix.Poll(list, 0)
		gone = err == nil && list[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}

func (c *client) malformed() bool {
	c.queue(uds.AppendError(nil, uds.ErrorInvalid, uds.ErrMalformedStream.Error()))
	return false
}

func (c *client) find(handle uint32) Handle {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if s := c.streams.open[handle]; s != nil {
		return s.stream
	}
	return nil
}

// openStream checks who may open what (F135) and has it opened.
func (c *client) openStream(payload []byte) bool {
	open, err := uds.ParseStreamOpen(payload)
	if err != nil {
		return c.malformed()
	}
	if c.refusalsPile() {
		return false
	}
	s := &sink{client: c, handle: open.Handle, cell: open.Cell}
	need := levelWrite
	if open.Kind == uds.StreamLogs || open.Kind == uds.StreamMetrics {
		need = levelRead
	}
	switch reason := c.streamRoom(s); {
	case reason != "":
		s.refuse(uds.ErrorBusy, reason)
	case need > c.may:
		c.server.refusals.say(time.Now(), refusedStream, &c.who, "was refused a stream of kind %d to %q", open.Kind, open.Name)
		s.Closed(uds.ErrorPermission, fmt.Sprintf("uid %d may read but not change: run as root or join group %s",
			c.who.uid, uds.GroupWrite))
	case c.server.options.OpenStream == nil:
		s.Closed(uds.ErrorInvalid, "this daemon has no streams")
	default:
		if need == levelWrite {
			c.server.options.Log(fmt.Sprintf("control: uid %d (pid %d): stream of kind %d to %q",
				c.who.uid, c.who.pid, open.Kind, open.Name))
		}
		stream := c.server.options.OpenStream(open, c.who.uid, s)
		c.mutex.Lock()
		s.stream = stream
		c.mutex.Unlock()
		stream.Resume() // what came before there was a handle
	}
	return true
}

// closingMax bounds the frames beside data that wait for a client: a few for each of its streams.
const closingMax = 128 << 10

// refusalsPile reports whether a client goes on opening streams but does not read what becomes of them; then
// it is to go.
func (c *client) refusalsPile() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.streams.buffer) <= uds.StreamQueueMax+closingMax {
		return false
	}
	c.server.refusals.say(time.Now(), refusedUnread, &c.who, "does not read what its streams say: disconnected")
	c.broken = true
	c.connection.Close()
	c.ready.Signal()
	return true
}

// refuse is Closed for a handle that is not in the table.
func (s *sink) refuse(errno uint16, text string) {
	s.client.mutex.Lock()
	defer s.client.mutex.Unlock()
	s.frame(uds.CodeStreamClose, (&uds.StreamClose{
		Handle: s.handle, Flag: uds.StreamReset, Errno: errno, Text: text,
	}).Append(nil))
}

// streamRoom enters a stream into the client's table, or says why not.
func (c *client) streamRoom(s *sink) string {
	c.server.mutex.Lock() // until it is entered: others ask at the same time
	defer c.server.mutex.Unlock()
	if reason := c.server.streamsFull(c, s.cell); reason != "" {
		return reason
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.streams.open == nil {
		c.streams.open = make(map[uint32]*sink)
	}
	switch {
	case c.streams.open[s.handle] != nil:
		return fmt.Sprintf("handle %d is in use", s.handle)
	case len(c.streams.open) >= uds.ClientStreamsMax:
		return fmt.Sprintf("%d streams are open on this connection already", uds.ClientStreamsMax)
	}
	c.streams.open[s.handle] = s
	return ""
}

// streamCount counts streams and what else makes a client stay: descriptors that end with its connection.
func (c *client) streamCount() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.streamCountLocked()
}

func (c *client) streamCountLocked() int { return len(c.streams.open) + len(c.files) }

// streamsTo counts the streams of a client, those of them to one cell, and what else makes it stay.
func (c *client) streamsTo(cell uint64) (all, there, stays int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, s := range c.streams.open {
		if s.cell == cell {
			there++
		}
	}
	return len(c.streams.open), there, c.streamCountLocked()
}

// streamsFull says why a client cannot have another stream to a cell, "" if it can. The caller holds the
// server's lock.
func (s *Server) streamsFull(c *client, cell uint64) string {
	all, readers, same := 0, 0, 0 // clients
	streams, there := 0, 0        // of readers
	for other := range s.clients {
		open, to, stays := other.streamsTo(cell)
		if other.may < levelWrite {
			streams, there = streams+open, there+to
		}
		if stays == 0 || other == c {
			continue
		}
		all++
		if other.may < levelWrite {
			readers++
		}
		if other.who.uid == c.who.uid {
			same++
		}
	}
	switch {
	case c.may < levelWrite && streams >= uds.StreamsReadersMax:
		return fmt.Sprintf("%d streams of group %s are open already: close one", streams, uds.GroupRead)
	case c.may < levelWrite && there >= uds.StreamsReadersCellMax:
		return fmt.Sprintf("%d streams of group %s to this cell are open already: close one", there, uds.GroupRead)
	case c.streamCount() > 0: // its place is counted
	case all >= uds.StreamingClientsMax:
		return fmt.Sprintf("%d clients have streams or channels open already: close one", all)
	case s.privileged(&c.who):
	case same >= uds.StreamingUserMax:
		return fmt.Sprintf("uid %d has %d clients with streams open already: close one", c.who.uid, same)
	case c.may < levelWrite && readers >= uds.StreamingReadersMax:
		return fmt.Sprintf("%d clients of group %s have streams open already: close one", readers, uds.GroupRead)
	}
	return ""
}

// cancelStreams ends what the client has open, because it is gone.
func (c *client) cancelStreams() {
	for _, stream := range c.handles() {
		stream.Cancel()
	}
}

// resumeStreams lets the streams go on that were refused room.
func (c *client) resumeStreams() {
	for _, stream := range c.handles() {
		stream.Resume()
	}
}

func (c *client) handles() []Handle {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	list := make([]Handle, 0, len(c.streams.open))
	for _, s := range c.streams.open {
		if s.stream != nil {
			list = append(list, s.stream)
		}
	}
	return list
}
