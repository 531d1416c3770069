package attach

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFramesSurviveEveryCut(t *testing.T) {
	var wire bytes.Buffer
	w := NewWriter(&wire)
	big := bytes.Repeat([]byte("0123456789abcdef"), 5000)
	for _, f := range []struct {
		kind    Kind
		payload []byte
	}{{KindAccepted, nil}, {KindOutput, big}, {KindExit, (&Exit{Code: 137, Reason: "killed"}).Append(nil)}} {
		if err := w.Write(f.kind, f.payload); err != nil {
			t.Fatal(err)
		}
	}
	whole := wire.Bytes()
	for _, step := range []int{1, 3, 1000, len(whole)} {
		reader := NewReader(iotest(whole, step))
		var output []byte
		var kinds []Kind
		for {
			kind, payload, err := reader.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(kinds) == 0 || kinds[len(kinds)-1] != kind {
				kinds = append(kinds, kind)
			}
			if kind == KindOutput {
				output = append(output, payload...)
			}
			if kind == KindExit {
				if e, err := ParseExit(payload); err != nil || e != (Exit{137, "killed"}) {
					t.Fatal(e, err)
				}
			}
		}
		if !slices.Equal(kinds, []Kind{KindAccepted, KindOutput, KindExit}) || !bytes.Equal(output, big) {
			t.Fatalf("step %d: %v, %d bytes", step, kinds, len(output))
		}
	}
	if _, _, err := readAll(whole[:len(whole)-1]); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
}

func readAll(b []byte) (Kind, []byte, error) {
	reader := NewReader(bytes.NewReader(b))
	for {
		if kind, payload, err := reader.Next(); err != nil {
			return kind, payload, err
		}
	}
}

// iotest gives a reader that returns at most step bytes at a time.
func iotest(b []byte, step int) io.Reader { return &stepReader{b, step} }

type stepReader struct {
	rest []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.step)], r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func TestHostileFramesAreRefused(t *testing.T) {
	for _, raw := range [][]byte{
		{0, 0, 0, 0}, {14, 0, 0, 0}, {255, 0, 0, 1, 1}, {6, 0xff, 0xff, 0xff}, {6, 0, 0x80, 1},
	} {
		if _, _, _, err := Decode(raw); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: %v", raw, err)
		}
		if _, _, err := readAll(raw); !errors.Is(err, ErrMalformed) {
			t.Errorf("reader, %v: %v", raw, err)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	good := Request{Key: "spread.web", Arguments: []string{"sh", "-c", "echo \"x\""}, Terminal: true, Digest: strings.Repeat("0", 16)}
	payload, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseRequest(payload); err != nil || !slices.Equal(back.Arguments, good.Arguments) {
		t.Fatal(back, err)
	}
	for name, r := range map[string]Request{
		"many words": {Arguments: make([]string, ArgumentsMax+1)},
		"long words": {Arguments: []string{strings.Repeat("x", ArgumentsSizeMax+1)}},
		"zero byte":  {Arguments: []string{"a\x00b"}},
		"no text":    {Arguments: []string{"\xff"}},
		"long path":  {Path: strings.Repeat("/x", PathMax)},
		"long key":   {Key: strings.Repeat("k", 97)},
		"digest":     {Digest: "12"},
		"blob":       {Blob: "12"},
		"offset":     {Offset: -1},
	} {
		if _, err := r.Encode(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, text := range []string{`{"key":"a","privileged":true}`, `{} {}`, `[]`, `{"slot":-1}`, ``} {
		if _, err := ParseRequest([]byte(text)); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

func TestUsageFitsItsFrame(t *testing.T) {
	u := Usage{}
	for range InstancesMax {
		u.Instances = append(u.Instances, InstanceUsage{Key: strings.Repeat("k", 90), Digest: strings.Repeat("0", 16)})
	}
	back, err := ParseUsage(u.Encode())
	if err != nil || back.Omitted == 0 || back.Omitted+len(back.Instances) != InstancesMax {
		t.Fatal(back, err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(Append(Append(nil, KindRequest, []byte(`{"key":"spread.web"}`)), KindInput, []byte("x")))
	f.Add(Append(nil, KindRequest, []byte(`{"blob":"`+strings.Repeat("0a", 32)+`","offset":5}`)))
	f.Add(Append(nil, KindLine, (&Line{UnixMilliseconds: 5, Partial: true, Text: []byte("hello")}).Append(nil)))
	f.Add(Append(nil, KindExit, (&Exit{Code: 1, Reason: "r"}).Append(nil)))
	f.Add(Append(nil, KindResize, AppendSize(nil, 24, 80)))
	f.Add(Append(nil, KindUsage, Usage{Instances: []InstanceUsage{{Key: "a"}}}.Encode()))
	f.Fuzz(func(t *testing.T, raw []byte) {
		reader, rest := NewReader(bytes.NewReader(raw)), raw
		for {
			kind, payload, size, decodeErr := Decode(rest)
			readKind, read, err := reader.Next()
			if (err == nil) != (decodeErr == nil && size > 0) {
				t.Fatalf("decode %v %d, read %v", decodeErr, size, err)
			}
			if err != nil {
				return
			}
			if kind != readKind || !bytes.Equal(payload, read) {
				t.Fatal("two readers, two frames")
			}
			if again := Append(nil, kind, payload); !bytes.Equal(again, rest[:size]) {
				t.Fatal("another encoding")
			}
			rest = rest[size:]
			switch kind {
			case KindRequest:
				_, _ = ParseRequest(payload)
			case KindLine:
				if l, err := ParseLine(payload); err == nil && !bytes.Equal(l.Append(nil), payload) {
					t.Fatal("another line")
				}
			case KindExit:
				if e, err := ParseExit(payload); err == nil && !bytes.Equal(e.Append(nil), payload) {
					t.Fatal("another exit")
				}
			case KindResize:
				if r, c, err := ParseSize(payload); err == nil && !bytes.Equal(AppendSize(nil, r, c), payload) {
					t.Fatal("another size")
				}
			case KindUsage:
				_, _ = ParseUsage(payload)
			}
		}
	})
}

// Something behind a request was overlooked if it began with a bracket, and JSON wrote another path than was
// given.
func TestARequestIsTakenWhollyOrNotAtAll(t *testing.T) {
	for _, payload := range []string{`{"key":"spread.web"}}`, `{"key":"spread.web"}]`, `{} {}`, `{}x`,
		`{"digest":"0123456789abcdeX"}`, `{"blob":"` + strings.Repeat("/", 64) + `"}`} {
		if r, err := ParseRequest([]byte(payload)); err == nil {
			t.Errorf("%s is taken for %+v", payload, r)
		}
	}
	for _, r := range []Request{{Path: "/tmp/\xff"}, {Key: "spread.\xff"}} {
		if payload, err := r.Encode(); err == nil {
			t.Errorf("%+v is sent as %s", r, payload)
		}
	}
}
