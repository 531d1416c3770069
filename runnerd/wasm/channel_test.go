package wasm

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/invoke"
)

// channel has a fake meshd make one; kept is the client's end as meshd keeps it.
func (f *fakeMeshd) channel(t testing.TB, id uint64) (client *invoke.Channel, kept *os.File) {
	t.Helper()
	kept, other, err := invoke.ChannelPair()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.conn.SendFile(&invoke.ChannelOpen{ID: id}, other); err != nil {
		t.Fatal(err)
	}
	other.Close()
	copied, err := unix.FcntlInt(kept.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = invoke.OpenChannel(os.NewFile(uintptr(copied), "client")); err != nil {
		t.Fatal(err)
	}
	if err := client.SetPatience(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); kept.Close() })
	return client, kept
}

func (f *fakeMeshd) end(t testing.TB) *invoke.ChannelEnd {
	t.Helper()
	select {
	case ended := <-f.ended:
		return ended
	case <-time.After(10 * time.Second):
		t.Fatal("no channel ended")
		return nil
	}
}

func sendCall(t testing.TB, c *invoke.Channel, id uint64, function string, arguments ...string) {
	t.Helper()
	v := &invoke.Invocation{ID: id, Function: function, Milliseconds: 1000}
	for _, argument := range arguments {
		v.Arguments = append(v.Arguments, []byte(argument))
	}
	if err := c.Send(v); err != nil {
		t.Fatal(err)
	}
}

func receiveResult(t testing.TB, c *invoke.Channel, id uint64) *invoke.Result {
	t.Helper()
	body, err := c.Receive(make([]byte, invoke.FrameMax+1))
	result, is := body.(*invoke.Result)
	if err != nil || !is || result.ID != id {
		t.Fatalf("for %d came %+v, %v", id, body, err)
	}
	return result
}

// TestChannelsCarryInvocations: a thousand at a time, in order, beside those that come through meshd.
func TestChannelsCarryInvocations(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	client, kept := f.channel(t, 7)
	const calls = 1000
	go func() {
		for id := range uint64(calls) {
			v := &invoke.Invocation{ID: id, Function: "add", Arguments: [][]byte{fmt.Append(nil, id), []byte("1")}}
			if client.Send(v) != nil {
				return
			}
		}
	}()
	for id := range uint64(calls) {
		if id%100 == 0 {
			w.executor.Lock()
			if got := call(w, "add", "2", "3"); string(got.Output) != "5" {
				t.Error(got)
			}
			w.executor.Unlock()
		}
		if got := receiveResult(t, client, id); string(got.Output) != strconv.FormatUint(id+1, 10) {
			t.Fatalf("%d: %q", id, got.Output)
		}
	}
	invoke.EndChannel(kept)
	if ended := f.end(t); ended.ID != 7 || ended.Invocations != calls {
		t.Errorf("%+v", ended)
	}
}

// TestF144_ChannelsKeepDeadlines: what runs away is stopped, the error comes back, and the next call has a new
// instance.
func TestF144_ChannelsKeepDeadlines(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	client, _ := connect(t, w).channel(t, 1)
	if err := client.Send(&invoke.Invocation{ID: 1, Function: "spin", Milliseconds: 50}); err != nil {
		t.Fatal(err)
	}
	sendCall(t, client, 2, "trap")
	sendCall(t, client, 3, "missing")
	sendCall(t, client, 4, "calls")
	for id, errno := range []uint16{invoke.ErrorTimeout, invoke.ErrorIO, invoke.ErrorNotFound} {
		if got := receiveResult(t, client, uint64(id+1)); got.Errno != errno || len(got.Output) == 0 {
			t.Errorf("%+v", got)
		}
	}
	if got := receiveResult(t, client, 4); string(got.Output) != "1" {
		t.Errorf("%q", got.Output)
	}
}

