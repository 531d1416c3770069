package control

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// inputBuffer holds ordinary requests, so that one system call reads one.
const inputBuffer = 4 << 10

// client is one connection.
type client struct {
	server     *Server
	connection *net.UnixConn
	raw        syscall.RawConn // of connection
	who        credentials
	may        level
	input      *bufio.Reader // of the reading goroutine, as limited
	limited    bool          // the connection has a deadline for reading

	mutex   sync.Mutex // guards what follows
	ready   sync.Cond  // the output queue or ended has changed
	output  [][]byte   // replies that wait, without the one being written
	waiting int        // bytes in output
	sending bool       // the writing goroutine has something in hand
	writing bool       // the reading goroutine writes its reply itself
	ended   bool       // no more replies come
	broken  bool       // nobody takes them any more
	busy    bool       // a request is being read or executed, or a reply written
	idle    time.Time  // since when not busy
	streams streams
	files   []*passed
}

func newClient(s *Server, connection *net.UnixConn, who credentials, may level) *client {
	c := &client{
		server: s, connection: connection, who: who, may: may, idle: time.Now(),
		input: bufio.NewReaderSize(connection, inputBuffer),
	}
	c.ready.L = &c.mutex
	c.raw, _ = connection.SyscallConn() // nil: the connection is closed, reading says so
	return c
}

// idleSince is zero while the client has something going on.
func (c *client) idleSince() time.Time {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.busy || c.waiting > 0 || c.streamCountLocked() > 0 {
		return time.Time{}
	}
	return c.idle
}

func (c *client) setBusy(busy bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.busy = busy
	c.idle = time.Now()
}

// read is the goroutine that takes requests. When it ends, the replies that are queued still go out.
func (c *client) read() {
	defer c.finish()
	defer c.cancelStreams()
	defer c.endFiles()
	for {
		code, payload, err := c.next()
		if err != nil {
			c.explain(err)
			return
		}
		if isStream(uds.Code(code)) {
			ok := c.stream(uds.Code(code), payload)
			c.setBusy(false)
			if !ok {
				return
			}
			continue
		}
		response := c.server.execute(&c.who, c.may, uds.Code(code), payload)
		ok := false
		if response.File != nil {
			ok = c.replyWithFile(response)
		} else {
			ok = c.queue(frame(response))
		}
		c.setBusy(false)
		if !ok {
			return
		}
	}
}

// next reads one request. It waits as long as it likes for the first byte and 5 seconds for the rest,
// so that a slow sender cannot hold its place (F136). What has come as a whole needs no deadline.
func (c *client) next() (code byte, payload []byte, err error) {
	if c.input.Buffered() == 0 && c.limited {
		c.limited = false
		if err := c.connection.SetReadDeadline(time.Time{}); err != nil {
			return 0, nil, err
		}
	}
	if _, err := c.input.Peek(1); err != nil {
		return 0, nil, err
	}
	c.setBusy(true)
	if !c.requestBuffered() {
		c.limited = true
		if err := c.connection.SetReadDeadline(time.Now().Add(c.server.options.requestTimeout)); err != nil {
			return 0, nil, err
		}
	}
	return uds.ReadFrame(c.input, uds.RequestMax, nil)
}

// requestBuffered reports whether a whole request has been read from the connection.
func (c *client) requestBuffered() bool {
	waiting, _ := c.input.Peek(c.input.Buffered())
	_, _, _, err := uds.ParseFrame(waiting, uds.RequestMax)
	return err == nil
}

// explain tells a client why it is disconnected, if it is worth telling.
func (c *client) explain(err error) {
	var timeout net.Error
	switch {
	case errors.Is(err, uds.ErrFrameTooLarge):
		c.queue(uds.AppendError(nil, uds.ErrorInvalid, fmt.Sprintf("a request may have %d bytes", uds.RequestMax)))
	case errors.As(err, &timeout) && timeout.Timeout():
		c.server.refusals.say(time.Now(), refusedSlow, &c.who, "took too long to send a request: disconnected")
		c.queue(uds.AppendError(nil, uds.ErrorTimeout, "the request did not arrive in time"))
	}
}

