package cli

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/operator"
	"colloid.net/ipc/packet"
)

// fakeRunnerd answers operators on a real socket. What a tag means can be changed between two commands.
type fakeRunnerd struct {
	t             *testing.T
	mutex         sync.Mutex
	generation    string   // part of what digests depend on
	architectures []string // that every image exists for
	refuse        string   // error of every answer, "" = none
	usage         bool     // what refuse is
	some          bool     // refuse comes behind an image
	references    []string // of all images, nil = what was asked for
	loaded        string   // content of the last file
	requests      []string
}

func newFakeRunnerd(t *testing.T, directory string) *fakeRunnerd {
	t.Helper()
	d := &fakeRunnerd{t: t, architectures: []string{"amd64", "arm64"}}
	listener, err := net.Listen("unixpacket", filepath.Join(directory, operator.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			go d.serve(socket)
		}
	}()
	return d
}

// locked looks at its fields, or changes them, while it answers nobody.
func (d *fakeRunnerd) locked(f func()) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	f()
}

// asked is how many requests have come.
func (d *fakeRunnerd) asked() (count int) {
	d.locked(func() { count = len(d.requests) })
	return count
}

func (d *fakeRunnerd) digest(reference string) [32]byte {
	return sha256.Sum256([]byte(d.generation + reference))
}