// TestF142_AHostileClientCostsItsChannelOnly: what it sends is parsed or ends the channel; another goes on.
func TestF142_AHostileClientCostsItsChannelOnly(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	good, _ := f.channel(t, 1)
	sendCall(t, good, 1, "add", "20", "3") // the worker has it now
	receiveResult(t, good, 1)
	whole := (&invoke.Invocation{ID: 1, Function: "add", Arguments: [][]byte{[]byte("1"), []byte("2")}}).Append(nil)
	for name, lie := range map[string]func(*invoke.Channel){
		"half a message":   func(c *invoke.Channel) { _ = c.SendRaw(whole[:len(whole)/2]) },
		"more than one":    func(c *invoke.Channel) { _ = c.SendRaw(append(whole[:len(whole):len(whole)], 0)) },
		"an empty message": func(c *invoke.Channel) { _ = c.SendRaw(nil) },
		"noise":            func(c *invoke.Channel) { _ = c.SendRaw(make([]byte, invoke.FrameMax)) },
		"an answer":        func(c *invoke.Channel) { _ = c.Send(&invoke.Answer{ID: 1, Value: []byte("v")}) },
		"a channel":        func(c *invoke.Channel) { _ = c.Send(&invoke.ChannelOpen{ID: 1}) },
		"a result":         func(c *invoke.Channel) { _ = c.Send(&invoke.Result{ID: 1}) },
		"nothing":          func(c *invoke.Channel) { c.Interrupt() },
		"no reading": func(c *invoke.Channel) { // until the worker gives it up
			for c.Send(&invoke.Invocation{Function: "add", Arguments: [][]byte{[]byte("1"), []byte("2")}}) == nil {
			}
		},
	} {
		before := descriptors(t)
		evil, _ := f.channel(t, 2)
		done := make(chan struct{})
		go func() { lie(evil); close(done) }()
		for id := range uint64(20) {
			sendCall(t, good, id, "add", "20", "3")
			if got := receiveResult(t, good, id); string(got.Output) != "23" {
				t.Fatalf("%s: %+v", name, got)
			}
		}
		if ended := f.end(t); ended.ID != 2 {
			t.Fatalf("%s: %+v", name, ended)
		}
		<-done
		if after := descriptors(t); after > before+2 { // the client's end, and the one that meshd keeps
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestChannelsTakeTurns: one client's long queue does not keep another from its turn.
func TestChannelsTakeTurns(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	greedy, _ := f.channel(t, 1)
	modest, _ := f.channel(t, 2)
	const queue = 8 // of 100 ms each
	for id := range uint64(queue) {
		if err := greedy.Send(&invoke.Invocation{ID: id, Function: "spin", Milliseconds: 100}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	sendCall(t, modest, 1, "add", "1", "2")
	receiveResult(t, modest, 1)
	if took := time.Since(began); took > queue*100*time.Millisecond/2 {
		t.Errorf("waited %v", took)
	}
}

// TestChannelsEndWithTheirConnection: those of a meshd that has gone end, when what their clients have sent is done.
func TestChannelsEndWithTheirConnection(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	first, _ := f.channel(t, 1)
	sendCall(t, first, 1, "add", "1", "2")
	receiveResult(t, first, 1)
	w.executor.Lock()
	sendCall(t, first, 2, "add", "1", "2")
	sendCall(t, first, 3, "add", "1", "2")
	f = connect(t, w) // a new meshd
	second, _ := f.channel(t, 1)
	deadline := time.Now().Add(10 * time.Second)
	for id := uint64(4); ; id++ {
		if err := first.Send(&invoke.Invocation{ID: 100, Function: "calls"}); err == invoke.ErrNotSent {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the channel does not end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.executor.Unlock()
	receiveResult(t, first, 2)
	receiveResult(t, first, 3)
	for {
		body, err := first.Receive(make([]byte, invoke.FrameMax+1))
		if result, is := body.(*invoke.Result); is && result.ID == 100 {
			continue // sent before the end
		}
		if err != io.EOF {
			t.Errorf("%v, %v", body, err)
		}
		break
	}
	sendCall(t, second, 1, "add", "1", "2")
	receiveResult(t, second, 1)
}

// TestChannelsAreBounded: one too many is ended at once, and meshd told; what is no channel ends the connection.
func TestChannelsAreBounded(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	for id := range uint64(invoke.WorkerChannelsMax) {
		client, _ := f.channel(t, id)
		sendCall(t, client, id, "add", "1", "2")
		receiveResult(t, client, id)
	}
	client, _ := f.channel(t, 99)
	if ended := f.end(t); ended.ID != 99 || ended.Invocations != 0 {
		t.Errorf("%+v", ended)
	}
	if err := client.Send(&invoke.Invocation{ID: 1}); err != invoke.ErrNotSent {
		t.Error(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := f.conn.SendFile(&invoke.ChannelOpen{ID: 100}, null); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(10 * time.Second); w.present() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the connection goes on")
		}
	}
}

// TestServicesRefuseChannels: meshd makes none to a service, and one that is made is of no use.
func TestServicesRefuseChannels(t *testing.T) {
	w := testWorker(t, fixture(t, "service"), nil)
	client, _ := connect(t, w).channel(t, 1)
	w.executor.Lock() // as the service has it while it runs
	defer w.executor.Unlock()
	sendCall(t, client, 1, "add", "1", "2")
	if got := receiveResult(t, client, 1); got.Errno != invoke.ErrorUnsupported {
		t.Errorf("%+v", got)
	}
}

// FuzzChannel sends a worker what a client may: it answers or ends the channel, and another one works afterwards.
func FuzzChannel(f *testing.F) {
	w := testWorker(f, fixture(f, "functions"), nil)
	meshd := connect(f, w)
	good, _ := meshd.channel(f, 1)
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3})
	f.Add((&invoke.Invocation{Function: "add", Arguments: [][]byte{[]byte("1"), []byte("2")}}).Append(nil))
	f.Add((&invoke.Invocation{Milliseconds: 1, Function: "spin"}).Append(nil))
	f.Add((&invoke.Invocation{Arguments: [][]byte{[]byte("a")}}).Append(nil))
	f.Add((&invoke.Invocation{Function: "_initialize"}).Append(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > invoke.FrameMax {
			return
		}
		if body, err := invoke.Parse(raw); err == nil {
			if v, is := body.(*invoke.Invocation); is && v.Milliseconds != 1 {
				v.Milliseconds = 1 // no time for what runs away
				raw = v.Append(nil)
			}
		}
		client, kept := meshd.channel(t, 2)
		if err := client.SendRaw(raw); err != nil {
			t.Fatal(err)
		}
		invoke.EndChannel(kept)
		buffer := make([]byte, invoke.FrameMax+1)
		for {
			body, err := client.Receive(buffer)
			if err == io.EOF {
				break
			}
			if _, is := body.(*invoke.Result); err != nil || !is {
				t.Fatalf("%v, %v", body, err)
			}
		}
		meshd.end(t)
		client.Close()
		sendCall(t, good, 5, "add", "1", "2")
		receiveResult(t, good, 5)
	})
}

// TestAWorkerThatStopsDoesWhatItWasSent: an update that replaces an instance costs no call that has begun or waits, within
// the grace (docs/wasm.md, "What was sent by then is still done").
func TestAWorkerThatStopsDoesWhatItWasSent(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), nil)
	f := connect(t, w)
	client, _ := f.channel(t, 1)
	sendCall(t, client, 1, "add", "1", "2")
	receiveResult(t, client, 1)
	w.executor.Lock() // something runs
	sendCall(t, client, 2, "add", "1", "2")
	sendCall(t, client, 3, "add", "2", "2")
	finished := make(chan struct{})
	go func() { w.finish(); close(finished) }()
	late, _ := f.channel(t, 2)
	if ended := f.end(t); ended.ID != 2 {
		t.Errorf("a channel was opened to a worker that stops: %+v", ended)
	}
	select {
	case <-finished:
		t.Fatal("it has finished before what it was sent was done")
	case <-time.After(3 * finishDelay):
	}
	if err := client.Send(&invoke.Invocation{ID: 4, Function: "calls"}); err != invoke.ErrNotSent {
		t.Errorf("a call was sent to a worker that stops: %v", err)
	}
	if err := late.Send(&invoke.Invocation{ID: 4, Function: "calls"}); err != invoke.ErrNotSent {
		t.Errorf("a call was sent by a channel that was refused: %v", err)
	}
	w.executor.Unlock()
	receiveResult(t, client, 2)
	receiveResult(t, client, 3)
	select {
	case <-finished:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not finish")
	}
	w.executor.Unlock()
}
