package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// asked counts the documents and layers that the registry was asked for.
func (c *containers) asked() (count int) {
	for _, line := range c.registry.Requests() {
		if strings.HasPrefix(line, http.MethodGet) {
			count++
		}
	}
	return count
}

// unreachable is a registry that takes connections and hangs up.
func unreachable(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	})
}

// slowly is a registry that takes some seconds for a layer.
func slowly(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { inner.ServeHTTP(slowWriter{w}, q) })
}

type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var wrote int
		wrote, err = w.ResponseWriter.Write(p[n:min(len(p), n+50_000)])
		n += wrote
		w.ResponseWriter.(http.Flusher).Flush()
		time.Sleep(50 * time.Millisecond)
	}
	return n, err
}

// elsewhere are the cells other than one.
func (c *containers) elsewhere(cell *cluster.Cell) (others []*cluster.Cell) {
	for _, other := range c.Cells {
		if other != cell {
			others = append(others, other)
		}
	}
	return others
}

// alone waits until one copy is left, and takes the image away from all cells but the one that has it.
func (c *containers) alone(version string) *cluster.Cell {
	c.t.Helper()
	c.run(c.Cells[0], 0, "apply", "-f", c.pinnedTo(1, c.Cells[0]))
	holder := c.serve(1, version)[0].cell
	standby := c.standsBy("web", "prepared") // prune leaves the image there, and it is brought again when it is removed too early
	c.run(standby, 0, "image", "rm", c.in("web:1"))
	for _, other := range c.elsewhere(holder) {
		c.pruned(other)
	}
	return holder
}

// pruned waits until a cell keeps no image for anything.
func (c *containers) pruned(cell *cluster.Cell) {
	c.t.Helper()
	c.waitLong("no image on "+cell.Name, func(context.Context) error {
		c.run(cell, 0, "image", "prune")
		if left := c.imageRemains(cell); len(left) > 0 {
			return fmt.Errorf("%s keeps %v", cell.Name, left)
		}
		return nil
	})
}

// logs counts the cells whose log says something.
func (c *containers) logs(words string) (count int) {
	for _, cell := range c.Cells {
		if strings.Contains(cell.LogTail(1<<20), words) {
			count++
		}
	}
	return count
}

// What one cell has, the others get from it: with the registry gone, copies start elsewhere and nothing asks for the
// registry. A cell that gives something else is not believed: what it gave is refused, and the registry asked. What a
// cell got with credentials, or must not share, stays with it (F76).
func TestF76_BlobsComeFromPeersBeforeTheRegistry(t *testing.T) {
	c := startContainers(t, nil)
	c.push("web:1", "one", nil)
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 1))
	c.serve(1, "one")
	if c.asked() == 0 {
		t.Fatal("the first copy asked the registry for nothing")
	}

	c.registry.Wrap(unreachable)
	before := len(c.registry.Requests())
	c.run(c.Cells[0], 0, "apply", "-f", c.pinnedTo(3, c.Cells[0]))
	c.serve(3, "one")
	if got := len(c.registry.Requests()); got != before {
		t.Errorf("the registry was asked %d times: %v", got-before, c.registry.Requests()[before:])
	}
	if n := c.logs("from cell "); n != 2 {
		t.Errorf("%d logs say that an image came from a cell, want 2", n)
	}
	c.registry.Wrap(nil)

	holder := c.alone("one")
	kept := filepath.Join(holder.Directory, "runnerd", "images", "kept")
	entries, err := os.ReadDir(kept)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%s keeps nothing for others: %v", holder.Name, err)
	}
	for _, entry := range entries {
		spoil(t, filepath.Join(kept, entry.Name()))
	}
	before = c.asked()
	c.registry.Wrap(slowly)
	c.run(c.Cells[0], 0, "apply", "-f", c.pinnedTo(2, c.Cells[0]))
	c.waitLong("the progress of a pull in the status of the cell that pulls", func(ctx context.Context) error {
		for _, other := range c.elsewhere(holder) {
			text, err := other.Command(ctx, "status")
			if err != nil || strings.Contains(text, "pulling ") {
				return err
			}
		}
		return errors.New("no cell says that it pulls")
	})
	c.serve(2, "one")
	if c.asked() == before {
		t.Error("the registry was not asked though the only cell with the image lies")
	}
	if c.logs("another digest: nothing of it is used") == 0 {
		t.Error("no log says what was refused")
	}
}

// spoil changes the end of a file.
func spoil(t *testing.T, path string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 16)
	rand.Read(noise)
	if _, err := file.WriteAt(noise, info.Size()-16); err != nil {
		t.Fatal(err)
	}
}
