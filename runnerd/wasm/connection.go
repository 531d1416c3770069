package wasm

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"colloid.net/ipc/invoke"
)

// task is an invocation and where its result goes.
type task struct {
	connection *invoke.Conn
	call       *invoke.Invocation
}

// connection is the worker's side of the way to meshd.
type connection struct {
	queue  chan task
	undone atomic.Int64 // invocations that are in queue, or were and have no result yet

	// serve takes a channel, on a goroutine of its own; it returns how many invocations came.
	serve func(*invoke.Channel) uint64

	mutex    sync.Mutex // guards what follows
	current  *invoke.Conn
	channels map[*invoke.Channel]*invoke.Conn // which connection brought them
	stopping bool                             // there will be no further ones
	pending  map[uint64]chan *invoke.Answer
	nextID   uint64
}

// accept takes connections that runnerd makes, until the process ends. A new one replaces the old: it is
// that of a new meshd.
func (c *connection) accept(file *os.File, hello invoke.Hello) {
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return // without connections: the module still runs
	}
	go func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			passed, err := socket.(*net.UnixConn).File()
			socket.Close()
			if err != nil {
				continue
			}
			conn, err := invoke.Open(passed)
			if err != nil {
				continue
			}
			c.take(conn)
			go func() {
				if conn.Send(&hello) == nil {
					c.receive(conn)
				}
			}()
		}
	}()
}

func (c *connection) take(conn *invoke.Conn) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.current != nil {
		c.current.Close()
	}
	c.current = conn
	c.dropPending()
}

// dropPending answers what waits: nobody else will. The caller holds the lock.
func (c *connection) dropPending() {
	for id, answers := range c.pending {
		delete(c.pending, id)
		close(answers)
	}
}

func (c *connection) receive(conn *invoke.Conn) {
	buffer := make([]byte, invoke.FrameMax+1)
	for {
		body, file, err := conn.ReceiveFile(buffer)
		if err != nil {
			break
		}
		switch frame := body.(type) {
		case *invoke.ChannelOpen:
			if !c.open(conn, frame.ID, file) {
				conn.Close()
			}
		case *invoke.Invocation:
			for i := range frame.Arguments {
				frame.Arguments[i] = bytes.Clone(frame.Arguments[i])
			}
			c.undone.Add(1)
			select {
			case c.queue <- task{conn, frame}:
			default:
				c.undone.Add(-1)
				_ = conn.Send(&invoke.Result{ID: frame.ID, Errno: invoke.ErrorBusy,
					Output: []byte("too many invocations wait at this worker: try again")})
			}
		case *invoke.Answer:
			frame.Value = bytes.Clone(frame.Value)
			c.deliver(frame)
		default: // what only a worker sends
			conn.Close()
		}
	}
	c.finishChannels(conn)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.current == conn {
		c.current = nil
		c.dropPending()
	}
}

func (c *connection) deliver(answer *invoke.Answer) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	answers := c.pending[answer.ID]
	if answers == nil {
		return // its request has given up
	}
	select {
	case answers <- answer:
	default: // more frames than a snapshot can have
		delete(c.pending, answer.ID)
		close(answers)
		return
	}
	if !answer.More {
		delete(c.pending, answer.ID)
	}
}

// snapshotFramesMax is above what a snapshot of invoke.KeysMax keys takes.
const snapshotFramesMax = 16

// present is the connection there is, nil = none.
func (c *connection) present() *invoke.Conn {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.current
}

// request sends a request; answers come through the channel, which is closed when none come any more.
func (c *connection) request(request *invoke.Request) (chan *invoke.Answer, bool) {
	return c.requestOn(c.present(), request)
}

// requestOn sends a request over one connection, if that is still the present one.
func (c *connection) requestOn(conn *invoke.Conn, request *invoke.Request) (chan *invoke.Answer, bool) {
	answers := make(chan *invoke.Answer, snapshotFramesMax)
	c.mutex.Lock()
	if conn == nil || c.current != conn {
		c.mutex.Unlock()
		return nil, false
	}
	c.nextID++
	request.ID = c.nextID
	if c.pending == nil {
		c.pending = map[uint64]chan *invoke.Answer{}
	}
	c.pending[request.ID] = answers
	c.mutex.Unlock()
	return answers, conn.Send(request) == nil
}

func (c *connection) forget(id uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.pending, id)
}

// ask sends a request of the module and waits for its answer as long as the invocation may take.
func (w *worker) ask(request *invoke.Request) *invoke.Answer {
	last := &invoke.Answer{}
	if errno := w.askAll(w.callContext, request, func(a *invoke.Answer) bool {
		last = a
		return true
	}); errno != 0 {
		return &invoke.Answer{Errno: errno}
	}
	return last
}

// askAll hands each answer to take, which returns false for one that cannot be. It gives the errno of the
// last one.
func (w *worker) askAll(ctx context.Context, request *invoke.Request, take func(*invoke.Answer) bool) uint16 {
	answers, sent := w.request(request)
	if !sent {
		return invoke.ErrorTryAgain
	}
	defer w.forget(request.ID)
	timer := time.NewTimer(requestPatience)
	defer timer.Stop()
	for {
		select {
		case answer, open := <-answers:
			switch {
			case !open:
				return invoke.ErrorTryAgain
			case answer.Errno != 0:
				return answer.Errno
			case !take(answer):
				return invoke.ErrorIO
			case !answer.More:
				return 0
			}
		case <-ctx.Done():
			return invoke.ErrorTimeout
		case <-timer.C:
			return invoke.ErrorTryAgain
		}
	}
}

// sendMetric tells meshd of a metric, if there is one.
func (c *connection) sendMetric(metric *invoke.Metric) {
	if conn := c.present(); conn != nil {
		_ = conn.Send(metric)
	}
}
