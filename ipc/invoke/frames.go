package invoke

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrFrame means that a frame is not of this protocol: end the connection.
var ErrFrame = errors.New("invoke: malformed frame")

const headerSize = 9

// Hello is the first frame of a worker.
type Hello struct {
	Version       uint64 // of the worker; 0 when it is sent = this one
	Style         Style
	Deterministic bool
}

// TakesChannels reports whether a worker can be sent a ChannelOpen.
func (h *Hello) TakesChannels() bool {
	return h.Version >= versionChannels && h.Style == StyleFunctions
}

// Invocation asks for one call.
type Invocation struct {
	ID           uint64
	Milliseconds uint32 // until the deadline, from when the worker has read it
	Clock        uint64 // of a deterministic module; 0 = the number of the invocation at this worker
	Function     string // "" = colloid_invoke
	Arguments    [][]byte
}

// Result answers an Invocation.
type Result struct {
	ID     uint64
	Errno  uint16 // 0 = the function returned
	Status int32  // what it returned, by its own convention; 0 = well
	Nanos  uint64 // spent in the module
	Clock  uint64 // the logical clock of a deterministic module
	// Snapshot is the digest of the key-value space a deterministic module saw, zero if it saw none.
	Snapshot [32]byte
	Output   []byte // with Errno != 0 one sentence
}

// Request asks meshd for the workload's own key-value space, or about a stream.
type Request struct {
	ID        uint64
	Operation Operation
	// Index of get: which of several concurrent values, 0 = the greatest dot; of StreamOpen: the kind of the
	// stream; of the others about streams: its number.
	Index uint16
	Key   string // of StreamOpen: the workload to reach
	Value []byte // set, StreamWrite; StreamRead: two bytes, how much at most
}

// Answer answers a Request, a snapshot with several of which all but the last have More.
type Answer struct {
	ID       uint64
	Errno    uint16
	More     bool
	Siblings uint16 // get: how many concurrent values there are
	// Value of get; of a snapshot: records of u8 length, key, u16 length, value; of StreamRead; of
	// StreamOpen: the number of the stream, two bytes.
	Value []byte
}

// ChannelOpen hands the worker its end of a channel, the descriptor that comes with the frame.
type ChannelOpen struct{ ID uint64 }

// ChannelEnd says that a channel is over, and how many invocations came through it.
type ChannelEnd struct {
	ID          uint64
	Invocations uint64
}

// Metric is a value that the module wants people to see.
type Metric struct {
	Name  string
	Value float64
}

func appendHeader(dst []byte, kind Kind, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, byte(kind)), id)
}

// Parse reads any frame: *Hello, *Invocation, *Result, *Request, *Answer, *Metric, *ChannelOpen or
// *ChannelEnd. What it returns points into frame.
func Parse(frame []byte) (any, error) {
	if len(frame) < headerSize || len(frame) > FrameMax {
		return nil, ErrFrame
	}
	r := reader{rest: frame[headerSize:]}
	id := binary.BigEndian.Uint64(frame[1:])
	var body any
	switch Kind(frame[0]) {
	case KindHello:
		body = r.hello(id)
	case KindInvocation:
		body = r.invocation(id)
	case KindResult:
		body = r.result(id)
	case KindRequest:
		body = r.request(id)
	case KindAnswer:
		body = r.answer(id)
	case KindMetric:
		body = r.metric(id)
	case KindChannelOpen:
		body = &ChannelOpen{ID: id}
	case KindChannelEnd:
		body = &ChannelEnd{ID: id, Invocations: r.u64()}
	default:
		return nil, ErrFrame
	}
	if r.bad || len(r.rest) > 0 {
		return nil, ErrFrame
	}
	return body, nil
}

// reader takes a frame apart; after the first thing that does not fit everything it gives is empty.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad = true
		return nil
	}
	taken := r.rest[:n:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) need(ok bool) { r.bad = r.bad || !ok }

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) boolean() bool {
	b := r.u8()
	r.need(b <= 1)
	return b == 1
}

func (r *reader) remaining(limit int) []byte {
	r.need(len(r.rest) <= limit)
	return r.take(len(r.rest))
}

