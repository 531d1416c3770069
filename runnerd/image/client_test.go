package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/image/registry"
)

// The test binary is also the program that its clients start as children.
func TestMain(m *testing.M) {
	if exit, is := Children(); is {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

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
	o := Options{Directory: directory, Idle: time.Minute, JitterMax: -1,
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
