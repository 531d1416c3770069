package wasm

import (
	"os"

	"colloid.net/ipc/invoke"
)

// open takes a channel that meshd has made for a client, and serves it. false: meshd may not do this.
func (c *connection) open(conn *invoke.Conn, id uint64, file *os.File) bool {
	channel, err := invoke.OpenChannel(file)
	if err != nil {
		return false
	}
	c.mutex.Lock()
	admitted := c.current == conn && !c.stopping && len(c.channels) < invoke.WorkerChannelsMax
	if admitted {
		if c.channels == nil {
			c.channels = map[*invoke.Channel]*invoke.Conn{}
		}
		c.channels[channel] = conn
	}
	current := c.current == conn
	c.mutex.Unlock()
	if !admitted { // those of an earlier connection may be ending yet
		channel.Close()
		return current && conn.Send(&invoke.ChannelEnd{ID: id}) == nil
	}
	go func() {
		count := c.serve(channel)
		c.mutex.Lock()
		delete(c.channels, channel)
		c.mutex.Unlock()
		channel.Close()
		_ = conn.Send(&invoke.ChannelEnd{ID: id, Invocations: count}) // a meshd that has gone knows
	}()
	return true
}

// finishChannels ends the channels of a connection that has ended: nobody is left who could end them when their
// client loses its right. What the clients have sent is still done.
func (c *connection) finishChannels(conn *invoke.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for channel, of := range c.channels {
		if of == conn {
			channel.Finish()
		}
	}
}

// refuseChannels ends all channels like finishChannels, and takes no further ones: the worker stops.
func (c *connection) refuseChannels() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.stopping = true
	for channel := range c.channels {
		channel.Finish()
	}
}

// idle reports whether no client has sent anything by a channel that is not done.
func (c *connection) idle() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.channels) == 0
}

// serveChannel does what a client asks for, one invocation after the other, on the thread that received it: the
// way to another one would take longer than most functions. The client is as hostile as can be; all it can do is
// what it could through meshd, and what does not parse ends its channel. The rest waits in the socket, which is
// the client's. It returns how many invocations came.
func (w *worker) serveChannel(channel *invoke.Channel) (count uint64) {
	buffer := make([]byte, invoke.FrameMax+1)
	var frame []byte
	for {
		body, err := channel.Receive(buffer)
		if err != nil {
			return count
		}
		call, is := body.(*invoke.Invocation)
		if !is {
			return count
		}
		count++
		frame = w.answer(frame[:0], call)
		if channel.SendRaw(frame) != nil {
			return count
		}
	}
}

// answer runs an invocation and appends the frame of its result. The executor is free again before that is sent:
// a client that does not read holds up itself.
func (w *worker) answer(frame []byte, call *invoke.Invocation) []byte {
	if w.engine.module.Style == StyleService {
		return serviceRefusal(call).Append(frame)
	}
	w.executor.Lock()
	defer w.executor.Unlock()
	return w.execute(call).Append(frame)
}
