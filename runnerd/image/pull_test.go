package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"colloid.net/runnerd/image/imagetest"
)

// small is an image of one file, so that its layer has about that size.
func small(t testing.TB, architecture, content string) v1.Image {
	return imagetest.Image(t, architecture, v1.Config{}, imagetest.TarWith(t, map[string]string{"file": content},
		tar.Header{Name: "file"}))
}

// incompressible is content whose blob is as long as itself.
func incompressible(size int) string {
	var out strings.Builder
	for i := 0; out.Len() < size; i++ {
		sum := sha256.Sum256([]byte(strconv.Itoa(i)))
		out.Write(sum[:])
	}
	return out.String()[:size]
}

// remains lists what a client's directory holds beside the directories themselves.
func (c *Client) remains(t testing.TB) (list []string) {
	t.Helper()
	for _, name := range []string{"layers", "images", "blobs", "modules"} {
		entries, err := os.ReadDir(filepath.Join(c.options.Directory, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			list = append(list, name+"/"+entry.Name())
		}
	}
	return list
}

func (c *Client) expectRefusal(t testing.TB, r *imagetest.Registry, digest [32]byte, words ...string) {
	t.Helper()
	_, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
	if err == nil {
		t.Fatal("it was pulled")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if left := c.remains(t); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// onBlob answers requests for blobs of some size or more itself.
func onBlob(answer http.HandlerFunc) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/blobs/") {
				answer(w, q)
				return
			}
			inner.ServeHTTP(w, q)
		})
	}
}

// TestF146_HostileRegistry plays one that lies in one way each. Each is refused with a sentence and leaves nothing.
func TestF146_HostileRegistry(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	image := small(t, runtime.GOARCH, incompressible(300<<10))
	digest := digestOf(t, r.Push(t, "x:1", image))
	other := small(t, runtime.GOARCH, "something else")
	r.Push(t, "other:1", other)
	raw, err := other.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	private := imagetest.NewPlainRegistry(t)
	for name, c := range map[string]struct {
		wrap func(http.Handler) http.Handler
		want []string
	}{
		"another manifest": {func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if strings.Contains(q.URL.Path, "/manifests/") {
					w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
					w.Write(raw)
					return
				}
				inner.ServeHTTP(w, q)
			})
		}, []string{r.Host, "with the digest", "instead of"}},
		"another blob of the same size": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			w.Write(make([]byte, sizeOf(t, image, q.URL.Path)))
		}), []string{"with the digest", "instead of"}},
		"an endless blob": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			for range 10000 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}), []string{r.Host}},
		"a redirect to a private address": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "https://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
		}), []string{"169.254.169.254", "not public"}},
		"a redirect to this host": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "https://localhost:1/", http.StatusTemporaryRedirect)
		}), []string{"localhost", "not public"}},
		"a redirect to plain HTTP": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "http://"+private.Host+"/", http.StatusTemporaryRedirect)
		}), []string{"HTTP"}},
		"a redirect to a file": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "file:///etc/shadow", http.StatusTemporaryRedirect)
		}), []string{r.Host}},
		"redirects without end": {onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, q.URL.Path, http.StatusTemporaryRedirect)
		}), []string{"redirects more than 5 times"}},
		"no such image": {func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path != "/v2/" {
					http.NotFound(w, q)
				}
			})
		}, []string{r.Host, "has no", "check the name"}},
		"a manifest without end": {func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if strings.Contains(q.URL.Path, "/manifests/") {
					w.Write(make([]byte, 5<<20))
					return
				}
				inner.ServeHTTP(w, q)
			})
		}, []string{"more than 4194304 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
			r.Wrap(c.wrap)
			defer r.Wrap(nil)
			client.expectRefusal(t, r, digest, c.want...)
		})
	}
}

// sizeOf finds out how long the blob of a path is.
func sizeOf(t testing.TB, image v1.Image, path string) int64 {
	layers, err := image.Layers()
	if err != nil {
		t.Error(err)
	}
	for _, layer := range layers {
		if digest, _ := layer.Digest(); strings.HasSuffix(path, digest.String()) {
			size, _ := layer.Size()
			return size
		}
	}
	config, _ := image.RawConfigFile()
	return int64(len(config))
}

