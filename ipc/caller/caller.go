// Package caller invokes functions of a module, for programs that do so again and again.
//
// A Caller is for one workload. Its first call asks meshd, over the command socket, for a channel (package
// ipc/invoke) to the worker of an instance on this cell. From then on a call goes straight to that worker and
// its result straight back: two threads are woken for it instead of four. Where there is no channel to be had
// (no instance on this cell, all channels taken, a meshd that knows none), calls go through meshd, which
// passes them on to other cells, and a channel is asked for again every second.
//
// meshd ends the channel when the instance ends or is replaced, whatever its reason. The next call asks for
// another one, so it reaches the version that runs then. A call that had not been taken by then is made again
// by itself; one that had been fails with invoke.ErrorGone: it may have run.
//
// Limits: one call at a time; further ones wait their turn. A thread of the program sleeps in the kernel
// during a call. Each Caller holds one connection to the command socket. Of all connections 96 may have
// channels, 32 of one user who is not root.
package caller

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// retryInterval is how long a Caller that was refused a channel does without.
const retryInterval = time.Second

// ErrClosed is what calls of a closed Caller give.
var ErrClosed = errors.New("the caller is closed")

// Caller invokes functions of one workload. It may be used by several goroutines.
type Caller struct {
	path, workload string

	turn    sync.Mutex // held during a call; guards what follows
	refused time.Time  // when a channel was last refused
	lastID  uint64
	buffer  []byte

	// mutex guards closed, and what follows it for whoever does not hold turn. It is never held during a
	// wait.
	mutex   sync.Mutex
	closed  bool
	client  *uds.Client     // nil = it must be made
	channel *invoke.Channel // nil = there is none
}

// Open makes a Caller for a workload and connects to the daemon whose command socket is at path. The errors
// are those of uds.Dial. The workload need not run yet.
func Open(path, workload string) (*Caller, error) {
	if len(workload) == 0 || len(workload) > 255 {
		return nil, fmt.Errorf("%.80q is no name of a workload", workload)
	}
	client, err := uds.Dial(path)
	if err != nil {
		return nil, err
	}
	return &Caller{path: path, workload: workload, client: client, buffer: make([]byte, invoke.FrameMax+1)}, nil
}

// Call has one function called and waits for its result, at most as long as the invocation may take with
// others before it. call must pass its Check; its ID does not matter. What the result points to is the
// caller's to keep.
//
// Errors: *uds.ReplyError with a number of package invoke or uds, among them ErrorDeadline (the function took
// too long), ErrorNotFound, ErrorIO (it trapped) and invoke.ErrorGone (it may have run); or one of the
// connection to meshd. In each case the next call may succeed.
func (c *Caller) Call(call *invoke.Invocation) (*invoke.Result, error) {
	if err := call.Check(); err != nil {
		return nil, err
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	for range 2 { // a channel that has ended is worth one attempt to get another
		if c.isClosed() {
			return nil, ErrClosed
		}
		if c.channel == nil && (c.refused.IsZero() || time.Since(c.refused) >= retryInterval) {
			if err := c.openChannel(); err != nil {
				return nil, err
			}
		}
		if c.channel == nil {
			break
		}
		result, err := c.callDirectly(call)
		if err != invoke.ErrNotSent {
			return result, err
		}
	}
	return c.callThroughMeshd(call)
}

// callDirectly uses the channel. invoke.ErrNotSent: there is none any more, and the call was not made.
func (c *Caller) callDirectly(call *invoke.Invocation) (*invoke.Result, error) {
	channel := c.channel
	c.lastID++
	sent := *call
	sent.ID = c.lastID
	err := channel.SetPatience(sent.Patience())
	if err == nil {
		err = channel.Send(&sent)
	}
	if err == invoke.ErrNotSent {
		c.drop()
		return nil, err
	}
	var body any
	if err == nil {
		body, err = channel.Receive(c.buffer)
	}
	result, is := body.(*invoke.Result)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.drop() // its answer may come yet, and must not be taken for another's
		return nil, &uds.ReplyError{Errno: uds.ErrorDeadline, Text: c.workload + ": the worker does not answer"}
	case err != nil:
		c.drop()
		if c.isClosed() {
			return nil, ErrClosed
		}
		return nil, &uds.ReplyError{
			Errno: invoke.ErrorGone, Text: c.workload + ": the worker ended while the function ran",
		}
	case !is || result.ID != sent.ID:
		c.drop()
		return nil, &uds.ReplyError{Errno: invoke.ErrorIO, Text: c.workload + ": the worker's answer is not understood"}
	case result.Errno != 0:
		return nil, &uds.ReplyError{Errno: result.Errno, Text: c.workload + ": " + string(result.Output)}
	}
	result.Output = bytes.Clone(result.Output)
	return result, nil
}

