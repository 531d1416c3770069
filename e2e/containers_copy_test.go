package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Copies into a container whose space is used up, and into one that cannot be written, fail with the place and the
// reason, and leave what was there; where there is room they arrive (F137).
func TestF137_CopyIntoContainersThatAreFull(t *testing.T) {
	line := operatorKey(t, "anna")
	c := startContainers(t, func(string, int) string { return "exec *\n" + line })
	c.push("web:1", "one", nil)
	from, directory := c.Cells[0], t.TempDir()
	big, small := filepath.Join(directory, "big"), filepath.Join(directory, "small")
	sum := randomFile(t, small, 1<<20)
	randomFile(t, big, 20<<20)
	c.run(from, 0, "apply", "-f", c.webFile(c.in("web:1"), 1, "disk 8mb"))
	c.serve(1, "one")
	c.run(from, 0, "cp", small, "web/0:/www/file")
	c.fails(from, 1, "web/0: write www/file: no space left on device", "cp", big, "web/0:/www/file")
	if out := c.run(from, 0, "exec", "web/0", "--", "sh", "-c", "sha256sum /www/file; ls -A /www"); !strings.HasPrefix(out, sum) ||
		strings.Contains(out, ".colloid") {
		t.Errorf("there is now: %s", out)
	}
	c.run(from, 0, "cp", "web/0:/www/file", filepath.Join(directory, "back"))
	if info, err := os.Stat(filepath.Join(directory, "back")); err != nil || info.Size() != 1<<20 {
		t.Error(info, err)
	}
	c.specialTargets(small, sum)
	c.run(from, 0, "apply", "-f", c.webFile(c.in("web:1"), 1, "read_only true"))
	c.run(from, 0, "rollout", "status", "web", "--watch", "--timeout", "110s")
	c.fails(from, 1, "web/0: create www/file: read-only file system", "cp", small, "web/0:/www/file")
}

// specialTargets copies to devices, pipes and links, on this machine and in a container: they are written into or
// followed, and never replaced. The device of this machine is a node of the test's own.
func (c *containers) specialTargets(small, sum string) {
	c.t.Helper()
	from, directory := c.Cells[0], c.t.TempDir()
	null, link, file := filepath.Join(directory, "null"), filepath.Join(directory, "link"), filepath.Join(directory, "file")
	if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		c.t.Fatal(err)
	}
	os.WriteFile(file, []byte("before"), 0o600)
	os.Symlink("file", link)
	c.run(from, 0, "cp", small, "web/0:/www/file")
	c.run(from, 0, "cp", "web/0:/www/file", null)
	c.fails(from, 1, "no file", "cp", "web/0:/www", null)
	if info, err := os.Lstat(null); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		c.t.Errorf("the device is now %v, %v", info.Mode(), err)
	}
	c.run(from, 0, "cp", "web/0:/www/file", link)
	if info, err := os.Stat(file); err != nil || info.Size() != 1<<20 {
		c.t.Errorf("behind the link: %v, %v", info, err)
	}
	if to, err := os.Readlink(link); to != "file" {
		c.t.Errorf("the link is now %q, %v", to, err)
	}
	os.Remove(file)
	c.fails(from, 2, "does not exist", "cp", "web/0:/www/file", link)

	inside := func(script string) string { return c.run(from, 0, "exec", "web/0", "--", "sh", "-c", script) }
	inside("rm /www/file; echo before > /www/real; ln -s real /www/link; ln -s /../../www/real /www/far; mkfifo /www/pipe")
	c.run(from, 0, "cp", small, "web/0:/dev/null")
	for _, target := range []string{"link", "far"} {
		inside("echo before > /www/real")
		c.run(from, 0, "cp", small, "web/0:/www/"+target)
		if out := inside("test -L /www/" + target + " && test -c /dev/null && sha256sum /www/real"); !strings.HasPrefix(out, sum) {
			c.t.Errorf("by %s came: %s", target, out)
		}
	}
	c.fails(from, 1, "nobody reads", "cp", small, "web/0:/www/pipe")
	inside("test -p /www/pipe && rm /www/pipe /www/link /www/far /www/real")
}