// TestF146_OnlyWhatThePolicyLists holds the two things that need the word of the host's administrator.
func TestF146_OnlyWhatThePolicyLists(t *testing.T) {
	needRoot(t)
	secure, plain := imagetest.NewRegistry(t), imagetest.NewPlainRegistry(t)
	image := small(t, runtime.GOARCH, "x")
	digest := digestOf(t, secure.Push(t, "x:1", image))
	plain.Push(t, "x:1", image)
	for name, c := range map[string]struct {
		registry *imagetest.Registry
		host     Host
		want     string
	}{
		"not listed":            {secure, Host{Name: "other"}, "not public: list `registry " + secure.Host + " { private }`"},
		"other port":            {secure, Host{Name: "127.0.0.1", Private: true}, "not public"},
		"listed, unknown ca":    {secure, Host{Name: secure.Host, Private: true}, "certificate"},
		"listed, empty ca":      {secure, Host{Name: secure.Host, Private: true, CA: []byte("none")}, "no certificate"},
		"plain":                 {plain, Host{Name: plain.Host, Private: true}, "HTTP"},
		"plain but not private": {plain, Host{Name: plain.Host, HTTP: true}, "not public"},
	} {
		t.Run(name, func(t *testing.T) {
			client := newClient(t, func(o *Options) { o.Hosts = func() []Host { return []Host{c.host} } })
			client.expectRefusal(t, c.registry, digest, c.want)
		})
	}
	client := newClient(t, func(o *Options) { o.Hosts = hosts(plain) })
	if _, err := client.Ensure(testContext(t), plain.Host+"/x:1", digest, nil); err != nil {
		t.Errorf("listed with http and private: %v", err)
	}
}

// TestF84_TheTagMayMove holds that a start never asks what a tag means: what runs is what was applied.
func TestF84_TheTagMayMove(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	first := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "first")))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	resolved, err := c.Resolve(testContext(t), r.Host+"/x:1")
	if err != nil || resolved.Digest != first || len(resolved.Architectures) != 1 || resolved.Architectures[0] != runtime.GOARCH {
		t.Fatalf("%+v, %v", resolved, err)
	}
	second := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "second")))
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", first, nil); err != nil {
		t.Fatal(err)
	}
	rootfs, err := c.Mount(testContext(t), "x-0", first, IDRange{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(rootfs, "file")); err != nil || string(text) != "first" {
		t.Errorf("%q, %v", text, err)
	}
	asked := 0
	for _, request := range r.Requests() {
		if strings.HasPrefix(request, "GET /v2/x/manifests/1 ") {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the tag was asked for %d times, want once, by Resolve", asked)
	}
	if resolved, err := c.Resolve(testContext(t), r.Host+"/x:1"); err != nil || resolved.Digest != second {
		t.Errorf("%+v, %v", resolved, err)
	}
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", [32]byte{}, nil); err == nil || !strings.Contains(err.Error(), "apply the workload again") {
		t.Errorf("without a digest: %v", err)
	}
}

// TestF77_TheIndexDecides holds that each host takes its own architecture of an image, and says what there is.
func TestF77_TheIndexDecides(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: small(t, "s390x", "wrong"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: small(t, runtime.GOARCH, "right"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	digest := digestOf(t, r.PushIndex(t, "x:1", index))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	resolved, err := c.Resolve(testContext(t), r.Host+"/x:1")
	if err != nil || resolved.Digest != digest || fmt.Sprint(resolved.Architectures) != fmt.Sprint([]string{runtime.GOARCH, "s390x"}) {
		t.Errorf("%+v, %v", resolved, err)
	}
	config, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
	if err != nil || config.Architecture != runtime.GOARCH {
		t.Errorf("%+v, %v", config, err)
	}
	lonely := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: small(t, "s390x", "wrong"),
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	other := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	other.expectRefusal(t, r, digestOf(t, r.PushIndex(t, "x:2", lonely)), "no manifest for linux/"+runtime.GOARCH, "s390x")
}

// cut ends the answer to a blob after some bytes, every time.
func cut(after int64, ranges bool) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Method != http.MethodGet || !strings.Contains(q.URL.Path, "/blobs/") {
				inner.ServeHTTP(w, q)
				return
			}
			if !ranges {
				q.Header.Del("Range")
			}
			inner.ServeHTTP(&cutting{ResponseWriter: w, left: after}, q)
		})
	}
}

type cutting struct {
	http.ResponseWriter
	left int64
}

