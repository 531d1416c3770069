package runnerd_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/operator"
	"colloid.net/ipc/packet"
	"colloid.net/runnerd/image/imagetest"
	"colloid.net/runnerd/runnerdtest"
)

// operatorHost is a host with a registry that its policy lists and a socket for operators.
type operatorHost struct {
	*host
	registry *imagetest.Registry
	socket   string
}

func newOperatorHost(t *testing.T, more string) *operatorHost {
	h := &operatorHost{host: newHost(t), registry: imagetest.NewRegistry(t)}
	h.images = []string{runnerdtest.Static(t)} // a test binary with cgo cannot give up rights in all its threads
	certificates := filepath.Join(filepath.Dir(h.policy), "ca.pem")
	if err := os.WriteFile(certificates, h.registry.CA, 0o644); err != nil {
		t.Fatal(err)
	}
	h.writePolicy(fmt.Sprintf("registry %s { private; ca %s }\n", h.registry.Host, certificates) +
		strings.ReplaceAll(more, "HOST", h.registry.Host))
	h.socket = filepath.Join(filepath.Dir(h.policy), operator.SocketName)
	if err := h.open().ServeOperators(h.socket); err != nil {
		t.Fatal(err)
	}
	return h
}

// do gives the replies of one request.
func (h *operatorHost) do(operation, reference string, file *os.File) (replies []operator.Reply, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = operator.Do(ctx, h.socket, operator.Request{Operation: operation, Reference: reference}, file,
		func(r operator.Reply) { replies = append(replies, r) })
	return replies, err
}

func (h *operatorHost) refused(operation, reference, want string) {
	h.t.Helper()
	if _, err := h.do(operation, reference, nil); err == nil || !strings.Contains(err.Error(), want) {
		h.t.Errorf("%s %s: %v, want %q", operation, reference, err, want)
	}
}

// images keeps those of the replies.
func images(replies []operator.Reply) (list []*operator.Image) {
	for _, r := range replies {
		if r.Image != nil {
			list = append(list, r.Image)
		}
	}
	return list
}

func oneFile(t *testing.T, content string) v1.Image {
	return imagetest.Image(t, runtime.GOARCH, v1.Config{}, imagetest.TarWith(t, map[string]string{"f": content}, tar.Header{Name: "f"}))
}

// TestF84_OperatorsResolveAndPull goes through the socket as the command line does.
func TestF84_OperatorsResolveAndPull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: images are unpacked")
	}
	h := newOperatorHost(t, "image_deny HOST/denied*\n")
	digest := h.registry.Push(t, "team/web:1", oneFile(t, "first"))
	reference := h.registry.Host + "/team/web:1"
	replies, err := h.do(operator.OperationResolve, reference, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := replies[0].Resolved
	if r.Digest != digest.String() || r.Reference != reference || r.Architectures[0] != runtime.GOARCH {
		t.Errorf("%+v", r)
	}
	h.refused(operator.OperationResolve, h.registry.Host+"/denied:1", "the host's policy denies image")
	h.refused(operator.OperationPull, h.registry.Host+"/denied:1", "the host's policy denies image")
	h.refused(operator.OperationPull, h.registry.Host+"/nothing:1", "has no")
	h.refused(operator.OperationPull, "UPPER CASE", "no reference")
	h.refused(operator.OperationRemove, reference, "there is no image")
	h.refused("dance", "", `operation "dance" is unknown`)
	for _, name := range []string{reference, h.registry.Host + "/team/web@" + digest.String()} {
		replies, err := h.do(operator.OperationPull, name, nil)
		if err != nil || len(images(replies)) != 1 || images(replies)[0].Digest != digest.String() {
			t.Fatalf("%s: %+v, %v", name, replies, err)
		}
	}
	replies, err = h.do(operator.OperationList, "", nil)
	if err != nil || len(images(replies)) != 1 || images(replies)[0].References[0] != reference {
		t.Fatalf("%+v, %v", replies, err)
	}
	if _, err := h.do(operator.OperationRemove, digest.Hex[:12], nil); err != nil {
		t.Error(err)
	}
	h.loadArchive(t)
	audit, err := os.ReadFile(filepath.Join(h.directory, "audit.log"))
	if err != nil || !strings.Contains(string(audit), fmt.Sprintf(`image pull "%s": done`, reference)) ||
		!strings.Contains(string(audit), "uid=0") {
		t.Errorf("audit log: %s, %v", audit, err)
	}
}

