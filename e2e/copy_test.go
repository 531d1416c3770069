package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/e2e/cluster"
)

// Files go in and out; paths and links lead nowhere else.
func TestF137_CopyStaysInTheInstance(t *testing.T) {
	line := operatorKey(t, "anna")
	f := startWith(t, cluster.Options{Cells: 2, PolicyLines: "exec spread.hel*\n" + line})
	f.run(f.Cells[0], 0, "apply", "-f", f.config(1, ""))
	f.answers(f.Cells[0], 1)
	_, others := f.holders()
	from, directory := others[0], t.TempDir()
	source := filepath.Join(directory, "source")
	os.MkdirAll(filepath.Join(source, "sub"), 0o755)
	data := make([]byte, 3<<20)
	rand.Read(data)
	os.WriteFile(filepath.Join(source, "sub", "data"), data, 0o640)
	f.run(from, 0, "cp", source, "hello/0:copy")
	f.run(from, 0, "exec", "hello/0", "--", "sh", "-c", "ln -s /etc/passwd copy/link; ln -s / copy/root; mkfifo copy/pipe")
	f.run(from, 0, "cp", "hello/0:copy", filepath.Join(directory, "back"))
	if got, err := os.ReadFile(filepath.Join(directory, "back", "sub", "data")); err != nil || !bytes.Equal(got, data) {
		t.Fatal(len(got), err)
	}
	for _, name := range []string{"link", "root", "pipe"} {
		if _, err := os.Lstat(filepath.Join(directory, "back", name)); err == nil {
			t.Error(name, "came out")
		}
	}
	f.fails(from, 1, "path", "cp", "hello/0:/etc/passwd", directory)
	f.fails(from, 1, "leads out", "cp", "hello/0:../state", directory)
	f.fails(from, 1, "escapes", "cp", "hello/0:copy/root/etc/hostname", directory)
	f.fails(from, 1, "leads out", "cp", source, "hello/0:copy/root/tmp/x")
	f.fails(from, 1, "no such file", "cp", "hello/0:absent", directory)
	f.fails(from, 2, "no such file", "cp", filepath.Join(directory, "absent"), "hello/0:x")
	f.fails(from, 2, "one of both", "cp", "a", "b")
	f.fails(from, 1, "hello/0: ", "cp", source, "hello/0:absent/below")
	f.fails(from, 1, "absent/ is no directory", "cp", filepath.Join(source, "sub", "data"), "hello/0:absent/")
	f.fails(from, 2, "no such directory", "cp", "hello/0:copy/sub/data", filepath.Join(directory, "absent")+"/")
	f.interruptedCopies(from, directory)
}

// interruptedCopies says control-C to copies of something large, in and out: they end soon and say so, what was there
// before stays, and nothing half is left on either side.
func (f *fixture) interruptedCopies(from *cluster.Cell, directory string) {
	f.t.Helper()
	large := filepath.Join(directory, "large")
	sum := randomFile(f.t, large, 96<<20)
	inside := func(script string) string { return f.run(from, 0, "exec", "hello/0", "--", "sh", "-c", script) }
	inside("echo before > large; mkdir -p below")
	into := f.background(from, "cp", large, "hello/0:large")
	f.wait("something to arrive", func(context.Context) error {
		if inside("find . -name '.colloid-cp-*' -size +64k") == "" {
			return errors.New("not yet")
		}
		return nil
	})
	into.Process.Signal(os.Interrupt)
	f.ends(into, 130, "hello/0: interrupted")
	f.wait("nothing half to be left", func(context.Context) error {
		if out := inside("find . -name '.colloid-cp-*'; cat large"); out != "before\n" {
			return fmt.Errorf("left: %q", out)
		}
		return nil
	})
	f.run(from, 0, "cp", large, "hello/0:large")
	if out := inside("sha256sum large"); !strings.HasPrefix(out, sum) {
		f.t.Fatalf("%s arrived, %s was sent", out, sum)
	}
	back := filepath.Join(directory, "there")
	os.Mkdir(back, 0o755)
	out := f.background(from, "cp", "hello/0:large", back)
	f.wait("something to come back", func(context.Context) error {
		if list, _ := os.ReadDir(back); len(list) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	out.Process.Signal(os.Interrupt)
	f.ends(out, 130, "hello/0: interrupted")
	if list, err := os.ReadDir(back); len(list) != 0 || err != nil {
		f.t.Errorf("left: %v %v", list, err)
	}
}
