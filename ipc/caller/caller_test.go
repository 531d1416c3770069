package caller

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// daemon is a meshd with one workload, echo, and its worker in one.
type daemon struct {
	t    *testing.T
	path string

	mutex  sync.Mutex
	refuse uint16                                                      // error number of requests for channels, 0 = none
	worker func(channel *invoke.Channel, call *invoke.Invocation) bool // false ends the channel

	asked    int // for channels
	direct   int
	indirect int
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	directory, err := os.MkdirTemp("", "caller") // t.TempDir is longer than a socket path may be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	d := &daemon{t: t, path: filepath.Join(directory, "socket")}
	d.worker = func(channel *invoke.Channel, call *invoke.Invocation) bool {
		return channel.Send(&invoke.Result{ID: call.ID, Output: call.Arguments[0]}) == nil
	}
	listener, err := net.Listen("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go d.serve(connection.(*net.UnixConn))
		}
	}()
	return d
}

func (d *daemon) serve(connection *net.UnixConn) {
	defer connection.Close()
	for {
		code, payload, err := uds.ReadFrame(connection, uds.RequestMax, nil)
		if err != nil {
			return
		}
		d.mutex.Lock()
		switch uds.Code(code) {
		case uds.CodeWasmChannel:
			d.asked++
			if d.refuse != 0 {
				_, _ = connection.Write(uds.AppendError(nil, d.refuse, "no channel"))
				break
			}
			client, worker, _ := invoke.ChannelPair()
			_, _, _ = connection.WriteMsgUnix(uds.AppendReply(nil, nil), unix.UnixRights(int(client.Fd())), nil)
			client.Close()
			channel, _ := invoke.OpenChannel(worker)
			go d.work(channel)
		case uds.CodeWasmInvoke:
			d.indirect++
			_, call, _ := invoke.ParseCall(payload)
			_, _ = connection.Write(uds.AppendReply(nil, invoke.AppendOutcome(nil, &invoke.Result{Output: call.Arguments[0]})))
		}
		d.mutex.Unlock()
	}
}

func (d *daemon) work(channel *invoke.Channel) {
	defer channel.Close()
	for {
		body, err := channel.Receive(make([]byte, invoke.FrameMax+1))
		if err != nil {
			return
		}
		d.mutex.Lock()
		d.direct++
		worker := d.worker
		d.mutex.Unlock()
		if !worker(channel, body.(*invoke.Invocation)) {
			return
		}
	}
}

// works and refuses say what the daemon does from now on.
func (d *daemon) works(worker func(*invoke.Channel, *invoke.Invocation) bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.worker = worker
}

func (d *daemon) refuses(errno uint16) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.refuse = errno
}

func (d *daemon) counts() string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return fmt.Sprintf("%d asked, %d direct, %d indirect", d.asked, d.direct, d.indirect)
}

func (d *daemon) open() *Caller {
	d.t.Helper()
	c, err := Open(d.path, "echo")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	return c
}

func invocation(argument string) *invoke.Invocation {
	return &invoke.Invocation{Function: "f", Milliseconds: 1, Arguments: [][]byte{[]byte(argument)}}
}

func (d *daemon) echoes(c *Caller, argument string) {
	d.t.Helper()
	if result, err := c.Call(invocation(argument)); err != nil || string(result.Output) != argument {
		d.t.Fatalf("%+v, %v", result, err)
	}
}

func fails(t *testing.T, c *Caller, errno uint16) {
	t.Helper()
	result, err := c.Call(invocation("x"))
	var reply *uds.ReplyError
	if !errors.As(err, &reply) || reply.Errno != errno {
		t.Errorf("%+v, %v, expected error %d", result, err, errno)
	}
}

// TestCallsOfManyGoroutinesGoThroughOneChannel: each gets its own result, and keeps it.
func TestCallsOfManyGoroutinesGoThroughOneChannel(t *testing.T) {
	d := newDaemon(t)
	c := d.open()
	var group sync.WaitGroup
	for n := range 20 {
		group.Go(func() {
			first, err := c.Call(invocation(fmt.Sprint("first ", n)))
			if err != nil {
				t.Error(err)
				return
			}
			for k := range 20 {
				if result, err := c.Call(invocation(fmt.Sprint(n, k))); err != nil || string(result.Output) != fmt.Sprint(n, k) {
					t.Errorf("%+v, %v", result, err)
				}
			}
			if string(first.Output) != fmt.Sprint("first ", n) {
				t.Errorf("the first result became %q", first.Output)
			}
		})
	}
	group.Wait()
	if got := d.counts(); got != "1 asked, 420 direct, 0 indirect" {
		t.Error(got)
	}
}

