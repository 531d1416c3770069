package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
	"colloid.net/runnerd/image/imagetest"
)

// oddImage is an image as somebody may have built it, with what must become of it: words of a reason, or none if it
// has to run.
type oddImage struct {
	name   string
	config v1.Config
	words  []string
	lines  string // more of the workload
}

func oddImages() []oddImage {
	sleep := []string{"sleep", "1000"}
	var many []string
	for n := range 1000 {
		many = append(many, fmt.Sprintf("VARIABLE_%d=%s", n, strings.Repeat("x", 20)))
	}
	return []oddImage{
		{"empty", v1.Config{}, []string{"names no program"}, ""},
		{"relative", v1.Config{Entrypoint: []string{"./bin/sleep", "1000"}}, nil, ""},
		{"elsewhere", v1.Config{Entrypoint: []string{"./sleep", "1000"}, WorkingDir: "/bin"}, nil, ""},
		{"missing", v1.Config{Cmd: []string{"/no/such/program"}}, []string{"/no/such/program"}, ""},
		{"directory", v1.Config{Cmd: []string{"/etc"}}, []string{"/etc"}, ""},
		{"text", v1.Config{Cmd: []string{"/etc/passwd"}}, []string{"/etc/passwd"}, ""},
		{"stranger", v1.Config{Cmd: sleep, User: "nobody-knows"}, []string{"nobody-knows"}, ""},
		{"numbers", v1.Config{Cmd: sleep, User: "4711:4712"}, nil, ""},
		{"greatest", v1.Config{Cmd: sleep, User: "4000000000"}, []string{"4000000000"}, ""},
		{"named", v1.Config{Cmd: sleep, User: "app", WorkingDir: "/not/there/yet"}, nil, ""},
		{"variables", v1.Config{Cmd: sleep, Env: append(many, "NO_EQUALS", "=nothing", "A=1", "A=2", "Ünïcode=é€𝄞")}, nil, ""},
		{"unicode", v1.Config{Cmd: []string{"sh", "-c", "test \"$1\" = 'é€𝄞' && exec sleep 1000", "-", "é€𝄞"}}, nil, ""},
		{"signal", v1.Config{Cmd: sleep, StopSignal: "SIGNONSENSE"}, nil, ""},
		{"ports", v1.Config{Cmd: sleep, ExposedPorts: map[string]struct{}{"80": {}, "99999/tcp": {}, "x/y/z": {}}}, nil, ""},
		{"volumes", v1.Config{Cmd: sleep, Volumes: map[string]struct{}{"/data": {}, "../..": {}}}, nil, ""},
		{"overridden", v1.Config{Entrypoint: []string{"/no/such/program"}}, nil, "command sleep 1000"},
		{"read-only", v1.Config{Cmd: []string{"sh", "-c", "! touch /file && exec sleep 1000"}}, nil, "read_only true"},
	}
}

// Images as strange as they come run, or say in a sentence why not; none harms another (F140, F147). All of them
// have one layer, which three cells pull for all of them at once.
func TestF147_OddImages(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	var text strings.Builder
	odd := oddImages()
	for _, o := range odd {
		c.registry.Push(t, o.name+":1", imagetest.Busybox(t, runtime.GOARCH, o.config))
		fmt.Fprintf(&text, "spread %s {\n\timage %s\n\t%s\n}\n", o.name, c.in(o.name+":1"), o.lines)
	}
	// The same image twice, as two workloads.
	fmt.Fprintf(&text, "spread twin {\n\timage %s\n\treplicas 3\n}\n", c.in("numbers:1"))
	odd = append(odd, oddImage{name: "twin"})
	c.run(c.Cells[0], 0, "apply", "-f", c.file(text.String()))
	for _, o := range odd {
		c.waitLong("what becomes of "+o.name, func(ctx context.Context) error { return c.became(ctx, o) })
	}
	for _, o := range odd {
		if len(o.words) > 0 { // it is being started again and again, and says why whenever it has failed again
			c.waitLong("what becomes of "+o.name+" later", func(ctx context.Context) error { return c.became(ctx, o) })
		} else if err := c.became(t.Context(), o); err != nil {
			t.Errorf("later: %v", err)
		}
	}
	t.Log(c.run(c.Cells[1], 0, "status"))
}

