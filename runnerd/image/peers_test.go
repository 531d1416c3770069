package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/image/store"
	"colloid.net/runnerd/policy"
)

// cells are the other cells of a test, in the order in which they are asked. Each sends what it likes.
type cells struct {
	mutex sync.Mutex
	list  []cell
	asked []string // "CELL DIGEST OFFSET"
}

// cell writes the blob, or whatever it calls so, from an offset on. An error means that it has it not.
type cell func(digest Digest, offset int64, out io.Writer) error

var errHasNot = errors.New("has it not")

// Blob implements Peers. The number of a cell is its place in the list, from 1.
func (p *cells) Blob(_ context.Context, _, digest [32]byte, offset int64, avoid []uint64) (*os.File, uint64, error) {
	for i, send := range p.list {
		number := uint64(i + 1)
		if containsNumber(avoid, number) {
			continue
		}
		p.mutex.Lock()
		p.asked = append(p.asked, fmt.Sprintf("%d %s %d", number, Digest(digest), offset))
		p.mutex.Unlock()
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, 0, err
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "blob"), os.NewFile(uintptr(pair[1]), "blob")
		conn, err := net.FileConn(theirs)
		theirs.Close()
		if err != nil {
			return nil, 0, err
		}
		answer := make(chan error, 1)
		go func() {
			defer conn.Close()
			err := send(digest, offset, &firstWrite{conn, answer, sync.Once{}})
			answer <- err
		}()
		if err := <-answer; err != nil {
			ours.Close()
			continue
		}
		return ours, number, nil
	}
	return nil, 0, errors.New("no cell gives it")
}

// firstWrite tells that a cell has begun to send.
type firstWrite struct {
	conn  net.Conn
	began chan error
	once  sync.Once
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.once.Do(func() { w.began <- nil })
	return w.conn.Write(p)
}

func containsNumber(list []uint64, number uint64) bool {
	for _, n := range list {
		if n == number {
			return true
		}
	}
	return false
}

// honest is a cell that gives what its runnerd shares.
func honest(from *Client) cell {
	return func(digest Digest, offset int64, out io.Writer) error {
		file, err := from.Shared(digest, offset)
		if err != nil {
			return err
		}
		defer file.Close()
		_, _ = out.Write(nil)
		_, err = io.Copy(out, file)
		return err
	}
}

func sharing(mode Sharing) func() Sharing { return func() Sharing { return mode } }

// holder is a client that has pulled an image, and what the image's layer is.
func holder(t *testing.T, r *imagetest.Registry, reference string, digest [32]byte) *Client {
	t.Helper()
	c := newClient(t, func(o *Options) { o.Hosts, o.Share = hosts(r), sharing(policy.SharePublic) })
	if _, err := c.Ensure(testContext(t), r.Host+"/"+reference, digest, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

func kept(t *testing.T, c *Client) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.options.Directory, store.KeptName))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}

// hangUp is a registry that nobody reaches.
func hangUp(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	})
}

// TestF76_PeersComeBeforeTheRegistry holds that a registry is not even spoken to while other cells have all of an
// image, and that who got it from one of them gives it to the next.
func TestF76_PeersComeBeforeTheRegistry(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, incompressible(3<<20))))
	from := holder(t, r, "x:1", digest)
	if n := len(kept(t, from)); n != 3 { // manifest, configuration, layer
		t.Fatalf("%q is kept", kept(t, from))
	}
	r.Wrap(hangUp)
	asked := len(r.Requests())
	for range 2 {
		peers := &cells{list: []cell{honest(from)}}
		var said []string
		c := newClient(t, func(o *Options) { o.Hosts, o.Peers, o.Share = hosts(r), peers, sharing(policy.SharePublic) })
		_, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, func(p Progress) { said = append(said, p.String()) })
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(said, "\n"), "from cell 0000000000000001") {
			t.Errorf("progress says %q", said)
		}
		if len(c.avoid) != 0 {
			t.Errorf("it avoids %v", c.avoid)
		}
		from = c
	}
	if n := len(r.Requests()); n != asked {
		t.Errorf("the registry was asked %d times", n-asked)
	}
}

