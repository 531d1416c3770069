package e2e

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"colloid.net/e2e/cluster"
	"colloid.net/runnerd/image/imagetest"
)

// A tag that moves in the registry moves nothing in the cluster: what was applied is what runs, also on a cell that
// pulls later. Applying again follows the tag (F84).
func TestF84_TheTagMovesAndTheClusterDoesNot(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.push("web:stable", "one", nil)
	file := c.webFile(c.in("web:stable"), 1)
	c.run(c.Cells[0], 0, "apply", "-f", file)
	c.serve(1, "one")
	c.push("web:stable", "two", nil)
	c.run(c.Cells[0], 0, "apply", "-f", strings.TrimSuffix(c.pinnedTo(3, c.Cells[0]), "\n"))
	c.serve(3, "one") // two cells pulled after the tag had moved
	if out := c.run(c.Cells[1], 0, "apply", "-f", c.webFile(c.in("web:stable"), 3)); !strings.Contains(out, "updated") {
		t.Errorf("apply says %q", out)
	}
	c.serve(3, "two")
}

// pinnedTo is the workload web as the cluster holds it, with another number of replicas.
func (c *containers) pinnedTo(replicas int, cell *cluster.Cell) string {
	c.t.Helper()
	var lines []string
	for line := range strings.Lines(c.run(cell, 0, "get", "web")) {
		if !strings.Contains(line, "replicas") {
			lines = append(lines, line)
		}
	}
	text := strings.Replace(strings.Join(lines, ""), "{\n", fmt.Sprintf("{\n\treplicas %d\n", replicas), 1)
	return c.file(text)
}

// hostile is a way in which the registry misbehaves, and what status must say of it.
type hostile struct {
	name  string
	wrap  func(http.Handler) http.Handler
	words []string
	limit time.Duration
	// interrupted: what had come stays for a day, and the next attempt goes on from there.
	interrupted bool
}

// onPath answers the requests for some paths instead of the registry.
func onPath(part string, answer http.HandlerFunc) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.Method == http.MethodGet && strings.Contains(q.URL.Path, part) {
				answer(w, q)
				return
			}
			inner.ServeHTTP(w, q)
		})
	}
}

