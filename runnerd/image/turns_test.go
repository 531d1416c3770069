package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/policy"
)

// drip lets some bytes of an answer through at once, and the rest one by one until slow is over.
type drip struct {
	http.ResponseWriter
	slow *atomic.Bool
	sent int
	stop <-chan struct{}
}

const dripFree = 64 << 10

func (d *drip) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		size := len(p) - n
		if d.slow.Load() {
			if size = min(size, dripFree-d.sent); size <= 0 {
				size = 1
				select {
				case <-time.After(100 * time.Millisecond):
				case <-d.stop:
				}
			}
		}
		if _, err := d.ResponseWriter.Write(p[n : n+size]); err != nil {
			return n, err
		}
		d.sent, n = d.sent+size, n+size
		_ = http.NewResponseController(d.ResponseWriter).Flush()
	}
	return len(p), nil
}

// slowRegistry has an image slow:1 and a module /slow.wasm that come slowly while slow is set.
func slowRegistry(t *testing.T) (r *imagetest.Registry, slow *atomic.Bool, image, module [32]byte) {
	t.Helper()
	r, slow = imagetest.NewRegistry(t), new(atomic.Bool)
	image = digestOf(t, r.Push(t, "slow:1", small(t, runtime.GOARCH, incompressible(400<<10))))
	content := moduleMagic + "\x01\x00\x00\x00" + incompressible(400<<10)
	module = sha(content)
	r.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "/slow/blobs/") || q.URL.Path == "/slow.wasm" {
				w = &drip{ResponseWriter: w, slow: slow, stop: q.Context().Done()}
			}
			if q.URL.Path == "/slow.wasm" {
				http.ServeContent(w, q, "", time.Time{}, bytes.NewReader([]byte(content)))
				return
			}
			inner.ServeHTTP(w, q)
		})
	})
	slow.Store(true)
	return r, slow, image, module
}

// said collects what is told of a pull, without repetitions.
type said struct {
	mutex sync.Mutex
	texts []string
}

func (s *said) add(p Progress) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if text := p.String(); len(s.texts) == 0 || s.texts[len(s.texts)-1] != text {
		s.texts = append(s.texts, text)
	}
}

func (s *said) String() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return strings.Join(s.texts, "; ")
}

// TestF76_SlowPullsGiveWay holds that two slow pulls stop nobody, that whoever waits is told so, and that what slow ones
// brought stays: they go on from there, and other cells get it from this one in the end.
func TestF76_SlowPullsGiveWay(t *testing.T) {
	needRoot(t)
	r, slow, image, module := slowRegistry(t)
	fast := digestOf(t, r.Push(t, "fast:1", small(t, runtime.GOARCH, "fast")))
	c := newClient(t, func(o *Options) {
		o.Hosts, o.SlowAfter, o.Share = hosts(r), 1500*time.Millisecond, sharing(policy.SharePublic)
	})
	done := make(chan error, 2)
	var ofImage, ofModule, ofFast said
	go func() {
		_, err := c.Ensure(testContext(t), r.Host+"/slow:1", image, ofImage.add)
		done <- err
	}()
	go func() {
		file, err := c.Module(testContext(t), "https://"+r.Host+"/slow.wasm", module, ofModule.add)
		if err == nil {
			file.Close()
		}
		done <- err
	}()
	for end := time.Now().Add(10 * time.Second); len(c.slots) < pullsAtOnce; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the slow ones do not begin")
		}
	}
	start := time.Now()
	if _, err := c.Ensure(testContext(t), r.Host+"/fast:1", fast, ofFast.add); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the fast one took %v", took)
	}
	if !strings.HasPrefix(ofFast.String(), "waits for two other pulls; ") {
		t.Errorf("of the fast one was said: %s", ofFast.String())
	}
	if text := ofImage.String() + ofModule.String(); !strings.Contains(text, "waits for two other pulls: it came at less than 32 KiB/s") {
		t.Errorf("of the slow ones was said: %s", text)
	}
	// Each of them gives way to the other now; what they brought is there.
	c.count(1) // somebody waits for ever
	defer c.count(-1)
	for _, path := range []string{"/blobs/", "/slow.wasm"} {
		for end := time.Now().Add(40 * time.Second); !resumed(r, path); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nothing of %s was kept: %q", path, r.Requests())
			}
		}
	}
	slow.Store(false)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, left := range c.remains(t) {
		if strings.Contains(left, unfinishedPrefix) {
			t.Errorf("left %s", left)
		}
	}
	if list := kept(t, c); len(list) != 6 { // manifest, configuration, layer of two images
		t.Errorf("for other cells there are %q", list)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.blobs) > 0 {
		t.Errorf("%d blobs are still in use", len(c.blobs))
	}
}

