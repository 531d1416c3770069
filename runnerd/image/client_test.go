package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/image/registry"
)

// The test binary is also the program that its clients start as children.
func TestMain(m *testing.M) {
	if exit, is := Children(); is {
		os.Exit(exit)
	}
	directory, err := os.MkdirTemp("", "runnerd-image-")
	if err != nil {
		panic(err)
	}
	// The children give up rights in all their threads, which a test binary with cgo cannot.
	program = filepath.Join(directory, "runnerd")
	build := exec.Command("go", "build", "-o", program, "colloid.net/cmd/runnerd")
	build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	code := 1
	if build.Run() == nil && os.Chmod(directory, 0o755) == nil {
		code = m.Run()
	}
	os.RemoveAll(directory)
	os.Exit(code)
}

// program is what starts the children.
var program string

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the file systems of containers cannot be mounted otherwise")
	}
}

// newClient gives a client with a directory of its own. Whatever it mounted is unmounted at the end.
func newClient(t testing.TB, change func(*Options)) *Client {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "images")
	o := Options{Command: []string{program}, Directory: directory, Idle: time.Minute, JitterMax: -1,
		Timing: registry.Timing{Whole: time.Minute, Stall: 2 * time.Second, Retry: 10 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		roots, _ := os.ReadDir(filepath.Join(o.Directory, "roots"))
		for _, root := range roots {
			if err := c.Unmount(context.Background(), root.Name()); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
		c.Close()
	})
	return c
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func hosts(r *imagetest.Registry) func() []Host {
	return func() []Host { return []Host{{Name: r.Host, Private: true, CA: r.CA, HTTP: r.CA == nil}} }
}

func digestOf(t testing.TB, hash v1.Hash) (digest [32]byte) {
	t.Helper()
	raw, err := hex.DecodeString(hash.Hex)
	if err != nil {
		t.Fatal(err)
	}
	copy(digest[:], raw)
	return digest
}

// TestPullAndMount goes the whole way once: registry, fetcher, store, a mounted root that can be written.
func TestPullAndMount(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	upper := imagetest.TarWith(t, map[string]string{"etc/motd": "two layers\n"}, tar.Header{Name: "etc/motd"},
		tar.Header{Name: "tmp/.wh.nothing"})
	base := imagetest.Busybox(t, runtime.GOARCH, v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"A=b"}, User: "app"})
	layers, err := base.Layers()
	if err != nil {
		t.Fatal(err)
	}
	bottom, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(bottom); err != nil {
		t.Fatal(err)
	}
	image := imagetest.Image(t, runtime.GOARCH, v1.Config{Cmd: []string{"/bin/sh"}, User: "app"}, text.Bytes(), upper)
	digest := digestOf(t, r.Push(t, "team/web:1", image))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	var last Progress
	start := time.Now()
	config, err := c.Ensure(testContext(t), r.Host+"/team/web:1", digest, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pulled in %v, last progress %v, config %+v", time.Since(start), last, config)
	if config.User != "app" || len(config.Command) != 1 {
		t.Errorf("config %+v", config)
	}
	for range 2 { // asking again changes nothing
		start = time.Now()
		rootfs, err := c.Mount(testContext(t), "web-0", digest, IDRange{Base: 1 << 20, Count: 65536}, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("mounted in %v", time.Since(start))
		motd, err := os.ReadFile(filepath.Join(rootfs, "etc/motd"))
		if err != nil || string(motd) != "two layers\n" {
			t.Errorf("%q, %v", motd, err)
		}
		info, err := os.Stat(filepath.Join(rootfs, "home/app/own"))
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 1<<20+1000 {
			t.Errorf("a file of user 1000 belongs to %d outside", uid)
		}
	}
	if err := c.Unmount(testContext(t), "web-0"); err != nil {
		t.Fatal(err)
	}
}

// F139: a state directory that lies on an overlay, as in a container, is named with the way out.
func TestF139_StateDirectoryOnAnOverlayIsNamed(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "text")))
	place := t.TempDir()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(place, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(place, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", place)
	if err := unix.Mount("colloid-test", merged, "overlay", 0, options); err != nil {
		t.Skipf("no overlay can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	c := newClient(t, func(o *Options) { o.Hosts, o.Directory = hosts(r), filepath.Join(merged, "images") })
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Fatal(err)
	}
	_, err := c.Mount(testContext(t), "x-0", digest, IDRange{Base: 1 << 20, Count: 65536}, 0)
	if err == nil || !strings.Contains(err.Error(), "file system of type overlay") ||
		!strings.Contains(err.Error(), "another --directory") {
		t.Errorf("%v", err)
	}
}
