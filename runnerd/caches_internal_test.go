package runnerd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/wasm"
)

// cacheWith makes a cache with one compiled module, as a worker leaves it.
func cacheWith(t *testing.T, c *compileCaches, name string, digest [32]byte, content string) string {
	t.Helper()
	directory := filepath.Join(c.root, name)
	if err := os.MkdirAll(filepath.Join(directory, "engine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for suffix, text := range map[string]string{"": content, wasm.CodeSuffix: "code"} {
		if err := os.WriteFile(filepath.Join(directory, "engine", "aa"+suffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.claim(directory, digest); err != nil {
		t.Fatal(err)
	}
	return directory
}

func newCaches(t *testing.T) *compileCaches {
	t.Helper()
	c := newCompileCaches(filepath.Join(t.TempDir(), wasmCacheName))
	return c
}

// TestStandby_ACacheIsFilledFromAnother of the same workload, module and engine, first from what stands by, and from no
// other one.
func TestStandby_ACacheIsFilledFromAnother(t *testing.T) {
	c := newCaches(t)
	digest, older := [32]byte{1}, [32]byte{2}
	id := InstanceID{KeyHash: 7, Slot: 3}
	own := cacheOf(filepath.Dir(c.root), id)
	cacheWith(t, c, "0000000000000007-3", older, "of the last version")
	cacheWith(t, c, "0000000000000008-3", digest, "of another workload")
	stale := cacheWith(t, c, "0000000000000007-5", digest, "of another engine")
	text, _ := os.ReadFile(stale + moduleFileSuffix)
	if err := os.WriteFile(stale+moduleFileSuffix, append(text, "x"...), 0o600); err != nil {
		t.Fatal(err)
	}
	compiled := filepath.Join(own, "engine", "aa")
	c.fill(own, id.KeyHash, digest, cacheOwner{})
	if text, err := os.ReadFile(compiled); err == nil || c.holds(own, digest) {
		t.Errorf("%q is taken for the module of now", text)
	}
	for _, from := range []struct{ name, content string }{
		{"0000000000000007-4", "of a replica"}, {filepath.Base(c.standbyOf(7, digest)), "of what stands by"},
	} {
		cacheWith(t, c, from.name, digest, from.content)
		cacheWith(t, c, "0000000000000007-3", older, "of the last version")
		if err := os.WriteFile(filepath.Join(own, wasm.LoadedMark), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.fill(own, id.KeyHash, digest, cacheOwner{})
		text, err := os.ReadFile(compiled)
		if string(text) != from.content || err != nil || !c.holds(own, digest) {
			t.Errorf("%q, %v, want %q", text, err, from.content)
		}
		if _, err := os.Lstat(filepath.Join(own, wasm.LoadedMark)); err == nil {
			t.Error("something else was kept")
		}
	}
	if _, err := os.Lstat(c.standbyOf(7, digest)); err == nil {
		t.Error("what stood by is there twice")
	}
	if err := os.WriteFile(compiled, []byte("its own"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.fill(own, id.KeyHash, digest, cacheOwner{})
	if text, _ := os.ReadFile(compiled); string(text) != "its own" {
		t.Errorf("a cache that has its module was replaced: %q", text)
	}
}

// TestStandby_HostileCachesAreNotCopied: links, pipes, large and many files lead to nothing but a compilation.
func TestStandby_HostileCachesAreNotCopied(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := [32]byte{1}
	for name, spoil := range map[string]func(directory string) error{
		"a link": func(d string) error {
			_ = os.Remove(d + "/engine/aa")
			return os.Symlink(secret, d+"/engine/aa")
		},
		"a link as the code": func(d string) error {
			_ = os.Remove(d + "/engine/aa.mac")
			return os.Symlink(secret, d+"/engine/aa.mac")
		},
		"a link as the directory": func(d string) error {
			_ = os.RemoveAll(d + "/engine")
			if err := os.Mkdir(filepath.Dir(secret)+"/engine", 0o700); err != nil {
				return err
			}
			for _, name := range []string{"aa", "aa.mac"} {
				if err := os.WriteFile(filepath.Dir(secret)+"/engine/"+name, nil, 0o600); err != nil {
					return err
				}
			}
			return os.Symlink(filepath.Dir(secret)+"/engine", d+"/engine")
		},
		"a pipe": func(d string) error {
			_ = os.Remove(d + "/engine/aa")
			return unix.Mkfifo(d+"/engine/aa", 0o600)
		},
		"a large file": func(d string) error { return os.Truncate(d+"/engine/aa", wasm.CacheFileMax+1) },
		"many files": func(d string) error {
			for n := range 100 {
				if err := os.WriteFile(fmt.Sprintf("%s/engine/%d", d, n), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"many modules": func(d string) error {
			for n := range 10 {
				for _, suffix := range []string{"", ".mac"} {
					if err := os.WriteFile(fmt.Sprintf("%s/engine/%d%s", d, n, suffix), nil, 0o600); err != nil {
						return err
					}
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCaches(t)
			from := cacheWith(t, c, "0000000000000007-4", digest, "compiled")
			if err := spoil(from); err != nil {
				t.Fatal(err)
			}
			own := filepath.Join(c.root, "0000000000000007-3")
			if err := os.Mkdir(own, 0o700); err != nil {
				t.Fatal(err)
			}
			c.fill(own, 7, digest, cacheOwner{})
			if left, _ := filepath.Glob(own + "/*/*"); len(left) > 0 {
				t.Errorf("copied %q", left)
			}
		})
	}
}

// TestStandby_PreparingTakesNoCacheOfWhatRuns: while all together are too large, those that nothing here has go.
func TestStandby_PreparingTakesNoCacheOfWhatRuns(t *testing.T) {
	c := newCaches(t)
	large := func(name string) string {
		path := cacheWith(t, c, name, [32]byte{1}, "")
		if err := os.Truncate(filepath.Join(path, "engine", "aa"), wasmCacheMax/2+1); err != nil { // sparse
			t.Fatal(err)
		}
		return path
	}
	runs, gone, busy := large("0000000000000001-0"), large("0000000000000002-0"), large("0000000000000003-0")
	if _, err := c.begin(busy); err != nil {
		t.Fatal(err)
	}
	if _, err := c.begin(busy); err == nil {
		t.Error("two compilations in one directory")
	}
	keep := func(path string) bool { return path == runs }
	if c.prune(keep) {
		t.Error("there is room beside two that cannot go")
	}
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	if !exists(runs) || exists(gone) || !exists(busy) || exists(gone+moduleFileSuffix) {
		t.Errorf("runs %v, gone %v, busy %v", exists(runs), exists(gone), exists(busy))
	}
	c.end(busy)
	if !c.prune(keep) || !exists(runs) || exists(busy) {
		t.Errorf("runs %v, busy %v", exists(runs), exists(busy))
	}
	if left, _ := filepath.Glob(c.root + "/*"); slices.ContainsFunc(left, func(s string) bool { return !strings.Contains(s, "01-0") }) {
		t.Errorf("left %q", left)
	}
}