// queue puts a reply behind the others. It reports false when the client is gone or is to go.
func (c *client) queue(reply []byte) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if reply = c.writeNow(reply, nil); len(reply) == 0 && !c.broken {
		return true
	}
	// A single large reply is no offence; letting replies pile up is.
	if len(c.output) > 0 && c.waiting+len(reply) > uds.OutputQueueMax {
		c.server.refusals.say(time.Now(), refusedUnread, &c.who, "does not read its replies: disconnected")
		c.broken = true
	}
	if c.broken {
		c.connection.Close()
		return false
	}
	c.output = append(c.output, reply)
	c.waiting += len(reply)
	c.ready.Signal()
	return true
}

// writeNow writes as much of a reply, with rights, as the socket takes at once, if nothing else waits: the
// writing goroutine would have to be woken for it. It returns the rest. The caller holds the lock, which is
// free meanwhile; only the reading goroutine queues replies.
func (c *client) writeNow(reply, rights []byte) (rest []byte) {
	if c.raw == nil || c.broken || c.writing || c.sending || len(c.output) > 0 || len(c.streams.buffer) > 0 {
		return reply
	}
	c.writing = true
	c.mutex.Unlock()
	n, err := 0, error(nil)
	failed := c.raw.Write(func(fd uintptr) bool {
		n, err = unix.SendmsgN(int(fd), reply, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	c.mutex.Lock()
	c.writing = false
	if failed != nil || err != nil && err != unix.EAGAIN && err != unix.EINTR {
		c.broken = true
		n = 0
	}
	if c.broken || len(c.streams.buffer) > 0 {
		c.ready.Signal()
	}
	return reply[max(n, 0):]
}

func (c *client) finish() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.ended = true
	c.ready.Signal()
}

// write is the goroutine that sends replies and what streams bring. It closes the connection when the last
// reply is out.
func (c *client) write() {
	defer c.server.remove(c)
	defer c.connection.Close()
	for {
		reply, streamed, ok := c.take()
		if !ok {
			return
		}
		// A client may look at a stream as slowly as it likes: the stream waits. Replies it must take. The
		// deadline is of this reply alone: one that had passed would break the next reply, which writeNow
		// writes.
		if !streamed {
			_ = c.connection.SetWriteDeadline(time.Now().Add(c.server.options.requestTimeout))
		}
		_, err := c.connection.Write(reply)
		if !streamed {
			_ = c.connection.SetWriteDeadline(time.Time{})
		}
		if c.written(reply, streamed, err) {
			c.resumeStreams()
		}
		if err != nil {
			c.cancelStreams()
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				c.server.refusals.say(time.Now(), refusedUnread, &c.who, "does not read its reply: disconnected")
			}
			return
		}
	}
}

// written accounts for what was sent and reports whether streams may go on that had no room.
func (c *client) written(reply []byte, streamed bool, err error) (resume bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.broken = c.broken || err != nil
	if !streamed {
		c.waiting -= len(reply)
		return false
	}
	c.streams.spare = reply[:0]
	resume, c.streams.blocked = c.streams.blocked, false
	return resume
}

// take waits for something to write: a reply, or all frames of streams that have gathered.
func (c *client) take() (data []byte, streamed, ok bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.sending = false
	for c.writing || len(c.output) == 0 && len(c.streams.buffer) == 0 && !c.ended && !c.broken {
		c.ready.Wait()
	}
	c.sending = true
	switch {
	case c.broken:
		return nil, false, false
	case len(c.output) > 0:
		data = c.output[0]
		c.output = c.output[1:]
		return data, false, true
	case len(c.streams.buffer) > 0 && !c.ended:
		data = c.streams.buffer
		c.streams.buffer = c.streams.spare
		return data, true, true
	}
	return nil, false, false
}