// TestF76_ASlowImageThatIsGivenUpHoldsNothing holds that the blobs of a pull that waits for its next turn are free when
// there is none.
func TestF76_ASlowImageThatIsGivenUpHoldsNothing(t *testing.T) {
	c := newClient(t, func(*Options) {})
	digest := Digest{1}
	ctx, cancel := context.WithCancel(testContext(t))
	err := c.share(ctx, digest, false, func(p Progress) {
		if p.Slow {
			cancel()
		}
	}, nil, func(ctx context.Context, p *pull) error {
		b := &imageBlobs{client: c, pull: p, used: p.held}
		b.use(Digest{2})
		b.end(errSlow)
		for range cap(c.slots) { // others take the places
			go func() { c.slots <- struct{}{} }()
		}
		return errSlow
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		c.mutex.Lock()
		left, pulls := len(c.blobs), len(c.pulls)
		c.mutex.Unlock()
		if left+pulls == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d blobs of %d pulls are in use", left, pulls)
		}
	}
}

// TestF76_ASlowModuleThatIsGivenUpLeavesNothing holds that what is kept of a module for its next turn goes when there is
// none: nobody else would remove it before runnerd is started again.
func TestF76_ASlowModuleThatIsGivenUpLeavesNothing(t *testing.T) {
	r, _, _, module := slowRegistry(t)
	c := newClient(t, func(o *Options) { o.Hosts, o.SlowAfter = hosts(r), 1500*time.Millisecond })
	c.slots <- struct{}{} // others, one that runs and one that waits
	c.count(1)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	gaveWay := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	go func() {
		_, err := c.Module(ctx, "https://"+r.Host+"/slow.wasm", module, func(p Progress) {
			switch {
			case !p.Queued:
				go func() { c.slots <- struct{}{} }()
			case p.Slow:
				once.Do(func() { close(gaveWay) })
			}
		})
		done <- err
	}()
	select {
	case <-gaveWay:
	case err := <-done:
		t.Fatal(err)
	}
	if _, err := os.Stat(c.unfinishedPath(module)); err != nil {
		t.Fatal("nothing was kept: ", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(c.unfinishedPath(module)); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("what was brought is still there")
		}
	}
}

// resumed reports whether a request for a part of something was made.
func resumed(r *imagetest.Registry, path string) bool {
	for _, line := range r.Requests() {
		if strings.Contains(line, path) && strings.Contains(line, " bytes=") {
			return true
		}
	}
	return false
}

// TestF76_ASlowPullAloneGoesOn holds that nobody is interrupted for nobody.
func TestF76_ASlowPullAloneGoesOn(t *testing.T) {
	needRoot(t)
	r, slow, image, _ := slowRegistry(t)
	c := newClient(t, func(o *Options) { o.Hosts, o.SlowAfter = hosts(r), 200*time.Millisecond })
	done := make(chan error, 1)
	go func() {
		_, err := c.Ensure(testContext(t), r.Host+"/slow:1", image, nil)
		done <- err
	}()
	time.Sleep(1500 * time.Millisecond)
	if resumed(r, "/blobs/") {
		t.Errorf("it was interrupted: %q", r.Requests())
	}
	slow.Store(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestPaceIsAnAverage holds the arithmetic of slow, on times that are given.
func TestPaceIsAnAverage(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	waits := true
	p := pace{after: 10 * time.Second, awaited: func() bool { return waits }, mark: start, bytes: 1 << 20}
	for _, c := range []struct {
		seconds float64
		bytes   int64
		waits   bool
		want    bool
	}{
		{1, 1 << 20, true, false},                  // too early to tell
		{10, 1<<20 + 10*slowRate, true, false},     // just fast enough
		{20, 1<<20 + 20*slowRate - 1, true, true},  // a byte less
		{30, 1<<20 + 21*slowRate, false, false},    // slow, but nobody waits
		{35, 0, true, false},                       // it began again
		{44, slowRate, true, false},                // not long ago
		{45.5, slowRate, true, true},               //
		{56, 1000 * slowRate, true, false},         // fast
		{66.5, 1000*slowRate + 1000, true, true},   //
		{77, 1000*slowRate + 1000, false, false},   //
		{88, 1000*slowRate + 1000, true, true},     //
		{90, 1000*slowRate + 1000000, true, false}, //
	} {
		waits = c.waits
		if got := p.slow(at(c.seconds), c.bytes); got != c.want {
			t.Errorf("after %v s, %d bytes: %v", c.seconds, c.bytes, got)
		}
	}
	p.awaited = nil
	if p.slow(at(1000), 0) {
		t.Error("slow, where nobody ever waits")
	}
}
