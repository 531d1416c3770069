package wasm

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"colloid.net/ipc/invoke"
)

// fakeMeshd is the other end of a worker's connection: its streams give back what was written to them.
type fakeMeshd struct {
	conn *invoke.Conn

	mutex  sync.Mutex
	open   map[uint16]*bytes.Buffer
	asked  map[invoke.Operation]int
	silent bool // reads are not answered

	ended chan *invoke.ChannelEnd
}

// connect gives a worker a new connection to a fake meshd.
func connect(t testing.TB, w *worker) *fakeMeshd {
	t.Helper()
	one, other, err := invoke.Pair()
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeMeshd{open: map[uint16]*bytes.Buffer{}, asked: map[invoke.Operation]int{},
		ended: make(chan *invoke.ChannelEnd, 100)}
	if f.conn, err = invoke.Open(one); err != nil {
		t.Fatal(err)
	}
	conn, err := invoke.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.conn.Close(); conn.Close() })
	w.take(conn)
	go w.receive(conn)
	go f.serve()
	return f
}

func (f *fakeMeshd) serve() {
	buffer := make([]byte, invoke.FrameMax+1)
	for {
		body, err := f.conn.Receive(buffer)
		if err != nil {
			return
		}
		switch frame := body.(type) {
		case *invoke.ChannelEnd:
			f.ended <- frame
		case *invoke.Request:
			if answer := f.answer(frame); answer != nil {
				_ = f.conn.Send(answer)
			}
		}
	}
}

func (f *fakeMeshd) answer(q *invoke.Request) *invoke.Answer {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.asked[q.Operation]++
	answer := &invoke.Answer{ID: q.ID}
	data := f.open[q.Index]
	switch q.Operation {
	case invoke.OperationStreamOpen:
		if q.Key != "other" {
			answer.Errno = invoke.ErrorNotFound
			return answer
		}
		number := uint16(len(f.open) + 7)
		f.open[number] = &bytes.Buffer{}
		answer.Value = binary.BigEndian.AppendUint16(nil, number)
	case invoke.OperationStreamWrite:
		data.Write(q.Value)
	case invoke.OperationStreamRead:
		if f.silent {
			return nil
		}
		answer.Value = bytes.Clone(data.Next(q.Limit()))
	case invoke.OperationStreamClose:
		delete(f.open, q.Index)
	}
	return answer
}

func (f *fakeMeshd) count(o invoke.Operation) int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.asked[o]
}

// TestModulesTalkThroughStreams: open, write, finish, read to the end, close; in pieces of what a frame takes.
func TestModulesTalkThroughStreams(t *testing.T) {
	w := testWorker(t, fixture(t, "streams"), nil)
	f := connect(t, w)
	for _, size := range []int{1, invoke.StreamChunkMax, invoke.ArgumentSum - 5} {
		text := strings.Repeat("x", size)
		got := call(w, "", "other", text)
		if got.Errno != 0 || got.Status != 0 || string(got.Output) != text {
			t.Fatalf("%d bytes: errno %d, status %d, %d bytes", size, got.Errno, got.Status, len(got.Output))
		}
	}
	if n := f.count(invoke.OperationStreamClose); n != 3 || len(w.streams) != 0 {
		t.Errorf("%d closed, %d left", n, len(w.streams))
	}
	if got := call(w, "", "nobody", "x"); got.Status != -2 {
		t.Errorf("%+v", got)
	}
}

// TestModuleStreamsAreBounded: their number, their kind and what they touch.
func TestModuleStreamsAreBounded(t *testing.T) {
	w := testWorker(t, fixture(t, "streams"), nil)
	if got := call(w, "open", "5"); string(got.Output) != "-104" {
		t.Errorf("without meshd: %q", got.Output)
	}
	connect(t, w)
	for n := range invoke.StreamsMax {
		if got := call(w, "open", "5"); string(got.Output) < "1" {
			t.Fatalf("stream %d: %q", n, got.Output)
		}
	}
	for _, c := range [][3]string{
		{"open", "5", "-16"}, {"close", "1", "0"}, {"close", "1", "-2"}, {"open", "5", "17"},
		{"read", "1", "-2"}, {"write", "1", "-2"}, {"finish", "1", "-2"}, {"read_outside", "2", "-22"},
		{"write", "2", "5"}, {"read", "2", "5"}, {"read", "2", "0"}, {"finish", "2", "0"},
	} {
		if got := call(w, c[0], c[1]); string(got.Output) != c[2] {
			t.Errorf("%s %s: %q, expected %s", c[0], c[1], got.Output, c[2])
		}
	}
	call(w, "close", "2")
	for kind, want := range map[string]string{"0": "-95", "1": "-95", "2": "-95", "6": "-95", "300": "-22"} {
		if got := call(w, "open", kind); string(got.Output) != want {
			t.Errorf("kind %s: %q", kind, got.Output)
		}
	}
	if got := call(w, "open_outside"); string(got.Output) != "-22" {
		t.Errorf("a name outside the memory: %q", got.Output)
	}
}

// TestModuleStreamsEndWithTheirInstanceAndConnection: a trap or a deadline closes them, and a new meshd knows none.
func TestModuleStreamsEndWithTheirInstanceAndConnection(t *testing.T) {
	w := testWorker(t, fixture(t, "streams"), nil)
	f := connect(t, w)
	call(w, "open", "5")
	call(w, "trap")
	if n := f.count(invoke.OperationStreamClose); n != 1 || len(w.streams) != 0 {
		t.Fatalf("after a trap %d closed, %d left", n, len(w.streams))
	}
	number := string(call(w, "open", "5").Output)
	f.mutex.Lock()
	f.silent = true
	f.mutex.Unlock()
	got := w.execute(&invoke.Invocation{Function: "read", Milliseconds: 50, Arguments: [][]byte{[]byte(number)}})
	if got.Errno != invoke.ErrorTimeout || f.count(invoke.OperationStreamClose) != 2 || len(w.streams) != 0 {
		t.Fatalf("after a deadline: %+v, %d left", got, len(w.streams))
	}
	number = string(call(w, "open", "5").Output)
	f = connect(t, w)
	if got := call(w, "write", number); string(got.Output) != "-104" || f.count(invoke.OperationStreamWrite) != 0 {
		t.Errorf("over a connection that is gone: %q", got.Output)
	}
}
