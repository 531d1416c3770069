// Package layer stands in front of the library that unpacks layers (F140): Filter reads a layer as it
// came from outside, plain or compressed, and writes a tar stream of its own that holds only what a
// container needs and nothing that could reach outside the directory it is unpacked into.
//
// What comes out is written anew, header by header, so the reader behind it never sees a byte whose
// meaning two readers could disagree about. Digests are taken of what came in: the digest of the blob
// and the diff id of the uncompressed stream. They are only known at the end, so the reader behind must
// throw away what it made when Filter returns an error; the library does.
//
// Whiteouts come last in what is written, each in the form that an overlay can express: see marks.
//
// Limits are those of Limits. Memory: at most 16 bytes per entry, for what kind a path has, and the names of whiteouts.
package layer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Limits of one layer. The zero value of a field means its default.
type Limits struct {
	EntriesMax    int   // 1,000,000
	BytesMax      int64 // 10 GiB, content of files
	Ratio         int64 // 250: uncompressed bytes per compressed one
	RatioFree     int64 // 256 MiB: below it the ratio is not looked at
	PathLengthMax int   // 4096
	// Room is asked every 16 MiB whether there is still room on the disk; nil means always.
	Room func() error
}

// Defaults of Limits.
const (
	entriesDefault   = 1_000_000
	bytesDefault     = 10 << 30
	ratioDefault     = 250
	ratioFreeDefault = 256 << 20
	pathDefault      = 4096
	componentMax     = 255
	roomEvery        = 16 << 20
	windowMax        = 128 << 20 // of zstd
	// headersMax bounds what is not content: headers and padding of a full layer stay below it.
	headersMax = 8 << 30
)

func (l *Limits) complete() {
	if l.EntriesMax == 0 {
		l.EntriesMax = entriesDefault
	}
	if l.BytesMax == 0 {
		l.BytesMax = bytesDefault
	}
	if l.Ratio == 0 {
		l.Ratio = ratioDefault
	}
	if l.RatioFree == 0 {
		l.RatioFree = ratioFreeDefault
	}
	if l.PathLengthMax == 0 {
		l.PathLengthMax = pathDefault
	}
}

// Result is what Filter found.
type Result struct {
	Blob    [32]byte // of the bytes that came in
	Diff    [32]byte // of the uncompressed stream
	Entries int      // that were passed on
	Bytes   int64    // content of files
	// Whiteouts are entries that remove one name each; those that replace a directory are not among them.
	Whiteouts int
	Skipped   int // device nodes and other things that no container gets from its image
}

// Filter copies a layer from in to out. An error is one sentence that names the entry.
func Filter(out io.Writer, in io.Reader, limits Limits) (Result, error) {
	limits.complete()
	compressed := &meter{in: in, hash: sha256.New()}
	plainReader, closeDecoder, err := decompress(compressed)
	if err != nil {
		return Result{}, err
	}
	defer closeDecoder()
	plain := &meter{in: plainReader, hash: sha256.New(), source: compressed, limits: &limits}
	f := &filter{limits: limits, tree: newTree(), out: tar.NewWriter(out)}
	if err := f.copy(tar.NewReader(plain)); err != nil {
		return f.result, err
	}
	// The diff id covers padding behind the end of the archive too, the digest whatever follows the last
	// compressed block.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return f.result, err
	}
	if _, err := io.Copy(io.Discard, compressed); err != nil {
		return f.result, err
	}
	f.result.Blob, f.result.Diff = [32]byte(compressed.hash.Sum(nil)), [32]byte(plain.hash.Sum(nil))
	return f.result, f.out.Close()
}

// decompress looks at the first bytes, not at what a media type claims.
func decompress(in io.Reader) (io.Reader, func(), error) {
	buffered := bufio.NewReaderSize(in, 64<<10)
	magic, err := buffered.Peek(4)
	if err != nil {
		return nil, nil, fmt.Errorf("layer is empty or cannot be read: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		decoder, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, nil, fmt.Errorf("layer is no valid gzip: %w", err)
		}
		return decoder, func() {}, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowMax),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, fmt.Errorf("layer is no valid zstd: %w", err)
		}
		return decoder, decoder.Close, nil
	}
	return buffered, func() {}, nil
}

// meter counts and hashes what is read through it. With limits it also refuses what expands too much.
type meter struct {
	in     io.Reader
	hash   hash.Hash
	bytes  int64
	source *meter // the compressed side
	limits *Limits
	asked  int64 // bytes when Room was asked last
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.in.Read(p)
	m.hash.Write(p[:n])
	m.bytes += int64(n)
	if m.limits == nil {
		return n, err
	}
	if m.bytes > m.limits.RatioFree && m.bytes/m.limits.Ratio > m.source.bytes {
		return n, fmt.Errorf("layer expands by more than %d to 1: %d bytes from %d", m.limits.Ratio, m.bytes,
			m.source.bytes)
	}
	if m.bytes > m.limits.BytesMax+headersMax {
		return n, fmt.Errorf("layer expands to more than %d bytes", m.limits.BytesMax+headersMax)
	}
	if m.limits.Room != nil && m.bytes-m.asked > roomEvery {
		m.asked = m.bytes
		if err := m.limits.Room(); err != nil {
			return n, err
		}
	}
	return n, err
}
