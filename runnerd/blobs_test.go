package runnerd_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
)

// A pull asks for every blob with meshd first. What was pulled is given to other cells as files that can only be read,
// as long as the policy shares it; each decision is written down (F76).
func TestF76_RunnerdAsksAndGivesBlobs(t *testing.T) {
	c := newContainers(t, "allow_unlimited")
	client := c.connect()
	spec := c.spec(v1.Config{Cmd: []string{"sleep", "1000"}})
	id := client.Start("spread.web", 0, spec)
	client.Await(id, ready)
	var asked []*message.Wanted
	client.Until("nothing", func() bool { asked = client.Wanted; return true })
	if len(asked) != 1 || !bytes.Equal(asked[0].Image, spec.ImageDigest[:]) ||
		!bytes.Equal(asked[0].Digest, spec.ImageDigest[:]) || asked[0].Offset != 0 {
		t.Errorf("asked for %v, want the manifest once: there is no other cell", asked)
	}

	blob := func(digest []byte, offset uint64) ([]byte, error) {
		file, err := client.Attach(runnerd.InstanceID{}, &message.Attach{What: &message.Attach_Blob{
			Blob: &message.Blob{Digest: digest, Offset: offset},
		}})
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
			t.Errorf("the file has flags %#x, %v", flags, err)
		}
		return io.ReadAll(file)
	}
	text, err := blob(spec.ImageDigest[:], 0)
	if err != nil || sha256.Sum256(text) != spec.ImageDigest {
		t.Fatalf("%q, %v", text, err)
	}
	if rest, err := blob(spec.ImageDigest[:], 10); err != nil || !bytes.Equal(rest, text[10:]) {
		t.Errorf("%q, %v", rest, err)
	}
	for name, attempt := range map[string]func() ([]byte, error){
		"another digest": func() ([]byte, error) { return blob(make([]byte, 32), 0) },
		"behind the end": func() ([]byte, error) { return blob(spec.ImageDigest[:], 1<<40) },
		"not shared any more": func() ([]byte, error) {
			c.replacePolicy(strings.Join([]string{"registry " + c.registry.Host + " { http; private }", "pod_network none",
				"allow_unlimited", "share_images none", ""}, "\n"))
			client.Send(&message.Command{Body: &message.Command_List{List: &message.List{}}}) // it is read again
			return blob(spec.ImageDigest[:], 0)
		},
	} {
		if _, err := attempt(); err == nil || !strings.Contains(err.Error(), "does not share it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err = os.ReadFile(filepath.Join(c.directory, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	audit := string(text)
	for _, want := range []string{"give blob sha256:", "allowed: another cell pulls it", "denied: this cell does not have it"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit log does not say %q", want)
		}
	}
	if _, err := client.Attach(runnerd.InstanceID{}, &message.Attach{What: &message.Attach_BlobSink{
		BlobSink: &message.BlobSink{Wanted: 77, Cell: 5},
	}}); err == nil || !strings.Contains(err.Error(), "nobody waits") {
		t.Errorf("a sink that nobody asked for: %v", err)
	}
	client.Send(&message.Command{Body: &message.Command_NoBlob{NoBlob: &message.NoBlob{Wanted: 77}}}) // ignored
	client.Stop(id, 0)
	client.AwaitGone(id)
}