func (c *containers) became(ctx context.Context, o oddImage) error {
	status, err := c.Cells[1].Status(ctx)
	if err != nil {
		return err
	}
	w, err := workloadOf(status, "spread."+o.name)
	if err != nil {
		return err
	}
	if len(o.words) == 0 {
		if w.State != "ok" {
			return fmt.Errorf("%s is %s: %s; %+v", o.name, w.State, w.Reason, w.Instances)
		}
		return nil
	}
	text := w.Reason
	if explained, err := c.Cells[1].Command(ctx, "explain", o.name); err == nil {
		text += explained
	}
	for _, word := range o.words {
		if w.State == "ok" || !strings.Contains(text, word) {
			return fmt.Errorf("%s is %s, and the reason does not say %q:\n%s", o.name, w.State, word, text)
		}
	}
	return nil
}

// A host without room for an image says so, keeps nothing of it, and the copies run elsewhere; what runs there
// already stays (F76).
func TestF76_FullDiskIsAReason(t *testing.T) {
	t.Parallel()
	var small string
	c := startContainersOn(t, nil, func(cl *cluster.Cluster) error {
		small = filepath.Join(cl.Directory, "cell-1", "runnerd")
		if err := os.MkdirAll(small, 0o711); err != nil {
			return err
		}
		return unix.Mount("colloid-e2e", small, "tmpfs", unix.MS_NODEV, "size=24m,mode=0711")
	})
	c.push("web:1", "one", nil)
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 3))
	before := pids(c.serve(3, "one"))
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 32<<20)
	_, _ = random.Read(noise)
	c.registry.Push(t, "large:1", imagetest.Busybox(t, runtime.GOARCH, v1.Config{Cmd: []string{"sleep", "1000"}},
		imagetest.File{Name: "noise", Content: string(noise)}))
	c.run(c.Cells[1], 0, "apply", "-f", c.file(fmt.Sprintf("spread large {\n\timage %s\n\treplicas 3\n}\n", c.in("large:1"))))
	for _, cell := range c.Cells {
		c.waitLong("the reason on "+cell.Name, func(ctx context.Context) error {
			status, err := cell.Status(ctx)
			if err != nil {
				return err
			}
			w, err := workloadOf(status, "spread.large")
			if err != nil {
				return err
			}
			text := w.Reason
			if explained, err := cell.Command(ctx, "explain", "large"); err == nil {
				text += explained
			}
			if w.Ready != 2 || !strings.Contains(text, "disk") {
				return fmt.Errorf("%d ready: %s", w.Ready, text)
			}
			return nil
		})
	}
	t.Log(c.run(c.Cells[0], 0, "status"))
	// What was interrupted leaves its documents for a day; the layer was not begun.
	blobs, err := filepath.Glob(filepath.Join(small, "images", "blobs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range blobs {
		if info, err := os.Stat(path); err == nil && info.Size() > 1<<16 {
			t.Errorf("%s of %d bytes is left", path, info.Size())
		}
	}
	same(t, "copies beside it", before, pids(c.serve(3, "one")))
	c.startsOnAFullDisk(small)
}

// startsOnAFullDisk kills a copy on a host whose disk has less left than images leave to others: it starts again.
func (c *containers) startsOnAFullDisk(directory string) {
	c.t.Helper()
	c.run(c.Cells[1], 0, "delete", "large")
	var stat unix.Statfs_t
	if err := unix.Statfs(directory, &stat); err != nil {
		c.t.Fatal(err)
	}
	filler := filepath.Join(directory, "filler")
	if err := os.WriteFile(filler, make([]byte, int64(stat.Bfree)*stat.Bsize-int64(stat.Blocks)*stat.Bsize*3/100), 0o600); err != nil {
		c.t.Fatal(err)
	}
	all := c.serve(3, "one")
	for _, i := range all {
		if i.cell == c.Cells[0] {
			if err := unix.Kill(int(i.instance.PID), unix.SIGKILL); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.waitLong("the copy that was killed to be back", func(context.Context) error {
		if now := pids(c.serve(3, "one")); slices.Equal(now, pids(all)) {
			return fmt.Errorf("still %q", now)
		}
		return nil
	})
	if err := os.Remove(filler); err != nil {
		c.t.Fatal(err)
	}
}
