package attach

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of a Request.
const (
	ArgumentsMax     = 256      // words of a command
	ArgumentsSizeMax = 16 << 10 // bytes of them together
	PathMax          = 4096
	keyMax           = 96
	InstancesMax     = 1024 // in one Usage
)

// Request says what the opener of a stream wants. Fields that the kind of stream has no use for are empty.
type Request struct {
	// Key is the workload, such as spread.web: the same as in STREAM_OPEN. Empty for figures.
	Key string `json:"key,omitempty"`
	// Slot and Digest name the instance among those of the cell; without Digest the one that serves.
	Slot   uint16 `json:"slot,omitempty"`
	Digest string `json:"digest,omitempty"`

	// Logs: the last lines (0 = all that is kept), not before a time, and whether to go on.
	TailLines             uint32 `json:"tail_lines,omitempty"`
	SinceUnixMilliseconds uint64 `json:"since_unix_ms,omitempty"`
	Follow                bool   `json:"follow,omitempty"`

	// Exec: argv; Terminal gives the program a terminal of the given size, Input an input that stays open.
	Arguments []string `json:"arguments,omitempty"`
	Terminal  bool     `json:"terminal,omitempty"`
	Input     bool     `json:"input,omitempty"`
	Rows      uint16   `json:"rows,omitempty"`
	Columns   uint16   `json:"columns,omitempty"`

	// Copy: the path in the instance, and whether the archive goes towards it.
	Path string `json:"path,omitempty"`
	Into bool   `json:"into,omitempty"`

	// Figures: how often, 0 = once.
	IntervalMilliseconds uint32 `json:"interval_ms,omitempty"`

	// Blob of an image (F76): its sha256 in hexadecimal, and from which byte on. After KindAccepted come its
	// bytes, without frames, up to the end of the stream.
	Blob   string `json:"blob,omitempty"`
	Offset int64  `json:"offset,omitempty"`
}

// Encode gives the payload of a KindRequest, or says what is out of bounds.
func (r *Request) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	payload, err := json.Marshal(r)
	if err == nil && len(payload) > PayloadMax {
		err = fmt.Errorf("request of %d bytes, at most %d fit: shorten the command", len(payload), PayloadMax)
	}
	return payload, err
}

// ParseRequest decodes a payload. Fields it does not know are an error: they might forbid something.
func ParseRequest(payload []byte) (*Request, error) {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.DisallowUnknownFields()
	r := new(Request)
	if err := decoder.Decode(r); err != nil {
		return nil, fmt.Errorf("request: %w", ErrMalformed)
	}
	if _, err := decoder.Token(); err != io.EOF { // More says no to a bracket too many
		return nil, fmt.Errorf("request with more behind it: %w", ErrMalformed)
	}
	return r, r.validate()
}

func (r *Request) validate() error {
	size := 0
	for _, word := range r.Arguments {
		size += len(word)
		if strings.ContainsRune(word, 0) || !utf8.ValidString(word) {
			return fmt.Errorf("argument %.80q is no text without zero bytes", word)
		}
	}
	switch {
	case len(r.Arguments) > ArgumentsMax || size > ArgumentsSizeMax:
		return fmt.Errorf("%d arguments of together %d bytes, expected at most %d and %d", len(r.Arguments), size,
			ArgumentsMax, ArgumentsSizeMax)
	case len(r.Path) > PathMax || strings.ContainsRune(r.Path, 0) || !utf8.ValidString(r.Path): // JSON would change it
		return fmt.Errorf("path %.80q of %d bytes, expected text of at most %d without zero bytes", r.Path, len(r.Path), PathMax)
	case len(r.Key) > keyMax || !utf8.ValidString(r.Key):
		return fmt.Errorf("key %.80q of %d bytes, expected text of at most %d", r.Key, len(r.Key), keyMax)
	case len(r.Digest) != 0 && !isHexadecimal(r.Digest, 16):
		return fmt.Errorf("digest %.40q, expected 16 hexadecimal digits", r.Digest)
	case len(r.Blob) != 0 && !isHexadecimal(r.Blob, 64) || r.Offset < 0:
		return fmt.Errorf("blob %.80q from byte %d, expected 64 hexadecimal digits and no negative number", r.Blob, r.Offset)
	}
	return nil
}

func isHexadecimal(text string, digits int) bool {
	return len(text) == digits && strings.Trim(text, "0123456789abcdef") == ""
}

// Line is one line of a log, without its newline.
type Line struct {
	UnixMilliseconds int64 // when its first byte was written, 0 = not known
	Partial          bool  // more of the same line follows, or it has no end yet
	Text             []byte
}

const lineHead = 9

