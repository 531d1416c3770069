package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"colloid.net/runnerd/image/manifest"
)

const (
	// peersMax is how many cells may fail for one blob before the registry is asked (F76).
	peersMax = 3
	// peerRate is the least speed at which another cell is better than the registry, in bytes a second.
	peerRate = 256 << 10
)

// peers is what a job knows of other cells.
type peers struct {
	alone   bool   // there is no sense in asking further
	current string // cell that sends at the moment, "" = the registry
	names   []string
	bytes   map[string]int64
	blobs   map[string]int
}

// count notes where a blob came from.
func (p *peers) count(from string, bytes int64) {
	if p.bytes == nil {
		p.bytes, p.blobs = map[string]int64{}, map[string]int{}
	}
	if p.blobs[from] == 0 {
		p.names = append(p.names, from)
	}
	p.blobs[from]++
	p.bytes[from] += bytes
}

// sources says where the blobs came from, at most as many as fit into a message.
func (p *peers) sources() (list []string) {
	for _, name := range p.names[:min(len(p.names), 16)] {
		list = append(list, fmt.Sprintf("%d blobs (%d bytes) from %s", p.blobs[name], p.bytes[name], name))
	}
	return list
}

// documentOfPeers fetches a document from another cell.
func (f *fetcher) documentOfPeers(ctx context.Context, digest manifest.Digest) ([]byte, bool) {
	if digest == (manifest.Digest{}) {
		return nil, false
	}
	d := &memory{digest: digest}
	if done, err := f.fromPeers(ctx, d); err != nil || !done {
		return nil, false
	}
	return d.text, true
}

// blobOfPeers fetches what is missing of a blob from other cells. What they gave before they broke off stays,
// and the registry goes on from there; what is wrong does not.
func (f *fetcher) blobOfPeers(ctx context.Context, b *blob) (done bool, err error) {
	if b.written == b.size { // whole since an earlier attempt, or not to be trusted
		return false, nil
	}
	return f.fromPeers(ctx, b)
}

// target is what a cell sends into.
type target interface {
	io.Writer
	rewind(offset int64) error
	right() bool
	name() manifest.Digest
	// bounds gives how many bytes are there, and the most there may be; exact: and the least.
	bounds() (written, most int64, exact bool)
}

func (b *blob) name() manifest.Digest                     { return b.digest }
func (b *blob) bounds() (written, most int64, exact bool) { return b.written, b.size, b.exact }

// memory is a small document of unknown size.
type memory struct {
	digest manifest.Digest
	text   []byte
}

func (d *memory) name() manifest.Digest { return d.digest }
func (d *memory) rewind(n int64) error  { d.text = d.text[:n]; return nil }
func (d *memory) right() bool           { return sha256.Sum256(d.text) == d.digest }
func (d *memory) bounds() (written, most int64, exact bool) {
	return int64(len(d.text)), manifest.DocumentMax, false
}

// Write appends, never more than a document may have.
func (d *memory) Write(p []byte) (int, error) {
	if len(d.text)+len(p) > manifest.DocumentMax {
		return 0, refuse("it sends more than the %d bytes of a document", manifest.DocumentMax)
	}
	d.text = append(d.text, p...)
	return len(p), nil
}

// fromPeers asks one cell after the other. done means that t is whole and right; otherwise the registry goes
// on. An error is one of this host, or the end of the job.
func (f *fetcher) fromPeers(ctx context.Context, t target) (done bool, err error) {
	defer func() { f.peers.current = "" }()
	for failed := 0; f.job.Peers && !f.peers.alone && failed < peersMax && ctx.Err() == nil; {
		before, most, exact := t.bounds()
		file, from, err := f.peer.Peer(t.name(), most, before)
		if err != nil {
			return false, err
		}
		if file == nil {
			f.peers.alone = from.Alone
			return false, nil
		}
		f.peers.current = "cell " + from.Cell
		cause := f.receive(ctx, t, file)
		file.Close()
		written, _, _ := t.bounds()
		short := exact && written < most
		switch {
		case cause == nil && t.right():
			f.peers.count(f.peers.current, written-before)
			return true, nil
		case cause == nil && short: // what came may be right
			cause = fmt.Errorf("ended after %d of %d bytes", written, most)
		case cause == nil && before > 0: // the beginning, which others gave, may be to blame
			if err := t.rewind(0); err != nil {
				return false, err
			}
			failed++
			continue
		case cause == nil, errors.As(cause, new(refusal)), !exact:
			if cause == nil {
				cause = errors.New("what it sent has another digest: nothing of it is used")
			}
			if err := t.rewind(0); err != nil {
				return false, err
			}
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		f.peer.Lied(fmt.Sprintf("%s of %s: %v", f.peers.current, t.name(), cause))
		failed++
	}
	return false, nil
}

// receive reads what a cell sends until it ends, stalls, is too slow, or sends too much.
func (f *fetcher) receive(ctx context.Context, t target, file *os.File) error {
	conn, err := net.FileConn(file)
	if err != nil {
		return fmt.Errorf("what runnerd gives is no socket: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	start, received := time.Now(), 0
	buffer := make([]byte, 256<<10)
	for {
		end := start.Add(f.job.Timing.PeerWhole + time.Duration(received/peerRate)*time.Second)
		stall := time.Now().Add(f.job.Timing.PeerStall)
		if stall.After(end) {
			stall = end
		}
		_ = conn.SetReadDeadline(stall)
		n, err := conn.Read(buffer)
		if received += n; n > 0 {
			if _, err := t.Write(buffer[:n]); err != nil {
				return err
			}
			if written, _, exact := t.bounds(); exact {
				f.progress(written)
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(end):
			return fmt.Errorf("is slower than %d KiB/s", peerRate>>10)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("sent nothing for %v", f.job.Timing.PeerStall)
		case err != nil:
			return err
		}
	}
}
