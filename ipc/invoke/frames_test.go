package invoke

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func frames() []appender {
	return []appender{
		&Hello{Version: Version, Style: StyleService, Deterministic: true},
		&Hello{Version: 1, Style: StyleFunctions},
		&Invocation{ID: 1 << 60, Milliseconds: 1000, Clock: 7, Function: "add",
			Arguments: [][]byte{[]byte("2"), {}, bytes.Repeat([]byte{0}, 40000)}},
		&Invocation{ID: 2},
		&Result{ID: 3, Status: -1, Nanos: 5, Clock: 6, Snapshot: [32]byte{31: 1}, Output: make([]byte, OutputMax)},
		&Result{ID: 3, Errno: ErrorTimeout, Output: []byte("took longer than 1s")},
		&Request{ID: 4, Operation: OperationGet, Index: 2, Key: strings.Repeat("k", KeyMax), Value: []byte{}},
		&Request{ID: 4, Operation: OperationSet, Key: "\x00../", Value: make([]byte, ValueMax)},
		&Request{ID: 5, Operation: OperationDelete, Key: "k", Value: []byte{}},
		&Request{ID: 5, Operation: OperationSnapshot, Value: []byte{}},
		&Request{ID: 7, Operation: OperationStreamOpen, Index: StreamInvoke, Key: "other", Value: []byte{}},
		ReadStream(3, StreamChunkMax),
		&Request{ID: 7, Operation: OperationStreamWrite, Index: 3, Value: make([]byte, StreamChunkMax)},
		&Request{ID: 7, Operation: OperationStreamFinish, Index: 3, Value: []byte{}},
		&Request{ID: 7, Operation: OperationStreamClose, Index: 3, Value: []byte{}},
		&Answer{ID: 6, More: true, Siblings: 3, Value: []byte("v")},
		&Answer{ID: 6, Errno: ErrorNotFound, Value: []byte{}},
		&Metric{Name: "requests_total", Value: -1.5},
		&ChannelOpen{ID: 8},
		&ChannelEnd{ID: 8, Invocations: 1 << 40},
	}
}

func TestFramesSurviveTheWay(t *testing.T) {
	for _, frame := range frames() {
		raw := frame.Append(nil)
		got, err := Parse(raw)
		if err != nil || !reflect.DeepEqual(got, frame) {
			t.Errorf("%T: %v, %v", frame, got, err)
		}
		for n := range raw { // no beginning of a frame is a frame of the same content
			if short, err := Parse(raw[:n]); err == nil && reflect.DeepEqual(short, frame) {
				t.Errorf("%T cut to %d of %d bytes was taken", frame, n, len(raw))
			}
		}
	}
}

func TestF142_FramesOutsideTheBoundsAreRefused(t *testing.T) {
	for name, raw := range map[string][]byte{
		"nothing":            {},
		"unknown kind":       appendHeader(nil, 99, 1),
		"a later version":    append(appendHeader(nil, KindHello, Version+1), 1, 0),
		"no version":         append(appendHeader(nil, KindHello, 0), 1, 0),
		"a channel and more": append((&ChannelOpen{ID: 1}).Append(nil), 0),
		"no count at an end": appendHeader(nil, KindChannelEnd, 1),
		"no style":           append(appendHeader(nil, KindHello, Version), 3, 0),
		"a flag of two":      append(appendHeader(nil, KindHello, Version), 1, 2),
		"a longer frame":     append((&Hello{Style: StyleService}).Append(nil), 0),
		"key too long":       (&Request{Operation: OperationGet, Key: strings.Repeat("k", KeyMax+1)}).Append(nil),
		"no key":             (&Request{Operation: OperationGet}).Append(nil),
		"set of nothing":     (&Request{Operation: OperationSet, Key: "k"}).Append(nil),
		"value too long":     (&Request{Operation: OperationSet, Key: "k", Value: make([]byte, ValueMax+1)}).Append(nil),
		"unknown operation":  (&Request{Operation: 10, Key: "k"}).Append(nil),
		"a stream to nobody": (&Request{Operation: OperationStreamOpen, Index: 5}).Append(nil),
		"a read of nothing":  (&Request{Operation: OperationStreamRead, Value: []byte{0, 0}}).Append(nil),
		"a read of all":      (&Request{Operation: OperationStreamRead, Value: []byte{0x80, 1}}).Append(nil),
		"a read, unlimited":  (&Request{Operation: OperationStreamRead}).Append(nil),
		"a write of nothing": (&Request{Operation: OperationStreamWrite}).Append(nil),
		"a write too long":   (&Request{Operation: OperationStreamWrite, Value: make([]byte, StreamChunkMax+1)}).Append(nil),
		"a close with a key": (&Request{Operation: OperationStreamClose, Key: "k"}).Append(nil),
		"snapshot of a key":  (&Request{Operation: OperationSnapshot, Key: "k"}).Append(nil),
		"output too long":    (&Result{Output: make([]byte, OutputMax+1)}).Append(nil),
		"a book as an error": (&Result{Errno: 5, Output: make([]byte, TextMax+1)}).Append(nil),
		"metric not finite":  (&Metric{Name: "a", Value: math.Inf(1)}).Append(nil),
		"metric of no name":  (&Metric{Value: 1}).Append(nil),
		"metric of ill name": (&Metric{Name: "a b", Value: 1}).Append(nil),
		"deadline too long":  (&Invocation{Milliseconds: DeadlineMaxMilliseconds + 1}).Append(nil),
		"too many arguments": (&Invocation{Arguments: make([][]byte, ArgumentsMax+1)}).Append(nil),
		"arguments too long": (&Invocation{Arguments: [][]byte{make([]byte, ArgumentSum+1)}}).Append(nil),
	} {
		if body, err := Parse(raw); err != ErrFrame {
			t.Errorf("%s: %v, %v", name, body, err)
		}
	}
}

func TestCallsAndOutcomesSurviveTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		call := &Invocation{
			Milliseconds: rapid.Uint32Range(0, DeadlineMaxMilliseconds).Draw(t, "deadline"),
			Clock:        rapid.Uint64().Draw(t, "clock"),
			Function:     rapid.StringN(0, 20, FunctionMax).Draw(t, "function"),
			Arguments:    rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 50), 0, ArgumentsMax).Draw(t, "arguments"),
		}
		name, got, err := ParseCall(AppendCall(nil, "thumbs", call))
		if err != nil || name != "thumbs" || got.Function != call.Function || len(got.Arguments) != len(call.Arguments) {
			t.Fatal(name, got, err)
		}
		for i := range got.Arguments {
			if !bytes.Equal(got.Arguments[i], call.Arguments[i]) {
				t.Fatal("another argument came")
			}
		}
		result := &Result{Status: rapid.Int32().Draw(t, "status"), Clock: 1, Nanos: 2, Output: []byte("out")}
		if back, err := ParseOutcome(AppendOutcome(nil, result)); err != nil || !reflect.DeepEqual(back, result) {
			t.Fatal(back, err)
		}
	})
}

func TestPairsOfASnapshot(t *testing.T) {
	raw := AppendPair(AppendPair(nil, "a", []byte("1")), "b", nil)
	got := map[string]string{}
	if err := Pairs(raw, func(key string, value []byte) { got[key] = string(value) }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, map[string]string{"a": "1", "b": ""}) {
		t.Fatal(got)
	}
	for n := 1; n < len(raw); n++ {
		if n == 5 {
			continue // one whole record
		}
		if Pairs(raw[:n], func(string, []byte) {}) == nil {
			t.Errorf("%d of %d bytes were taken", n, len(raw))
		}
	}
}

func ends(t testing.TB) (*Conn, *Conn) {
	one, other, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(one)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(other)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestConnCarriesFramesOfEverySize(t *testing.T) {
	a, b := ends(t)
	buffer := make([]byte, FrameMax+1)
	for _, frame := range frames() {
		if err := a.Send(frame); err != nil {
			t.Fatal(err)
		}
		got, err := b.Receive(buffer)
		if err != nil || !reflect.DeepEqual(got, frame) {
			t.Fatalf("%T: %v, %v", frame, got, err)
		}
	}
	a.Close()
	if _, err := b.Receive(buffer); err != io.EOF {
		t.Fatal(err)
	}
}

// TestF142_APeerThatDoesNotReadIsLeft: neither side may hold up the other for long.
func TestF142_APeerThatDoesNotReadIsLeft(t *testing.T) {
	a, _ := ends(t)
	began := time.Now()
	for range 1000 {
		if err := a.Send(&Result{Output: make([]byte, OutputMax)}); err != nil {
			if took := time.Since(began); took > 3*writePatience {
				t.Fatal(took)
			}
			return
		}
	}
	t.Fatal("sent without end")
}

func TestF142_AForeignFrameEndsTheConnection(t *testing.T) {
	a, b := ends(t)
	for _, raw := range [][]byte{{1, 2, 3}, make([]byte, FrameMax+100)} {
		if _, err := a.socket.Write(raw); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Receive(make([]byte, FrameMax+1)); err == nil {
			t.Fatal("taken")
		}
		a, b = ends(t)
	}
}

func FuzzParse(f *testing.F) {
	for _, frame := range frames() {
		f.Add(frame.Append(nil))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, _, _ = ParseCall(raw)
		_, _ = ParseOutcome(raw)
		_ = Pairs(raw, func(string, []byte) {})
		body, err := Parse(raw)
		if err != nil {
			return
		}
		if again := body.(appender).Append(nil); !bytes.Equal(again, raw) {
			t.Fatalf("%x came back as %x", raw, again)
		}
	})
}
