package image

import (
	"archive/tar"
	"bytes"
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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/imagetest"
)

// childrenOf finds the processes that this one has started and that have this argument.
func childrenOf(t testing.TB, argument string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		command, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		words := strings.Split(string(command), "\x00")
		if len(words) > 1 && words[1] == argument && statusOf(pid)["PPid"] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func statusOf(pid int) map[string]string {
	fields := map[string]string{}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.Join(strings.Fields(value), " ")
	}
	return fields
}

// TestF140_TheStoreHasOnlyTheRightsItNeeds looks at the process from outside, at each of its threads.
func TestF140_TheStoreHasOnlyTheRightsItNeeds(t *testing.T) {
	needRoot(t)
	c := newClient(t, nil)
	if _, err := c.List(testContext(t)); err != nil {
		t.Fatal(err)
	}
	pids := childrenOf(t, "images")
	if len(pids) != 1 {
		t.Fatalf("processes %v", pids)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pids[0]))
	if err != nil || len(threads) == 0 {
		t.Fatal(err)
	}
	allowed := uint64(0)
	for _, number := range []uint{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER,
		unix.CAP_FSETID, unix.CAP_SETFCAP, unix.CAP_MKNOD, unix.CAP_SETUID, unix.CAP_SETGID} {
		allowed |= 1 << number
	}
	for _, thread := range threads {
		tid, _ := strconv.Atoi(filepath.Base(thread))
		status := statusOf(tid)
		for _, set := range []string{"CapEff", "CapPrm"} {
			have, err := strconv.ParseUint(status[set], 16, 64)
			if err != nil || have&^allowed != 0 {
				t.Errorf("thread %d has %s %s", tid, set, status[set])
			}
		}
		if status["NoNewPrivs"] != "1" {
			t.Errorf("thread %d may gain rights", tid)
		}
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pids[0])); err != nil || its == own {
		t.Errorf("its network is %s, ours %s: %v", its, own, err)
	}
}