func (c *Caller) callThroughMeshd(call *invoke.Invocation) (*invoke.Result, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	c.client.Timeout = 2*uds.DefaultTimeout + call.Patience() // meshd ends it before
	reply, err := c.client.Do(uds.CodeWasmInvoke, invoke.AppendCall(nil, c.workload, call))
	if err != nil {
		if c.failed(err) && c.isClosed() {
			err = ErrClosed
		}
		return nil, err
	}
	result, err := invoke.ParseOutcome(reply)
	if err != nil {
		return nil, fmt.Errorf("the daemon's answer is not understood (%w): are both of one version?", err)
	}
	return result, nil
}

// connect makes the connection to meshd if there is none.
func (c *Caller) connect() error {
	if c.client != nil {
		return nil
	}
	client, err := uds.Dial(c.path)
	if err != nil {
		return err
	}
	if !c.keep(client, nil) {
		return ErrClosed
	}
	return nil
}

// keep notes what the Caller has, for Close to end it; nil gives up what it had. false: it was closed
// meanwhile.
func (c *Caller) keep(client *uds.Client, channel *invoke.Channel) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.client, c.channel = client, channel
	if c.closed {
		c.release()
	}
	return !c.closed
}

// release closes what there is. The caller holds both locks.
func (c *Caller) release() {
	if c.channel != nil {
		c.channel.Close()
	}
	if c.client != nil {
		c.client.Close()
	}
	c.client, c.channel = nil, nil
}

// drop gives up the channel, and the connection with it: meshd ends channels with their connection.
func (c *Caller) drop() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.release()
}

// failed drops a connection of which nothing more is to be expected, and reports whether it did.
func (c *Caller) failed(err error) bool {
	var refused *uds.ReplyError
	if errors.As(err, &refused) || errors.Is(err, uds.ErrNotFound) {
		return false
	}
	c.drop()
	return true
}

// openChannel asks for a channel; without an error there may be none: then calls go through meshd. A
// connection that turns out to have ended, with an earlier meshd for instance, is made again.
func (c *Caller) openChannel() error {
	for attempt := range 2 {
		if err := c.connect(); err != nil {
			return err
		}
		c.client.Timeout = uds.DefaultTimeout
		_, file, err := c.client.DoFile(uds.CodeWasmChannel, []byte(c.workload))
		switch {
		case err == nil:
			channel, err := invoke.OpenChannel(file)
			if err == nil && !c.keep(c.client, channel) {
				err = ErrClosed
			}
			return err
		case c.failed(err) && attempt == 0:
			continue
		}
		c.refused = time.Now()
		break
	}
	return nil
}

func (c *Caller) isClosed() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.closed
}

// Close ends the Caller and the call that is under way.
func (c *Caller) Close() error {
	c.mutex.Lock()
	c.closed = true
	if c.channel != nil {
		c.channel.Interrupt()
	}
	if c.client != nil {
		c.client.Close()
	}
	c.mutex.Unlock()
	c.turn.Lock()
	defer c.turn.Unlock()
	c.drop()
	return nil
}