func (c *cutting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); err == nil && c.left == 0 {
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// TestF146_ABrokenPullGoesOn holds resuming: within a pull, in the next one, and from a beginning that is wrong.
func TestF146_ABrokenPullGoesOn(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	image := small(t, runtime.GOARCH, incompressible(1<<20))
	digest := digestOf(t, r.Push(t, "x:1", image))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	r.Wrap(cut(300<<10, true))
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Fatal(err)
	}
	resumed := 0
	for _, request := range r.Requests() {
		if strings.Contains(request, "bytes=") {
			resumed++
		}
	}
	if resumed < 3 {
		t.Errorf("%d requests for a range: %q", resumed, r.Requests())
	}
	if left := c.remains(t); len(left) != 2 { // a layer and an image
		t.Errorf("left %q", left)
	}
	// A registry that always breaks off at the same place and knows no ranges cannot be pulled from. What has
	// come stays for the next try.
	second := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	r.Wrap(cut(300<<10, false))
	_, err := second.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
	if err == nil || !strings.Contains(err.Error(), "broke off") {
		t.Fatalf("%v", err)
	}
	var blob string
	for _, name := range second.remains(t) {
		if info, err := os.Stat(filepath.Join(second.options.Directory, name)); err == nil && info.Size() > 100<<10 {
			blob = filepath.Join(second.options.Directory, name)
		}
	}
	if blob == "" {
		t.Fatalf("nothing was kept: %q", second.remains(t))
	}
	if err := os.WriteFile(blob, make([]byte, 200<<10), 0o600); err != nil { // not what had come
		t.Fatal(err)
	}
	r.Wrap(nil)
	if _, err := second.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Error(err)
	}
}

// TestF146_AStalledRegistryIsGivenUp holds that a pull neither hangs nor keeps the others waiting for ever.
func TestF146_AStalledRegistryIsGivenUp(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, incompressible(100<<10))))
	over := make(chan struct{})
	defer close(over)
	r.Wrap(onBlob(func(w http.ResponseWriter, q *http.Request) {
		w.Write([]byte("{"))
		w.(http.Flusher).Flush()
		select {
		case <-over:
		case <-q.Context().Done():
		}
	}))
	c := newClient(t, func(o *Options) {
		o.Hosts = hosts(r)
		o.Timing.Stall = 300 * time.Millisecond
		o.Timing.Whole = 10 * time.Second
	})
	start := time.Now()
	_, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
	if err == nil || !strings.Contains(err.Error(), "sends nothing any more") || time.Since(start) > 12*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	c.options.Timing.Whole, c.options.Timing.Stall = 500*time.Millisecond, time.Minute
	_, err = c.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
	if err == nil || !strings.Contains(err.Error(), "took more than 500ms") {
		t.Errorf("%v", err)
	}
}

// TestF76_OnePullForAll holds that instances which start together pull once, that at most two pulls run at a
// time, and that progress reaches everybody.
func TestF76_OnePullForAll(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	var digests [][32]byte
	for i := range 4 {
		digests = append(digests, digestOf(t, r.Push(t, fmt.Sprintf("x%d:1", i), small(t, runtime.GOARCH, fmt.Sprint("image ", i)))))
	}
	var now, most atomic.Int32
	r.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(20 * time.Millisecond)
			inner.ServeHTTP(w, q)
			now.Add(-1)
		})
	})
	before := len(r.Requests())
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	var group sync.WaitGroup
	var reports atomic.Int32
	for i, digest := range digests {
		for range 3 {
			group.Go(func() {
				_, err := c.Ensure(testContext(t), fmt.Sprintf("%s/x%d:1", r.Host, i), digest, func(Progress) { reports.Add(1) })
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	// Each pull: ping, manifest, configuration, layer.
	if n := len(r.Requests()) - before; n != 4*len(digests) {
		t.Errorf("%d requests for %d images", n, len(digests))
	}
	if most.Load() > pullsAtOnce || reports.Load() < int32(3*len(digests)) {
		t.Errorf("%d requests at a time, %d reports", most.Load(), reports.Load())
	}
	if left := c.remains(t); len(left) != 2*len(digests) {
		t.Errorf("left %q", left)
	}
}

// TestAPullEndsWithItsLastWaiter holds that nobody's pull goes on when nobody wants it any more.
func TestAPullEndsWithItsLastWaiter(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "x")))
	reached := make(chan struct{}, 100)
	r.Wrap(onBlob(func(_ http.ResponseWriter, q *http.Request) {
		reached <- struct{}{}
		<-q.Context().Done()
	}))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r); o.Timing.Stall = time.Minute })
	ctx, cancel := context.WithCancel(testContext(t))
	go func() { <-reached; cancel() }()
	if _, err := c.Ensure(ctx, r.Host+"/x:1", digest, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c.mutex.Lock()
		n := len(c.pulls)
		c.mutex.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the pull goes on")
		}
	}
	r.Wrap(nil)
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Error(err)
	}
}