// Append adds the frame.
func (h *Hello) Append(dst []byte) []byte {
	version := h.Version
	if version == 0 {
		version = Version
	}
	return append(appendHeader(dst, KindHello, version), byte(h.Style), flag(h.Deterministic))
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (r *reader) hello(version uint64) *Hello {
	h := &Hello{Version: version, Style: Style(r.u8()), Deterministic: r.boolean()}
	r.need(version >= versionFirst && version <= Version && (h.Style == StyleFunctions || h.Style == StyleService))
	return h
}

// Patience is how long a worker may take to answer an invocation: it has to end it itself at its deadline,
// but others may wait in it before this one, each with a deadline of its own, and deterministic ones are
// measured by fuel, not time.
func (v *Invocation) Patience() time.Duration {
	milliseconds := v.Milliseconds
	if milliseconds == 0 {
		milliseconds = DeadlineDefaultMilliseconds
	}
	return patienceFactor*time.Duration(milliseconds)*time.Millisecond + patienceSlack
}

const (
	patienceFactor = 12
	patienceSlack  = 5 * time.Second
)

// Check reports why an invocation cannot be sent, nil if it can.
func (v *Invocation) Check() error {
	sum := 0
	for _, argument := range v.Arguments {
		sum += len(argument)
	}
	switch {
	case len(v.Function) > FunctionMax:
		return fmt.Errorf("function name of %d bytes, expected at most %d", len(v.Function), FunctionMax)
	case len(v.Arguments) > ArgumentsMax:
		return fmt.Errorf("%d arguments, expected at most %d", len(v.Arguments), ArgumentsMax)
	case sum > ArgumentSum:
		return fmt.Errorf("arguments of %d bytes, expected at most %d", sum, ArgumentSum)
	case v.Milliseconds > DeadlineMaxMilliseconds:
		return fmt.Errorf("deadline of %d ms, expected at most %d", v.Milliseconds, DeadlineMaxMilliseconds)
	}
	return nil
}

// Append adds the frame. The invocation must pass Check.
func (v *Invocation) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindInvocation, v.ID)
	return v.appendBody(dst)
}

func (v *Invocation) appendBody(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, v.Milliseconds)
	dst = binary.BigEndian.AppendUint64(dst, v.Clock)
	dst = append(append(dst, byte(len(v.Function))), v.Function...)
	dst = append(dst, byte(len(v.Arguments)))
	for _, argument := range v.Arguments {
		dst = append(binary.BigEndian.AppendUint16(dst, uint16(len(argument))), argument...)
	}
	return dst
}

func (r *reader) invocation(id uint64) *Invocation {
	v := &Invocation{ID: id, Milliseconds: r.u32(), Clock: r.u64()}
	v.Function = string(r.take(int(r.u8())))
	count := int(r.u8())
	r.need(count <= ArgumentsMax)
	for range count {
		if r.bad {
			break
		}
		v.Arguments = append(v.Arguments, r.take(int(r.u16())))
	}
	r.need(v.Check() == nil)
	return v
}

// Append adds the frame. Output may have OutputMax bytes.
func (s *Result) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindResult, s.ID)
	dst = binary.BigEndian.AppendUint16(dst, s.Errno)
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.Status))
	dst = binary.BigEndian.AppendUint64(dst, s.Nanos)
	dst = binary.BigEndian.AppendUint64(dst, s.Clock)
	dst = append(dst, s.Snapshot[:]...)
	return append(dst, s.Output...)
}

func (r *reader) result(id uint64) *Result {
	s := &Result{ID: id, Errno: r.u16(), Status: int32(r.u32()), Nanos: r.u64(), Clock: r.u64()}
	copy(s.Snapshot[:], r.take(len(s.Snapshot)))
	s.Output = r.remaining(OutputMax)
	r.need(s.Errno == 0 || len(s.Output) <= TextMax)
	return s
}

// Append adds the frame.
func (q *Request) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindRequest, q.ID)
	dst = append(dst, byte(q.Operation))
	dst = binary.BigEndian.AppendUint16(dst, q.Index)
	dst = append(append(dst, byte(len(q.Key))), q.Key...)
	return append(dst, q.Value...)
}