// A registry that lies about a digest, redirects to a private address, knows nothing or does not answer: the workload
// does not run, status and explain on every cell say why in one sentence, and nothing of it stays on the disk. When the
// registry behaves again, the workload starts by itself (F140, F146).
func TestF146_HostileRegistryEndsInAReason(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.push("web:1", "one", nil)
	file := c.webFile(c.in("web:1"), 1)
	cases := []hostile{
		{"lies", onPath("/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("something else"))
		}), []string{"instead of"}, containerPatience, false},
		{"redirects", onPath("/blobs/", func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "https://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}), []string{"169.254.169.254", "not public"}, containerPatience, false},
		{"knows nothing", onPath("/manifests/", http.NotFound), []string{"has no"}, containerPatience, false},
	}
	if long() {
		cases = append(cases, hostile{"stalls", onPath("/blobs/", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-q.Context().Done():
			case <-c.t.Context().Done():
			}
		}), []string{"sends nothing any more"}, 6 * time.Minute, true})
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			// The question what the tag means comes first; then the registry turns.
			c.run(c.Cells[0], 0, "apply", "-f", file)
			c.serve(1, "one")
			c.run(c.Cells[0], 0, "delete", "web")
			for _, cell := range c.Cells {
				c.waitLong("no copies", func(context.Context) error { return c.nothingRuns(cell) })
				c.pruned(cell)
			}
			pinned := c.webFile(c.in("web@"+c.digestOf("web:1")), 1)
			c.registry.Wrap(test.wrap)
			defer c.registry.Wrap(nil)
			c.run(c.Cells[0], 0, "apply", "-f", pinned)
			for _, cell := range c.Cells {
				err := cluster.WaitFor(t.Context(), test.limit, "the reason on "+cell.Name, func(ctx context.Context) error {
					text, err := cell.Command(ctx, "status")
					if explained, errExplain := cell.Command(ctx, "explain", "web"); errExplain == nil {
						text += explained
					}
					for _, words := range test.words {
						if err == nil && !strings.Contains(text, words) {
							err = fmt.Errorf("it does not say %q:\n%s", words, text)
						}
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Log(c.run(c.Cells[0], 0, "status"))
			for _, cell := range c.Cells {
				left := slices.DeleteFunc(c.imageRemains(cell), func(name string) bool {
					return test.interrupted && strings.HasPrefix(name, "blobs/")
				})
				if len(left) > 0 {
					t.Errorf("%s keeps %v", cell.Name, left)
				}
			}
			c.registry.Wrap(nil)
			if long() {
				c.serve(1, "one") // a refusal is earned anew after one or two minutes
			}
		})
	}
}

// digestOf is the digest of a tag of the registry, as a reference carries it.
func (c *containers) digestOf(tag string) string {
	c.t.Helper()
	out := c.run(c.Cells[0], 0, "image", "pull", c.in(tag))
	c.run(c.Cells[0], 0, "image", "prune")
	_, digest, found := strings.Cut(strings.TrimSpace(out), "@")
	if !found {
		c.t.Fatalf("image pull printed %q", out)
	}
	return digest
}

// imageRemains lists what the image store of a cell holds.
func (c *containers) imageRemains(cell *cluster.Cell) (list []string) {
	c.t.Helper()
	for _, name := range []string{"layers", "images", "blobs", "roots", "kept"} {
		entries, err := os.ReadDir(filepath.Join(cell.Directory, "runnerd", "images", name))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, entry := range entries {
			list = append(list, name+"/"+entry.Name())
		}
	}
	return list
}

// Images by hand: pulled, listed, removed unless an instance uses them, pruned; loaded from a file on machines whose
// registry nobody can reach, and run from there.
func TestImagesByHand(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	digest := c.push("web:1", "one", nil)
	first := c.Cells[0]
	if out := c.run(first, 0, "image", "pull", c.in("web:1")); out != c.in("web:1")+"@"+digest.String()+"\n" {
		t.Errorf("pull printed %q", out)
	}
	out := c.run(first, 0, "image", "ls")
	for _, words := range []string{c.in("web:1"), digest.String()[:19], runtime.GOARCH} {
		if !strings.Contains(out, words) {
			t.Errorf("ls does not say %q:\n%s", words, out)
		}
	}
	c.run(first, 0, "image", "rm", digest.Hex[:12])
	if left := c.imageRemains(first); len(left) > 0 {
		t.Errorf("rm left %v", left)
	}

	c.registry.Wrap(passwords("builder", "of the test"))
	result, err := first.Run(t.Context(), "image", "pull", c.in("web:1"))
	refused(t, "pull without credentials", result, err, 1, "needs credentials")
	text := fmt.Sprintf("registry %s {\n    username builder\n    password \"of the test\"\n}\n", c.registry.Host)
	if err := os.WriteFile(c.credentials, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(first, 0, "image", "pull", c.in("web:1"))
	c.run(first, 0, "image", "prune")

	c.registry.Wrap(onPath("/", http.NotFound)) // from here on there is no registry
	archive := filepath.Join(t.TempDir(), "web.tar")
	image := imagetest.Busybox(t, runtime.GOARCH, v1.Config{
		Cmd: []string{"httpd", "-f", "-p", fmt.Sprint(webPort), "-h", "/www"}}, page("loaded"))
	writeLayout(t, archive, "localhost/web:7", image)
	var printed string
	for _, cell := range c.Cells {
		printed = strings.TrimSpace(c.run(cell, 0, "image", "load", archive))
	}
	if !strings.HasPrefix(printed, "localhost/web:7@sha256:") {
		t.Fatalf("load printed %q", printed)
	}
	c.run(first, 0, "apply", "-f", c.webFile("localhost/web:7", 3))
	c.serve(3, "loaded")
	result, err = first.Run(t.Context(), "image", "rm", "localhost/web:7")
	refused(t, "rm of what is used", result, err, 1, "in use here, by spread.web")
	if out := c.run(first, 0, "image", "prune"); out != "" {
		t.Errorf("prune removed %q", out)
	}
	c.serve(3, "loaded")
	c.run(first, 0, "delete", "web")
	c.waitLong("no copies", func(context.Context) error { return c.nothingRuns(first) })
	if out := c.run(first, 0, "image", "prune"); !strings.Contains(out, "removed localhost/web:7") {
		t.Errorf("prune printed %q", out)
	}
	if left := c.imageRemains(first); len(left) > 0 {
		t.Errorf("prune left %v", left)
	}
	result, err = first.Run(t.Context(), "image", "pull", c.in("web:1"))
	refused(t, "pull of nothing", result, err, 1, c.registry.Host)
	result, err = first.Run(t.Context(), "image", "load", "/etc/hosts")
	refused(t, "load of no archive", result, err, 1)
	result, err = first.Run(t.Context(), "image", "rm", "nothing")
	refused(t, "rm of nothing", result, err, 1, "nothing")
}

// passwords makes a registry serve one user only.
func passwords(user, password string) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if name, word, _ := q.BasicAuth(); name != user || word != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(w, q)
		})
	}
}

// writeLayout writes an image as a tar of an OCI layout, as skopeo and others do.
func writeLayout(t *testing.T, path, reference string, image v1.Image) {
	t.Helper()
	directory := t.TempDir()
	at, err := layout.Write(directory, empty.Index)
	if err == nil {
		err = at.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": reference}))
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := tar.NewWriter(file)
	if err := errors.Join(w.AddFS(os.DirFS(directory)), w.Close()); err != nil {
		t.Fatal(err)
	}
}