// TestF76_PeersThatLie plays a cell that lies in one way each: the registry gives the image, the cell is not asked
// again, and nothing that it sent stays.
func TestF76_PeersThatLie(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	image := small(t, runtime.GOARCH, incompressible(300<<10))
	digest := digestOf(t, r.Push(t, "x:1", image))
	from := holder(t, r, "x:1", digest)
	read := func(digest Digest, offset int64) []byte {
		file, err := from.Shared(digest, offset)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer file.Close()
		text, _ := io.ReadAll(file)
		return text
	}
	for name, test := range map[string]struct {
		send   cell
		ranges bool // what came before is not fetched again
	}{
		"another blob": {func(digest Digest, _ int64, out io.Writer) error {
			text := read(digest, 0)
			text[len(text)-1] ^= 1
			_, err := out.Write(text)
			return err
		}, false},
		"more than there is": {func(digest Digest, _ int64, out io.Writer) error {
			_, _ = out.Write(read(digest, 0))
			for {
				if _, err := out.Write(make([]byte, 64<<10)); err != nil {
					return nil
				}
			}
		}, false},
		"nothing": {func(_ Digest, _ int64, out io.Writer) error {
			_, err := out.Write(nil)
			return err
		}, false},
		"half of it": {func(digest Digest, _ int64, out io.Writer) error {
			text := read(digest, 0)
			_, err := out.Write(text[:len(text)/2])
			return err
		}, true},
		"half of it, and then no end": {func(digest Digest, _ int64, out io.Writer) error {
			text := read(digest, 0)
			_, _ = out.Write(text[:len(text)/2])
			time.Sleep(2 * time.Second)
			return nil
		}, true},
		"byte by byte": {func(digest Digest, _ int64, out io.Writer) error {
			for _, b := range read(digest, 0) {
				if _, err := out.Write([]byte{b}); err != nil {
					return nil
				}
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		}, true},
		"half of something else": {func(digest Digest, _ int64, out io.Writer) error {
			_, err := out.Write(make([]byte, len(read(digest, 0))/2))
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			// Documents honestly, so that the layer is what it lies about; then all.
			for _, layersOnly := range []bool{true, false} {
				peers := &cells{list: []cell{func(digest Digest, offset int64, out io.Writer) error {
					if layersOnly && len(read(digest, 0)) < 100<<10 {
						return honest(from)(digest, offset, out)
					}
					return test.send(digest, offset, out)
				}}}
				c := newClient(t, func(o *Options) {
					o.Hosts, o.Peers, o.Share = hosts(r), peers, sharing(policy.SharePublic)
					o.Timing.PeerStall, o.Timing.PeerWhole = 300*time.Millisecond, 700*time.Millisecond
				})
				asked := len(r.Requests())
				if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
					t.Fatal(err)
				}
				if len(c.avoid) != 1 {
					t.Errorf("it avoids %v", c.avoid)
				}
				ranged := strings.Contains(strings.Join(r.Requests()[asked:], "\n"), "bytes=")
				if layersOnly && ranged != test.ranges {
					t.Errorf("the registry was asked for %q", r.Requests()[asked:])
				}
				for _, name := range kept(t, c) { // what it gives on is right
					text, err := os.ReadFile(filepath.Join(c.options.Directory, store.KeptName, name))
					if err != nil || store.KeptBlobName(sha256.Sum256(text), false) != name {
						t.Errorf("%s is kept with other content (%v)", name, err)
					}
				}
			}
		})
	}
}

// TestF76_AnHonestPeerGoesOnWhereALiarEnded holds that who finishes what another began is not blamed for the
// beginning.
func TestF76_AnHonestPeerGoesOnWhereALiarEnded(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, incompressible(300<<10))))
	from := holder(t, r, "x:1", digest)
	r.Wrap(hangUp)
	peers := &cells{list: []cell{func(digest Digest, offset int64, out io.Writer) error {
		file, err := from.Shared(digest, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		if info, err := file.Stat(); err != nil || info.Size() < 100<<10 {
			return errHasNot
		}
		_, err = out.Write(bytes.Repeat([]byte("no"), 10<<10))
		return err
	}, honest(from)}}
	c := newClient(t, func(o *Options) { o.Hosts, o.Peers = hosts(r), peers })
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Fatalf("%v; asked %q", err, peers.asked)
	}
	if _, liar := c.avoid[1]; !liar || len(c.avoid) != 1 {
		t.Errorf("it avoids %v", c.avoid)
	}
	all := strings.Join(peers.asked, "\n")
	if !strings.Contains(all, " 20480") {
		t.Errorf("nobody went on where the liar ended: %q", peers.asked)
	}
}