// TestWithoutAChannelCallsGoThroughMeshd, an earlier one that knows no channels included, which is asked once
// a second.
func TestWithoutAChannelCallsGoThroughMeshd(t *testing.T) {
	for _, errno := range []uint16{uds.ErrorInvalid, uds.ErrorNotFound, uds.ErrorBusy} {
		d := newDaemon(t)
		d.refuses(errno)
		c := d.open()
		for range 10 {
			d.echoes(c, "x")
		}
		if got := d.counts(); got != "1 asked, 0 direct, 10 indirect" {
			t.Error(got)
		}
		d.refuses(0)
		time.Sleep(retryInterval)
		d.echoes(c, "x")
		if got := d.counts(); got != "2 asked, 1 direct, 10 indirect" {
			t.Error(got)
		}
	}
}

// TestACallThatMayHaveRunIsNotMadeAgain, one that cannot have is.
func TestACallThatMayHaveRunIsNotMadeAgain(t *testing.T) {
	d := newDaemon(t)
	d.works(func(channel *invoke.Channel, call *invoke.Invocation) bool {
		if string(call.Arguments[0]) == "last" {
			channel.Finish() // the next call finds the channel ended
		}
		return string(call.Arguments[0]) != "x" && channel.Send(&invoke.Result{ID: call.ID, Output: call.Arguments[0]}) == nil
	})
	c := d.open()
	d.echoes(c, "a")
	fails(t, c, invoke.ErrorGone)
	d.echoes(c, "last")
	d.echoes(c, "b")
	if got := d.counts(); got != "3 asked, 4 direct, 0 indirect" {
		t.Error(got)
	}
}

// TestWhatAWorkerLiesCostsItsChannel: an answer to something else is no answer.
func TestWhatAWorkerLiesCostsItsChannel(t *testing.T) {
	for name, lie := range map[string]func(*invoke.Channel, uint64) error{
		"another's result": func(c *invoke.Channel, id uint64) error { return c.Send(&invoke.Result{ID: id + 1}) },
		"an invocation":    func(c *invoke.Channel, id uint64) error { return c.Send(&invoke.Invocation{ID: id}) },
		"noise":            func(c *invoke.Channel, _ uint64) error { return c.SendRaw([]byte("noise")) },
	} {
		d := newDaemon(t)
		d.works(func(channel *invoke.Channel, call *invoke.Invocation) bool {
			if string(call.Arguments[0]) == "x" {
				return lie(channel, call.ID) == nil
			}
			return channel.Send(&invoke.Result{ID: call.ID, Output: call.Arguments[0]}) == nil
		})
		c := d.open()
		result, err := c.Call(invocation("x"))
		var reply *uds.ReplyError
		if !errors.As(err, &reply) || reply.Errno != invoke.ErrorIO && reply.Errno != invoke.ErrorGone {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		d.echoes(c, "y")
		c.Close()
	}
}

// TestAWorkerThatDoesNotAnswerIsGivenUp, and what it answers later is nobody's.
func TestAWorkerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the whole patience of 5 s")
	}
	t.Parallel()
	d := newDaemon(t)
	givenUp, late := make(chan struct{}), make(chan struct{})
	d.works(func(channel *invoke.Channel, call *invoke.Invocation) bool {
		if string(call.Arguments[0]) == "x" {
			<-givenUp
			defer close(late)
		}
		return channel.Send(&invoke.Result{ID: call.ID, Output: call.Arguments[0]}) == nil
	})
	c := d.open()
	fails(t, c, uds.ErrorDeadline)
	close(givenUp)
	d.echoes(c, "y")
	<-late
	d.echoes(c, "z")
}

// TestCloseEndsACall that is under way, and all later ones.
func TestCloseEndsACall(t *testing.T) {
	d := newDaemon(t)
	began := make(chan struct{})
	d.works(func(channel *invoke.Channel, _ *invoke.Invocation) bool {
		close(began)
		_, err := channel.Receive(make([]byte, invoke.FrameMax+1))
		return err == nil
	})
	c := d.open()
	failed := make(chan error, 1)
	go func() {
		_, err := c.Call(invocation("x"))
		failed <- err
	}()
	<-began
	c.Close()
	if err := <-failed; err != ErrClosed {
		t.Error(err)
	}
	if _, err := c.Call(invocation("x")); err != ErrClosed {
		t.Error(err)
	}
	c.Close()
}

func TestOpenAndCallRefuseWhatCannotBe(t *testing.T) {
	d := newDaemon(t)
	for _, name := range []string{"", strings.Repeat("n", 256)} {
		if _, err := Open(d.path, name); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
	if _, err := Open("/nowhere/socket", "echo"); err == nil || !strings.Contains(err.Error(), "no daemon is running") {
		t.Error(err)
	}
	if _, err := d.open().Call(&invoke.Invocation{Arguments: make([][]byte, invoke.ArgumentsMax+1)}); err == nil {
		t.Error("too many arguments were sent")
	}
}
