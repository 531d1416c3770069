package uds

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		type frame struct {
			code    byte
			payload []byte
		}
		var frames []frame
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			sizes := []int{0, 1, 3, 255, 256, 16<<10 - 1, 16 << 10, 16<<10 + 1, RequestMax}
			size := rapid.SampledFrom(sizes).Draw(t, "size")
			f := frame{rapid.Byte().Draw(t, "code"), bytes.Repeat([]byte{byte(size)}, size)}
			frames = append(frames, f)
			stream = AppendFrame(stream, f.code, f.payload)
		}
		for _, r := range []io.Reader{bytes.NewReader(stream), iotest.HalfReader(bytes.NewReader(stream))} {
			rest := stream
			for _, f := range frames {
				code, payload, err := ReadFrame(r, RequestMax, make([]byte, 100))
				if err != nil || code != f.code || !bytes.Equal(payload, f.payload) {
					t.Fatalf("read %d, %d bytes, %v", code, len(payload), err)
				}
				code, payload, rest, err = ParseFrame(rest, RequestMax)
				if err != nil || code != f.code || !bytes.Equal(payload, f.payload) {
					t.Fatalf("parsed %d, %d bytes, %v", code, len(payload), err)
				}
			}
			if _, _, err := ReadFrame(r, RequestMax, nil); err != io.EOF || len(rest) != 0 {
				t.Fatalf("at the end: %v, %d bytes left", err, len(rest))
			}
		}
	})
}

func TestTruncatedFrames(t *testing.T) {
	whole := AppendFrame(nil, 5, []byte("payload"))
	for n := range len(whole) {
		_, _, err := ReadFrame(bytes.NewReader(whole[:n]), RequestMax, nil)
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if err != want {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, _, rest, err := ParseFrame(whole[:n], RequestMax); err != io.ErrUnexpectedEOF || len(rest) != n {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// F136: a length that was only announced costs no memory.
func TestF136_AnnouncedLengthIsNotAllocated(t *testing.T) {
	announced := []byte{1, 0x0f, 0xff, 0xff} // 1 MiB - 1, and nothing follows
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := ReadFrame(bytes.NewReader(announced), OutputQueueMax, nil); err != io.ErrUnexpectedEOF {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 64<<10 {
		t.Errorf("%d bytes allocated for a frame that never came", allocated)
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{1, 1, 0, 1}), RequestMax, nil); err != ErrFrameTooLarge {
		t.Errorf("65537 bytes announced: %v", err)
	}
}

func TestReplyIsChunked(t *testing.T) {
	for _, size := range []int{0, 1, ReplyChunkMax, ReplyChunkMax + 1, 3*ReplyChunkMax + 5} {
		stream := AppendReply(nil, bytes.Repeat([]byte{'x'}, size))
		frames, total := 0, 0
		for ; len(stream) > 0; frames++ {
			code, payload, rest, err := ParseFrame(stream, ReplyChunkMax)
			if err != nil || ReplyStatus(code) != OK || (len(payload) == 0) != (len(rest) == 0) {
				t.Fatalf("size %d: frame %d: code %d, %d bytes, %v", size, frames, code, len(payload), err)
			}
			total += len(payload)
			stream = rest
		}
		if want := (size+ReplyChunkMax-1)/ReplyChunkMax + 1; frames != want || total != size {
			t.Errorf("size %d: %d frames with %d bytes, want %d", size, frames, total, want)
		}
	}
}

func TestCheckPath(t *testing.T) {
	for _, path := range []string{"/run/colloid/socket", "./s", "../s", "/" + strings.Repeat("x", PathMax-1)} {
		if err := CheckPath(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, path := range []string{"", "@x", "\x00x", "s", "/a\x00b", "/" + strings.Repeat("x", PathMax)} {
		if err := CheckPath(path); !errors.Is(err, ErrPath) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendFrame(nil, 1, nil))
	f.Add(AppendFrame(nil, 0xff, []byte("payload")))
	f.Add([]byte{1, 0xff, 0xff, 0xff})
	f.Add(AppendReply(nil, []byte("reply")))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for rest := data; ; {
			code, payload, err := ReadFrame(r, 1000, nil)
			parsedCode, parsed, after, parsedErr := ParseFrame(rest, 1000)
			if (err == nil) != (parsedErr == nil) {
				t.Fatalf("read says %v, parse says %v", err, parsedErr)
			}
			if err != nil {
				return
			}
			if code != parsedCode || !bytes.Equal(payload, parsed) {
				t.Fatalf("read %d %x, parsed %d %x", code, payload, parsedCode, parsed)
			}
			if again := AppendFrame(nil, code, payload); !bytes.Equal(again, rest[:len(again)]) {
				t.Fatalf("%x became %x", rest[:len(again)], again)
			}
			rest = after
		}
	})
}

func FuzzParseWriteRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(WriteRequest{Expect: 1, Key: "spread.web", Value: []byte("v")}.Append(nil))
	f.Add(WriteRequest{Key: strings.Repeat("k", 255)}.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := ParseWriteRequest(data)
		if err == nil && !bytes.Equal(w.Append(nil), data) {
			t.Fatalf("%x became %x", data, w.Append(nil))
		}
	})
}