// Append encodes the payload of a KindLine.
func (l *Line) Append(dst []byte) []byte {
	flag := byte(0)
	if l.Partial {
		flag = 1
	}
	dst = binary.BigEndian.AppendUint64(append(dst, flag), uint64(l.UnixMilliseconds))
	return append(dst, l.Text...)
}

// ParseLine decodes it. The text points into the payload.
func ParseLine(payload []byte) (Line, error) {
	if len(payload) < lineHead || payload[0] > 1 || len(payload)-lineHead > LineMax {
		return Line{}, fmt.Errorf("line of %d bytes: %w", len(payload), ErrMalformed)
	}
	milliseconds := int64(binary.BigEndian.Uint64(payload[1:]))
	if milliseconds < 0 || milliseconds > 1<<48 {
		return Line{}, fmt.Errorf("line of time %d: %w", milliseconds, ErrMalformed)
	}
	return Line{UnixMilliseconds: milliseconds, Partial: payload[0] == 1, Text: payload[lineHead:]}, nil
}

// Exit is how a program ended. Code is 128+n for signal n; -1 with a reason where it is not known.
type Exit struct {
	Code   int32
	Reason string // empty: it ended by itself
}

// Append encodes the payload of a KindExit.
func (e *Exit) Append(dst []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(e.Code)), cut(e.Reason)...)
}

// ParseExit decodes it.
func ParseExit(payload []byte) (Exit, error) {
	if len(payload) < 4 || len(payload) > 4+1<<10 {
		return Exit{}, fmt.Errorf("exit of %d bytes: %w", len(payload), ErrMalformed)
	}
	code := int32(binary.BigEndian.Uint32(payload))
	if code < -1 || code > 255 {
		return Exit{}, fmt.Errorf("exit code %d: %w", code, ErrMalformed)
	}
	return Exit{Code: code, Reason: string(payload[4:])}, nil
}

// Input of a program. The host says in KindAccepted how many bytes of it, counted from the first, it takes
// without waiting for the program, and says it again when the program has read: so what comes behind input in
// the stream, such as signals, arrives also while the program does not read. Openers that do not look at it
// wait, as ever. Before the first limit has come, an opener sends InputFirst bytes at most.
const (
	InputFirst = 64 << 10
	InputAhead = 1 << 20
)

// AppendLimit encodes the payload of a KindAccepted that says a limit.
func AppendLimit(dst []byte, limit uint64) []byte { return binary.BigEndian.AppendUint64(dst, limit) }

// ParseLimit decodes it; the first KindAccepted of a stream says none.
func ParseLimit(payload []byte) (limit uint64, ok bool) {
	if len(payload) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(payload), true
}

// AppendSize encodes the payload of a KindResize.
func AppendSize(dst []byte, rows, columns uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(dst, rows), columns)
}

// ParseSize decodes it.
func ParseSize(payload []byte) (rows, columns uint16, err error) {
	if len(payload) != 4 {
		return 0, 0, fmt.Errorf("size of %d bytes: %w", len(payload), ErrMalformed)
	}
	return binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:]), nil
}

// Usage is what the instances of a cell use, at one moment. Counters only grow while an instance runs; two
// pictures give rates.
type Usage struct {
	UnixMilliseconds int64           `json:"unix_ms"`
	Instances        []InstanceUsage `json:"instances"`
	// Omitted is how many instances beyond InstancesMax, or beyond one frame, are left out.
	Omitted int `json:"omitted,omitempty"`
}

// InstanceUsage is one instance of it. A pointer is nil where the host does not tell.
type InstanceUsage struct {
	Key             string  `json:"key"`
	Slot            uint16  `json:"slot"`
	Digest          string  `json:"digest"`
	PID             int     `json:"pid"`
	Restarts        uint32  `json:"restarts"`
	CPUMicroseconds *uint64 `json:"cpu_us,omitempty"` // of all its processes
	MemoryBytes     *uint64 `json:"memory_bytes,omitempty"`
	ReceivedBytes   *uint64 `json:"received_bytes,omitempty"` // of its own network, if it has one
	SentBytes       *uint64 `json:"sent_bytes,omitempty"`
}

// Encode gives the payload of a KindUsage; what does not fit is counted in Omitted.
func (u Usage) Encode() []byte {
	for {
		payload, err := json.Marshal(u)
		if err != nil {
			panic(err) // numbers and strings only
		}
		if len(payload) <= PayloadMax {
			return payload
		}
		drop := len(u.Instances)/4 + 1
		u.Instances = u.Instances[:len(u.Instances)-drop]
		u.Omitted += drop
	}
}

// ParseUsage decodes it.
func ParseUsage(payload []byte) (*Usage, error) {
	u := new(Usage)
	if err := json.Unmarshal(payload, u); err != nil || len(u.Instances) > InstancesMax {
		return nil, fmt.Errorf("usage: %w", ErrMalformed)
	}
	return u, nil
}