// loadArchive loads an image by descriptor, finds it by name, and prunes it.
func (h *operatorHost) loadArchive(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "docker.tar")
	tag, err := name.NewTag("localhost/tool:1")
	if err == nil {
		err = tarball.WriteToFile(path, tag, oneFile(t, "loaded"))
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	replies, err := h.do(operator.OperationLoad, "", file)
	if err != nil || len(images(replies)) != 1 {
		t.Fatalf("%+v, %v", replies, err)
	}
	loaded := images(replies)[0]
	if replies, err = h.do(operator.OperationResolve, "localhost/tool:1", nil); err != nil {
		t.Fatal(err)
	}
	if r := replies[0].Resolved; r.Digest != loaded.Digest || !r.Loaded {
		t.Errorf("%+v, loaded %+v", r, loaded)
	}
	h.refused(operator.OperationLoad, "", "carries no file")
	// One with a damaged record is in no list, and can be removed as the error about it says.
	record := filepath.Join(h.directory, "images", "images", strings.TrimPrefix(loaded.Digest, "sha256:"))
	whole, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(record, []byte("{"), 0o600)
	if replies, err = h.do(operator.OperationList, "", nil); err != nil || len(images(replies)) != 0 {
		t.Errorf("%+v, %v", replies, err)
	}
	if _, err := h.do(operator.OperationRemove, loaded.Digest, nil); err != nil {
		t.Error(err)
	}
	h.refused(operator.OperationRemove, loaded.Digest, "there is no image")
	os.WriteFile(record, whole, 0o600)
	if replies, err = h.do(operator.OperationPrune, "", nil); err != nil || len(images(replies)) != 1 {
		t.Errorf("%+v, %v", replies, err)
	}
}

// TestF140_AnImageHasSeveralNames loads an image under several names, from one file and from two: each is found, goes
// alone, and the image goes with the last. A name that is loaded again is another image's.
func TestF140_AnImageHasSeveralNames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: images are unpacked")
	}
	h := newOperatorHost(t, "")
	load := func(want int, all map[string]v1.Image) []*operator.Image {
		t.Helper()
		replies, err := h.do(operator.OperationLoad, "", h.archive(t, all))
		if err != nil || len(images(replies)) != want {
			t.Fatalf("%+v, %v", replies, err)
		}
		return images(replies)
	}
	names := func() string {
		t.Helper()
		replies, err := h.do(operator.OperationList, "", nil)
		var list []string
		for _, i := range images(replies) {
			slices.Sort(i.References)
			list = append(list, strings.Join(i.References, "+"))
		}
		if err != nil {
			t.Error(err)
		}
		return strings.Join(list, " ")
	}
	resolve := func(name string) string {
		t.Helper()
		replies, err := h.do(operator.OperationResolve, name, nil)
		if err != nil {
			t.Fatal(err)
		}
		return replies[0].Resolved.Digest
	}
	first, second := oneFile(t, "first"), oneFile(t, "second")
	loaded := load(1, map[string]v1.Image{"localhost/app:3": first, "localhost/app:4": first})
	if resolve("localhost/app:4") != loaded[0].Digest || resolve("localhost/app:3") != loaded[0].Digest {
		t.Error("the names are of several images")
	}
	more := load(1, map[string]v1.Image{"localhost/app:5": first})
	if more[0].Digest != loaded[0].Digest || strings.Join(more[0].References, "+") != "localhost/app:5" {
		t.Errorf("%+v", more[0])
	}
	if got := names(); got != "localhost/app:3+localhost/app:4+localhost/app:5" {
		t.Errorf("there are %s", got)
	}
	if _, err := h.do(operator.OperationRemove, "localhost/app:4", nil); err != nil {
		t.Fatal(err)
	}
	h.refused(operator.OperationResolve, "localhost/app:4", "no image localhost/app:4 was loaded here")
	other := load(1, map[string]v1.Image{"localhost/app:3": second})
	if resolve("localhost/app:3") != other[0].Digest || resolve("localhost/app:5") != loaded[0].Digest {
		t.Error("the name that was loaded again is not of the new image")
	}
	if got := names(); got != "localhost/app:3 localhost/app:5" {
		t.Errorf("there are %s", got)
	}
	for _, name := range []string{"localhost/app:5", "localhost/app:3"} {
		if _, err := h.do(operator.OperationRemove, name, nil); err != nil {
			t.Error(err)
		}
	}
	if got := names(); got != "" {
		t.Errorf("there are still %s", got)
	}
	_, err := h.do(operator.OperationRemove, "", nil)
	var refused *operator.RefusedError
	if !errors.As(err, &refused) || !refused.Usage {
		t.Errorf("nothing to remove: %v", err)
	}
	// One of several that is wrong keeps all of them out.
	foreign := imagetest.Image(t, "s390x", v1.Config{}, imagetest.TarWith(t, nil, tar.Header{Typeflag: tar.TypeDir, Name: "x/"}))
	_, err = h.do(operator.OperationLoad, "", h.archive(t, map[string]v1.Image{"localhost/a:1": first, "localhost/b:1": foreign}))
	if err == nil || !strings.Contains(err.Error(), "of 2, localhost/b:1: ") || !strings.Contains(err.Error(), "nothing was loaded") {
		t.Errorf("%v", err)
	}
	if got := names(); got != "" {
		t.Errorf("of a file that was refused there are %s", got)
	}
	if layers, err := os.ReadDir(filepath.Join(h.directory, "images", "layers")); len(layers) > 0 {
		t.Errorf("layers are left: %v, %v", layers, err)
	}
}