// TestF146_TheFetcherHasNoRights looks at a fetcher while its registry keeps it waiting.
func TestF146_TheFetcherHasNoRights(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "x")))
	reached, goOn := make(chan struct{}, 10), make(chan struct{})
	r.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if strings.Contains(q.URL.Path, "/blobs/") {
				reached <- struct{}{}
				<-goOn
			}
			inner.ServeHTTP(w, q)
		})
	})
	secret := "registry " + r.Host + " {\n username u\n password very-secret\n}\n"
	c := newClient(t, func(o *Options) {
		o.Hosts, o.Credentials, o.Timing.Stall = hosts(r), writeCredentials(t, secret), time.Minute
	})
	done := make(chan error, 1)
	go func() {
		_, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil)
		done <- err
	}()
	<-reached
	pids := childrenOf(t, "fetch")
	if len(pids) != 1 {
		t.Fatalf("processes %v", pids)
	}
	status := statusOf(pids[0])
	for field, want := range map[string]string{"CapEff": "0000000000000000", "CapPrm": "0000000000000000",
		"NoNewPrivs": "1", "Groups": ""} {
		if status[field] != want {
			t.Errorf("%s is %q, want %q", field, status[field], want)
		}
	}
	uid := strings.Fields(status["Uid"])[0]
	if number, _ := strconv.Atoi(uid); number < fetcherFirst || number >= fetcherFirst+fetcherCount {
		t.Errorf("it runs as %s", uid)
	}
	for _, name := range []string{"cmdline", "environ"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pids[0], name))
		if bytes.Contains(text, []byte("very-secret")) {
			t.Errorf("the password is in its %s", name)
		}
	}
	// Nobody with its user id can look into it, since it is not dumpable: its files belong to root.
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/mem", pids[0])); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("its memory belongs to %+v, %v", info, err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTheStoreEndsWhenIdle holds that a runnerd without containers carries no image store, that the next
// request finds another, and that mounts survive.
func TestTheStoreEndsWhenIdle(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	digest := digestOf(t, r.Push(t, "x:1", small(t, runtime.GOARCH, "x")))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r); o.Idle = 200 * time.Millisecond })
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Fatal(err)
	}
	rootfs, err := c.Mount(testContext(t), "x-0", digest, IDRange{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); len(childrenOf(t, "images")) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not end")
		}
	}
	if text, err := os.ReadFile(filepath.Join(rootfs, "file")); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
	for range 20 { // also just when it ends
		again, err := c.Mount(testContext(t), "x-0", digest, IDRange{}, 0)
		if err != nil || again != rootfs {
			t.Fatalf("%q, %v", again, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := c.Unmount(testContext(t), "x-0"); err != nil {
		t.Error(err)
	}
}

// TestF140_KilledWhileUnpacking holds that kill -9 at any moment leaves no layer that is not whole, and that
// the next try succeeds.
func TestF140_KilledWhileUnpacking(t *testing.T) {
	needRoot(t)
	r := imagetest.NewRegistry(t)
	content := map[string]string{}
	var entries []tar.Header
	for i := range 500 {
		name := fmt.Sprintf("f%d", i)
		content[name] = strings.Repeat(name, 50)
		entries = append(entries, tar.Header{Name: name})
	}
	image := imagetest.Image(t, runtime.GOARCH, v1.Config{}, imagetest.TarWith(t, content, entries...))
	digest := digestOf(t, r.Push(t, "x:1", image))
	for _, pause := range []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond} {
		c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
		unpacking := make(chan struct{}, 1)
		done := make(chan error, 1)
		go func() {
			_, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, func(p Progress) {
				if p.Unpacking {
					select {
					case unpacking <- struct{}{}:
					default:
					}
				}
			})
			done <- err
		}()
		<-unpacking
		time.Sleep(pause)
		for _, pid := range childrenOf(t, "images") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		err := <-done // it is asked once more by itself
		if err != nil && !strings.Contains(err.Error(), "ended") {
			t.Errorf("after %v: %v", pause, err)
		}
		if _, err := c.List(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for _, left := range c.remains(t) {
			if strings.Contains(left, "stage-") || strings.Contains(left, "new-") {
				t.Errorf("after %v: left %s", pause, left)
			}
		}
		if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
			t.Errorf("after %v: the next try: %v", pause, err)
		}
		rootfs, err := c.Mount(testContext(t), "x-0", digest, IDRange{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if files, err := os.ReadDir(rootfs); err != nil || len(files) != len(entries) {
			t.Errorf("after %v: %d files of %d, %v", pause, len(files), len(entries), err)
		}
	}
}

// TestF140_LoadArchives loads what tools write, then what they do not.
func TestF140_LoadArchives(t *testing.T) {
	needRoot(t)
	c := newClient(t, nil)
	image := imagetest.Busybox(t, runtime.GOARCH, v1.Config{Cmd: []string{"true"}})
	directory := t.TempDir()
	docker := filepath.Join(directory, "docker.tar")
	tag, err := name.NewTag("example.org/tool:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(docker, tag, image); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(directory, "oci.tar")
	writeLayout(t, oci, image)
	for _, path := range []string{docker, oci} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		images, err := c.Load(testContext(t), file, nil)
		file.Close()
		if err != nil || len(images) != 1 || !images[0].Loaded || images[0].Architecture != runtime.GOARCH {
			t.Fatalf("%s: %+v, %v", path, images, err)
		}
		// What is loaded needs no registry, whatever its name.
		if _, err := c.Ensure(testContext(t), "nowhere.invalid/x", images[0].Digest, nil); err != nil {
			t.Error(err)
		}
	}
	images, err := c.List(testContext(t))
	if err != nil || len(images) != 2 {
		t.Fatalf("%+v, %v", images, err)
	}
	resolved, err := c.Resolve(testContext(t), "localhost/tool:1")
	if err == nil {
		t.Errorf("an image of another name was found: %+v", resolved)
	}
	for name, c2 := range map[string]struct{ content, want string }{
		"nonsense":   {"nonsense", "no valid tar"},
		"compressed": {"\x1f\x8b\x08", "gunzip"},
		"no image":   {string(imagetest.TarWith(t, nil, tar.Header{Name: "x"})), "neither an OCI layout"},
	} {
		path := filepath.Join(directory, name)
		os.WriteFile(path, []byte(c2.content), 0o600)
		file, _ := os.Open(path)
		_, err := c.Load(testContext(t), file, nil)
		file.Close()
		if err == nil || !strings.Contains(err.Error(), c2.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	here, err := c.List(testContext(t))
	if err != nil || len(here) != 2 {
		t.Errorf("%+v, %v", here, err)
	}
	for _, i := range here {
		if err := c.Remove(testContext(t), i.Digest); err != nil {
			t.Error(err)
		}
	}
	if left := c.remains(t); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// writeLayout writes a tar of an OCI layout.
func writeLayout(t *testing.T, path string, image v1.Image) {
	t.Helper()
	directory := t.TempDir()
	where, err := layout.Write(directory, emptyIndex())
	if err == nil {
		err = where.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "example.org/tool:2"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := tar.NewWriter(out)
	if err := w.AddFS(os.DirFS(directory)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func emptyIndex() v1.ImageIndex { return empty.Index }

func sha(text string) Digest { return sha256.Sum256([]byte(text)) }

const module = "\x00asm\x01\x00\x00\x00"

// TestF84_Modules holds that a module has the digest that the workload names, wherever it comes from.
func TestF84_Modules(t *testing.T) {
	r := imagetest.NewRegistry(t)
	digest := sha(module)
	var served atomic.Value // string
	served.Store(module)
	r.Wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/gone.wasm" {
				http.NotFound(w, q)
				return
			}
			fmt.Fprint(w, served.Load())
		})
	})
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	address := "https://" + r.Host + "/f.wasm"
	served.Store("\x00asm something else")
	if _, err := c.Module(testContext(t), address, digest, nil); err == nil || !strings.Contains(err.Error(), "with the digest") {
		t.Errorf("another module: %v", err)
	}
	if _, err := c.Module(testContext(t), "https://"+r.Host+"/gone.wasm", digest, nil); err == nil || !strings.Contains(err.Error(), "has no") ||
		!strings.Contains(err.Error(), "check the address") {
		t.Errorf("no module: %v", err)
	}
	if _, err := c.Module(testContext(t), address, [32]byte{}, nil); err == nil || !strings.Contains(err.Error(), "set sha256") {
		t.Errorf("no digest: %v", err)
	}
	served.Store("no module")
	if _, err := c.Module(testContext(t), address, sha("no module"), nil); err == nil || !strings.Contains(err.Error(), "no WebAssembly module") {
		t.Errorf("no wasm: %v", err)
	}
	if left := c.remains(t); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	served.Store(module)
	file, err := c.Module(testContext(t), address, digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write([]byte("x")); !errors.Is(err, syscall.EBADF) && err == nil {
		t.Error("the descriptor can be written to")
	}
	before := len(r.Requests())
	if again, err := c.Module(testContext(t), address, digest, nil); err != nil || len(r.Requests()) != before {
		t.Errorf("it was fetched again: %v", err)
	} else {
		again.Close()
	}
}

func TestF84_ModulesFromFiles(t *testing.T) {
	c := newClient(t, nil)
	path := filepath.Join(t.TempDir(), "m.wasm")
	os.WriteFile(path, []byte(module), 0o600)
	if _, err := c.Module(testContext(t), "file://"+path, sha("another"), nil); err == nil || !strings.Contains(err.Error(), "it has the digest") {
		t.Errorf("%v", err)
	}
	file, err := c.Module(testContext(t), "file://"+path, sha(module), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	os.WriteFile(path, []byte("changed!"), 0o600)
	text := make([]byte, 8)
	if _, err := file.ReadAt(text, 0); err != nil || string(text) != module {
		t.Errorf("it changed with the file: %q, %v", text, err)
	}
	// Loaded by an operator: any address will do.
	os.WriteFile(path, []byte(module+"more"), 0o600)
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	loaded, err := c.Load(testContext(t), in, nil)
	if err != nil || len(loaded) != 1 || loaded[0].Digest != sha(module+"more") {
		t.Fatalf("%+v, %v", loaded, err)
	}
	if again, err := c.Module(context.Background(), "https://nowhere.invalid/x", sha(module+"more"), nil); err != nil {
		t.Error(err)
	} else {
		again.Close()
	}
	for _, bad := range []string{"file:///dev/zero", "file:///nowhere", "file://" + filepath.Dir(path)} {
		if _, err := c.Module(testContext(t), bad, sha("x"), nil); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// TestProgressIsASentence holds what colloid status shows.
func TestProgressIsASentence(t *testing.T) {
	for want, p := range map[string]Progress{
		"pulling":                    {},
		"pulling 34 %, layer 2 of 5": {Bytes: 34, Total: 100, Layer: 2, Layers: 5},
		"unpacking layer 1 of 3":     {Layer: 1, Layers: 3, Unpacking: true, Bytes: 7},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