func (r *reader) request(id uint64) *Request {
	q := &Request{ID: id, Operation: Operation(r.u8()), Index: r.u16()}
	q.Key = string(r.take(int(r.u8())))
	q.Value = r.remaining(StreamChunkMax)
	r.need(len(q.Key) <= KeyMax && (len(q.Value) <= ValueMax || q.Operation == OperationStreamWrite))
	switch q.Operation {
	case OperationGet:
		r.need(len(q.Key) > 0 && len(q.Value) == 0)
	case OperationSet:
		r.need(len(q.Key) > 0 && len(q.Value) > 0 && q.Index == 0)
	case OperationDelete:
		r.need(len(q.Key) > 0 && len(q.Value) == 0 && q.Index == 0)
	case OperationSnapshot:
		r.need(len(q.Key) == 0 && len(q.Value) == 0 && q.Index == 0)
	case OperationStreamOpen:
		r.need(len(q.Key) > 0 && len(q.Value) == 0)
	case OperationStreamRead:
		r.need(len(q.Key) == 0 && len(q.Value) == 2 && q.Limit() > 0 && q.Limit() <= StreamChunkMax)
	case OperationStreamWrite:
		r.need(len(q.Key) == 0 && len(q.Value) > 0)
	case OperationStreamFinish, OperationStreamClose:
		r.need(len(q.Key) == 0 && len(q.Value) == 0)
	default:
		r.need(false)
	}
	return q
}

// Limit is how many bytes a StreamRead wants at most.
func (q *Request) Limit() int { return int(binary.BigEndian.Uint16(q.Value)) }

// ReadStream makes the request for at most limit bytes of a stream.
func ReadStream(number uint16, limit int) *Request {
	limit = min(limit, StreamChunkMax)
	return &Request{
		Operation: OperationStreamRead, Index: number, Value: binary.BigEndian.AppendUint16(nil, uint16(limit)),
	}
}

// Append adds the frame.
func (a *Answer) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindAnswer, a.ID)
	dst = binary.BigEndian.AppendUint16(dst, a.Errno)
	dst = append(dst, flag(a.More))
	dst = binary.BigEndian.AppendUint16(dst, a.Siblings)
	return append(dst, a.Value...)
}

func (r *reader) answer(id uint64) *Answer {
	a := &Answer{ID: id, Errno: r.u16(), More: r.boolean(), Siblings: r.u16()}
	a.Value = r.remaining(OutputMax)
	r.need(a.Errno == 0 || len(a.Value) == 0 && !a.More)
	return a
}

// Append adds the frame.
func (m *Metric) Append(dst []byte) []byte {
	dst = appendHeader(dst, KindMetric, 0)
	dst = append(append(dst, byte(len(m.Name))), m.Name...)
	return binary.BigEndian.AppendUint64(dst, math.Float64bits(m.Value))
}

func (r *reader) metric(id uint64) *Metric {
	m := &Metric{Name: string(r.take(int(r.u8())))}
	m.Value = math.Float64frombits(r.u64())
	r.need(id == 0 && ValidMetricName(m.Name) && !math.IsNaN(m.Value) && !math.IsInf(m.Value, 0))
	return m
}

// ValidMetricName reports whether a metric may have that name: 1 to 64 of a-z, 0-9 and "_".
func ValidMetricName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0 && len(name) <= MetricMax
}

// Append adds the frame.
func (o *ChannelOpen) Append(dst []byte) []byte { return appendHeader(dst, KindChannelOpen, o.ID) }

// Append adds the frame.
func (e *ChannelEnd) Append(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(appendHeader(dst, KindChannelEnd, e.ID), e.Invocations)
}

// AppendPair adds one record of a snapshot.
func AppendPair(dst []byte, key string, value []byte) []byte {
	dst = append(append(dst, byte(len(key))), key...)
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(value))), value...)
}

// Pairs calls yield for each record of one frame of a snapshot. value points into raw.
func Pairs(raw []byte, yield func(key string, value []byte)) error {
	r := reader{rest: raw}
	for len(r.rest) > 0 && !r.bad {
		key := string(r.take(int(r.u8())))
		value := r.take(int(r.u16()))
		r.need(len(key) > 0 && len(key) <= KeyMax && len(value) <= ValueMax)
		if !r.bad {
			yield(key, value)
		}
	}
	if r.bad {
		return ErrFrame
	}
	return nil
}