// archive is an open docker archive with these images by name.
func (h *operatorHost) archive(t *testing.T, all map[string]v1.Image) *os.File {
	t.Helper()
	tagged := map[name.Tag]v1.Image{}
	for text, i := range all {
		tag, err := name.NewTag(text)
		if err != nil {
			t.Fatal(err)
		}
		tagged[tag] = i
	}
	path := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.MultiWriteToFile(path, tagged); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// TestD2_WithoutContainersNoImages holds that a host that runs no containers gets no images, and answers what a tag means.
func TestD2_WithoutContainersNoImages(t *testing.T) {
	h := newOperatorHost(t, "containers none\n")
	digest := h.registry.Push(t, "team/web:1", oneFile(t, "first"))
	reference := h.registry.Host + "/team/web:1"
	h.refused(operator.OperationPull, reference, "containers none")
	h.refused(operator.OperationPull, h.registry.Host+"/team/web@"+digest.String(), "containers none")
	_, err := h.do(operator.OperationLoad, "", h.archive(t, map[string]v1.Image{"localhost/x:1": oneFile(t, "x")}))
	if err == nil || !strings.Contains(err.Error(), "containers none") {
		t.Errorf("load: %v", err)
	}
	if replies, err := h.do(operator.OperationResolve, reference, nil); err != nil || replies[0].Resolved.Digest != digest.String() {
		t.Errorf("%+v, %v", replies, err)
	}
}

// TestF84_ModulesAreListedAndRemoved holds that a module is seen, and goes, as an image does, with or without root.
func TestF84_ModulesAreListedAndRemoved(t *testing.T) {
	h := newOperatorHost(t, "")
	load := func(content string) *operator.Image {
		t.Helper()
		path := filepath.Join(t.TempDir(), "f.wasm")
		if err := os.WriteFile(path, []byte("\x00asm"+content), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		replies, err := h.do(operator.OperationLoad, "", file)
		if err != nil || len(images(replies)) != 1 {
			t.Fatalf("%+v, %v", replies, err)
		}
		return images(replies)[0]
	}
	first, second := load("one"), load("second")
	replies, err := h.do(operator.OperationList, "", nil)
	if list := images(replies); err != nil || len(list) != 2 || list[0].Architecture != "wasm" || list[0].Size+list[1].Size != 7+10 {
		t.Fatalf("%+v, %v", replies, err)
	}
	if _, err := h.do(operator.OperationRemove, strings.TrimPrefix(first.Digest, "sha256:")[:8], nil); err != nil {
		t.Error(err)
	}
	replies, err = h.do(operator.OperationPrune, "", nil)
	if list := images(replies); err != nil || len(list) != 1 || list[0].Digest != second.Digest {
		t.Errorf("prune removed %+v, %v", replies, err)
	}
	if replies, err = h.do(operator.OperationList, "", nil); err != nil || len(images(replies)) != 0 {
		t.Errorf("left %+v, %v", replies, err)
	}
}

// TestF135_StrangersAreNotServed connects as nobody, with the socket open to all, and as a server that is
// neither root nor the caller.
func TestF135_StrangersAreNotServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes somebody else")
	}
	h := newOperatorHost(t, "")
	if info, err := os.Stat(h.socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	os.Chmod(h.socket, 0o666)
	for directory := filepath.Dir(h.socket); directory != "/tmp" && directory != "/"; directory = filepath.Dir(directory) {
		os.Chmod(directory, 0o755)
	}
	err := asNobody(func() error {
		conn, err := packet.Dial(h.socket)
		if err != nil {
			return err
		}
		defer conn.Close()
		// Refused before it is read, so writing may fail.
		_ = conn.Send(operator.Request{Version: operator.Version, Operation: operator.OperationList}, nil)
		var reply operator.Reply
		if _, err := conn.Receive(&reply); err != nil {
			return err
		}
		if !strings.Contains(reply.Error, "permission denied") {
			t.Errorf("a stranger hears %+v", reply)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	fake := filepath.Join(filepath.Dir(h.socket), "fake.sock")
	os.Chmod(filepath.Dir(fake), 0o777)
	var listener net.Listener
	if err := asNobody(func() (err error) { listener, err = net.Listen("unixpacket", fake); return err }); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = operator.Do(context.Background(), fake, operator.Request{Operation: operator.OperationList}, nil, func(operator.Reply) {})
	if err == nil || !strings.Contains(err.Error(), "served by user 65534") {
		t.Errorf("somebody else's socket: %v", err)
	}
}

// asNobody runs a function on a thread that has become another user, and spends the thread.
func asNobody(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			result <- errno
			return
		}
		result <- f()
	}()
	return <-result
}