// TestF76_WhatIsSharedFollowsThePolicy holds which blobs other cells get.
func TestF76_WhatIsSharedFollowsThePolicy(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "content")))
	r.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if user, word, _ := q.BasicAuth(); user != "builder" || word != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(w, q)
		})
	})
	credentials := writeCredentials(t, fmt.Sprintf("registry %s {\n username builder\n password secret\n}\n", r.Host))
	for _, test := range []struct {
		mode Sharing
		kept int
	}{{policy.SharePublic, 0}, {policy.ShareAll, 3}, {policy.ShareNone, 0}} {
		mode := test.mode
		c := newClient(t, func(o *Options) {
			o.Hosts, o.Credentials, o.Share = hosts(r), credentials, func() Sharing { return mode }
		})
		if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
			t.Fatal(err)
		}
		if list := kept(t, c); len(list) != test.kept {
			t.Errorf("sharing %d, got with credentials: %q is kept", test.mode, list)
		}
		if test.mode != policy.ShareAll {
			continue
		}
		file, err := c.Shared(digest, 0)
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		for _, mode = range []Sharing{policy.SharePublic, policy.ShareNone} {
			if file, err := c.Shared(digest, 0); err == nil {
				file.Close()
				t.Errorf("sharing %d gives what was got with credentials", mode)
			}
		}
	}
	r.Wrap(nil)
	c := newClient(t, func(o *Options) { o.Hosts, o.Share = hosts(r), sharing(policy.SharePublic) })
	blob := c.blobPath(digest)
	if err := os.WriteFile(blob, []byte("x"), 0o600); err != nil { // of an earlier run, got nobody knows how
		t.Fatal(err)
	}
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Fatal(err)
	}
	if list := kept(t, c); len(list) != 2 {
		t.Errorf("%q is kept", list)
	}
}

// TestF76_WhatIsKeptIsBounded holds that blobs for others go when there are too many, the disk is needed, or their
// image goes.
func TestF76_WhatIsKeptIsBounded(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	first := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, incompressible(300<<10))))
	second := digestOf(t, r.Push(t, "y:1", small(t, runtime.GOARCH, incompressible(301<<10))))
	c := newClient(t, func(o *Options) {
		o.Hosts, o.Share, o.KeptMax = hosts(r), sharing(policy.SharePublic), 400<<10
	})
	ensure := func(reference string, digest [32]byte) {
		t.Helper()
		if _, err := c.Ensure(testContext(t), r.Host+"/"+reference, digest, nil); err != nil {
			t.Fatal(err)
		}
	}
	ensure("x:1", first)
	time.Sleep(10 * time.Millisecond)
	ensure("y:1", second)
	total := int64(0)
	for _, name := range kept(t, c) {
		info, err := os.Stat(filepath.Join(c.options.Directory, store.KeptName, name))
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 400<<10 || total < 300<<10 {
		t.Errorf("%d bytes are kept: %q", total, kept(t, c))
	}
	if file, err := c.Shared(second, 1<<20); err == nil {
		file.Close()
		t.Error("it gives what is behind the end")
	}
	if _, err := c.Shared(second, -1); err == nil {
		t.Error("it gives what is before the beginning")
	}
	if err := c.Remove(testContext(t), second); err != nil {
		t.Fatal(err)
	}
	for _, name := range kept(t, c) {
		if strings.Contains(name, Digest(second).Hex()) {
			t.Errorf("%s is kept without its image", name)
		}
	}
	c.trimKept(1 << 60) // more than any disk has
	if list := kept(t, c); len(list) != 0 {
		t.Errorf("%q is kept on a full disk", list)
	}
}
