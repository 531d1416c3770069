package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	c.run(from, 0, "apply", "-f", c.webFile(c.in("web:1"), 1, "read_only true"))
	c.run(from, 0, "rollout", "status", "web", "--watch", "--timeout", "110s")
	c.fails(from, 1, "web/0: create www/file: read-only file system", "cp", small, "web/0:/www/file")
}