func (d *fakeRunnerd) serve(socket net.Conn) {
	conn, err := packet.Over(socket)
	if err != nil {
		return
	}
	defer conn.Close()
	var q operator.Request
	file, err := conn.Receive(&q)
	if err != nil {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.requests = append(d.requests, q.Operation+" "+q.Reference)
	send := func(r operator.Reply) { _ = conn.Send(r, nil) }
	refused := operator.Reply{Error: d.refuse, Usage: d.usage}
	if d.refuse != "" && !d.some {
		send(refused)
		return
	}
	image := operator.Image{Digest: fmt.Sprintf("sha256:%x", d.digest(q.Reference)), References: []string{q.Reference},
		Size: 3 << 20, Created: time.Unix(1700000000, 0).UTC(), Architecture: "amd64"}
	switch q.Operation {
	case operator.OperationResolve:
		send(operator.Reply{Resolved: &operator.Resolved{Reference: q.Reference, Digest: image.Digest,
			Architectures: d.architectures}})
	case operator.OperationLoad:
		text, _ := io.ReadAll(file)
		file.Close()
		d.loaded = string(text)
		image.References = d.references
		send(operator.Reply{Image: &image})
	case operator.OperationPull, operator.OperationList, operator.OperationPrune:
		send(operator.Reply{Progress: &operator.Progress{Text: "pulling 34 %, layer 2 of 5\x1b[2J"}})
		if q.Reference == "" {
			image.References = []string{"example.org/web:1"}
		}
		if d.references != nil {
			image.References = d.references
		}
		send(operator.Reply{Image: &image})
	}
	if d.refuse != "" {
		send(refused)
		return
	}
	send(operator.Reply{Done: true})
}

// TestF84_ImagesAreShownWithAllTheirNames holds it for what is printed, and that errors name the file and say
// with their status whether another try can help.
func TestF84_ImagesAreShownWithAllTheirNames(t *testing.T) {
	d := newFake(t)
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.runnerd.locked(func() { d.runnerd.references = []string{"localhost/app:4", "localhost/app:3"} })
	digest := fmt.Sprintf("sha256:%x", d.runnerd.digest(""))
	loaded := "localhost/app:4@" + digest + "\nlocalhost/app:3@" + digest + "\n"
	d.run("", "image", "load", file).expect(t, ExitOK, loaded)
	if r := d.run("", "image", "ls"); strings.Index(r.output, "localhost/app:3 ") > strings.Index(r.output, "localhost/app:4 ") ||
		!strings.Contains(r.output, "localhost/app:3 ") {
		t.Errorf("%s", r.output)
	}
	if r := d.run("", "image", "prune"); !strings.Contains(r.output, "removed localhost/app:4, localhost/app:3 (") {
		t.Errorf("%s", r.output)
	}
	d.runnerd.locked(func() { d.runnerd.refuse, d.runnerd.some = "image 2 of 2: no space", true })
	r := d.run("", "image", "load", file)
	r.expectError(t, ExitError, "colloid: "+file+": image 2 of 2: no space")
	if r.output != loaded {
		t.Errorf("of those that are there it says: %s", r.output)
	}
	d.runnerd.locked(func() { d.runnerd.refuse, d.runnerd.some, d.runnerd.usage = "it is no reference", false, true })
	d.run("", "image", "pull", "UPPER").expectError(t, ExitUsage, "no reference")
	d.run("", "image", "rm", "").expectError(t, ExitUsage, "argument 1 is empty")
	d.run(web2, "apply", "-f", "-").expectError(t, ExitUsage, "no reference", "nothing was written")
}

// TestF84_ApplyPinsATag holds that a tag is resolved once, at apply, and that a tag that moved is an update.
func TestF84_ApplyPinsATag(t *testing.T) {
	d := newFake(t)
	r := d.run(web2, "apply", "-f", "-")
	r.expect(t, ExitOK, "spread.web created\n")
	digest := d.runnerd.digest("example.org/web:1")
	r.expectError(t, ExitOK, fmt.Sprintf("spread.web: example.org/web:1 is sha256:%x", digest))
	if held := d.held("spread.web"); held.ImageDigest != digest || held.Architecture != "" {
		t.Errorf("stored %x, arch %q", held.ImageDigest, held.Architecture)
	}
	d.run(web2, "apply", "-f", "-").expect(t, ExitOK, "spread.web unchanged\n")
	d.runnerd.locked(func() { d.runnerd.generation = "later" })
	d.run(web2, "apply", "-f", "-").expect(t, ExitOK, "spread.web updated\n")
	if held := d.held("spread.web"); held.ImageDigest != d.runnerd.digest("example.org/web:1") {
		t.Error("the tag moved and the digest did not")
	}
	before := d.runnerd.asked()
	pinned := fmt.Sprintf("spread web {\n image example.org/web:1@sha256:%x\n replicas 2\n}\n", digest)
	d.run(pinned, "apply", "-f", "-").expect(t, ExitOK, "spread.web updated\n")
	if d.runnerd.asked() != before {
		t.Error("an image with a digest was resolved")
	}
}

func TestF84_ATagThatCannotBeResolvedWritesNothing(t *testing.T) {
	d := newFake(t)
	d.runnerd.locked(func() { d.runnerd.refuse = "example.org cannot be reached: no route" })
	r := d.run(web2+api1, "apply", "-f", "-")
	r.expectError(t, ExitError, "spread.web", "spread.api", "no route", "image example.org/web:1@sha256:...", "nothing was written")
	if len(d.keys) != 0 || d.writes != 0 {
		t.Error("something was written")
	}
	if err := os.Remove(filepath.Join(filepath.Dir(d.path), operator.SocketName)); err != nil {
		t.Fatal(err)
	}
	d.run(web2, "apply", "-f", "-").expectError(t, ExitError, "no runnerd runs here", "@sha256:")
}

// TestF77_ApplyRecordsTheOnlyArchitecture holds that an image for one architecture goes to cells of that.
func TestF77_ApplyRecordsTheOnlyArchitecture(t *testing.T) {
	d := newFake(t)
	d.runnerd.locked(func() { d.runnerd.architectures = []string{"arm64", "s390x"} })
	d.run(web2, "apply", "-f", "-").expectError(t, ExitOK, "for arm64 only")
	if held := d.held("spread.web"); held.Architecture != "arm64" {
		t.Errorf("arch %q", held.Architecture)
	}
	d.run("spread web {\n image a.org/b\n arch amd64\n}\n", "apply", "-f", "-").
		expectError(t, ExitError, `exists for ["arm64" "s390x"]`, "arch amd64")
	d.runnerd.locked(func() { d.runnerd.architectures = []string{"riscv64"} })
	d.run(web2, "apply", "-f", "-").expectError(t, ExitError, "riscv64", "amd64 or arm64")
}

func TestImageCommands(t *testing.T) {
	d := newFake(t)
	d.run("", "image", "pull", "example.org/web:1").expect(t, ExitOK,
		fmt.Sprintf("example.org/web:1@sha256:%x\n", d.runnerd.digest("example.org/web:1")))
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, []byte("an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := d.run("", "image", "load", file)
	loaded := ""
	d.runnerd.locked(func() { loaded = d.runnerd.loaded })
	if r.exit != ExitOK || loaded != "an archive" || !strings.HasPrefix(r.output, "(no name)@sha256:") {
		t.Errorf("%+v, runnerd read %q", r, loaded)
	}
	r = d.run("", "image", "ls")
	if r.exit != ExitOK || !strings.Contains(r.output, "IMAGE") || !strings.Contains(r.output, "2023-11-14") {
		t.Errorf("%+v", r)
	}
	if r = d.run("", "image", "ls", "-o", "json"); !strings.Contains(r.output, `"digest": "sha256:`) {
		t.Errorf("%+v", r)
	}
	d.run("", "image", "rm", "example.org/web:1").expect(t, ExitOK, "")
	if r = d.run("", "image", "prune"); !strings.Contains(r.output, "removed example.org/web:1") {
		t.Errorf("%+v", r)
	}
	d.run("", "image", "load", filepath.Dir(file)).expectError(t, ExitUsage, "no regular file")
	d.runnerd.locked(func() { d.runnerd.refuse = "bad\x1b[2J" })
	r = d.run("", "image", "pull", "x")
	r.expectError(t, ExitError, "bad?[2J")
}
