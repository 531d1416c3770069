package runnerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/wasm"
)

// Compile caches: a directory for each replica, which its worker writes, and one for each module that stands by, which a
// worker writes that compiles only (ahead_modules.go). A replica whose cache does not have its module takes a copy of another
// one of the same workload and module, first of what stands by: nothing of a module ever ran in the worker that wrote that.
// What is copied carries codes over name and content that only workers of that workload and module and runnerd can make, and
// the worker looks at them before anything is used; so here a wrong file costs a compilation, no more.
//
// Beside each directory, where workers cannot write, a file says which module and engine it is for.

const (
	standbyMark      = "-standby-"
	moduleFileSuffix = ".module"
	// cacheEntriesMax bounds what is looked at in one directory that a worker wrote.
	cacheEntriesMax = 64
)

// cacheOf is the directory of a replica's compile cache.
func cacheOf(directory string, id InstanceID) string {
	return filepath.Join(directory, wasmCacheName, fmt.Sprintf("%016x-%d", id.KeyHash, id.Slot))
}

// cacheOwner is who may write to a cache; without chown it is who runs runnerd.
type cacheOwner struct {
	uid   uint32
	chown bool
}

// compileCaches are all caches of a host. Its methods may be called from any goroutine.
type compileCaches struct {
	root  string
	mutex sync.Mutex
	busy  map[string]*compilation // what compiles into directories of what stands by
}

// compilation is a worker that compiles only.
type compilation struct {
	over  chan struct{}
	hurry chan struct{} // closed once a start waits
	once  sync.Once
}

func newCompileCaches(root string) *compileCaches {
	return &compileCaches{root: root, busy: map[string]*compilation{}}
}

// standbyOf is the cache of a module that stands by.
func (c *compileCaches) standbyOf(keyHash uint64, digest [32]byte) string {
	return filepath.Join(c.root, fmt.Sprintf("%016x%s%x", keyHash, standbyMark, digest[:8]))
}

// begin makes a directory that of one compilation. There is never a second one in it.
func (c *compileCaches) begin(directory string) (*compilation, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.busy[directory] != nil {
		return nil, errors.New("it is compiled already")
	}
	this := &compilation{over: make(chan struct{}), hurry: make(chan struct{})}
	c.busy[directory] = this
	return this, nil
}

func (c *compileCaches) end(directory string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	close(c.busy[directory].over)
	delete(c.busy, directory)
}

// await waits for a compilation of the same module that is under way, and makes it one that somebody waits for.
func (c *compileCaches) await(ctx context.Context, id InstanceID, digest [32]byte, progress func(string)) {
	c.mutex.Lock()
	this := c.busy[c.standbyOf(id.KeyHash, digest)]
	c.mutex.Unlock()
	if this == nil || c.holds(cacheOf(filepath.Dir(c.root), id), digest) {
		return
	}
	progress("waits for its module, which is being compiled")
	this.once.Do(func() { close(this.hurry) })
	select {
	case <-this.over:
	case <-ctx.Done():
	}
}

func moduleText(digest [32]byte) string { return fmt.Sprintf("%x %s\n", digest, wasm.Engine) }

// claim says which module a cache is for from now on.
func (c *compileCaches) claim(directory string, digest [32]byte) error {
	path := directory + moduleFileSuffix
	if err := os.WriteFile(path, []byte(moduleText(digest)), 0o600); err != nil {
		_ = os.Remove(path)
		return err
	}
	return nil
}

func (c *compileCaches) isFor(directory string, digest [32]byte) bool {
	text, err := os.ReadFile(directory + moduleFileSuffix)
	return err == nil && string(text) == moduleText(digest)
}

// holds reports whether a cache seems to have a module compiled.
func (c *compileCaches) holds(directory string, digest [32]byte) bool {
	if !c.isFor(directory, digest) {
		return false
	}
	root, err := os.OpenRoot(directory)
	if err != nil {
		return false
	}
	defer root.Close()
	names, err := compiledIn(root)
	return err == nil && len(names) > 0
}

// find gives a cache of a workload that has a module compiled, "" if there is none; what stands by comes first.
func (c *compileCaches) find(keyHash uint64, digest [32]byte) string {
	if standby := c.standbyOf(keyHash, digest); c.holds(standby, digest) {
		return standby
	}
	entries, _ := os.ReadDir(c.root)
	for _, entry := range entries {
		path := filepath.Join(c.root, entry.Name())
		if entry.IsDir() && strings.HasPrefix(entry.Name(), fmt.Sprintf("%016x-", keyHash)) && c.holds(path, digest) {
			return path
		}
	}
	return ""
}

// fill gives a cache that does not have its module a copy of another one, if there is one.
func (c *compileCaches) fill(own string, keyHash uint64, digest [32]byte, owner cacheOwner) {
	if c.holds(own, digest) {
		return
	}
	from := c.find(keyHash, digest)
	if !c.isFor(own, digest) && clearCache(own) != nil { // what another module or engine left is of no use
		return
	}
	if c.claim(own, digest) != nil || from == "" {
		return
	}
	if err := copyCompiled(from, own, owner); err != nil {
		_ = clearCache(own)
		return
	}
	if strings.Contains(filepath.Base(from), standbyMark) { // what stood by has come to its place
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if c.busy[from] == nil {
			c.remove(from)
		}
	}
}

func (c *compileCaches) remove(directory string) {
	if os.RemoveAll(directory) == nil {
		_ = os.Remove(directory + moduleFileSuffix)
	}
}

// prune removes caches, the one used least recently first, while all together are too large. Their workers compile again at
// their next start. It reports whether there is room now.
func (c *compileCaches) prune(keep func(path string) bool) bool {
	entries, _ := os.ReadDir(c.root)
	for range len(entries) + 1 {
		total, oldest, when := int64(0), "", int64(0)
		for _, entry := range entries {
			path := filepath.Join(c.root, entry.Name())
			if !entry.IsDir() {
				continue
			}
			size, changed := treeSize(path)
			total += size
			if size > 0 && !keep(path) && !c.isBusy(path) && (oldest == "" || changed < when) {
				oldest, when = path, changed
			}
		}
		if total <= wasmCacheMax {
			return true
		}
		if oldest == "" {
			return false
		}
		c.remove(oldest)
	}
	return false
}

func (c *compileCaches) isBusy(directory string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.busy[directory] != nil
}

func treeSize(root string) (size, changed int64) {
	_ = filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			size += info.Size()
			changed = max(changed, info.ModTime().UnixNano())
		}
		return nil
	})
	return size, changed
}

var errCacheForm = errors.New("the cache is not as a worker leaves it")

// compiledIn lists the compiled modules of a cache that have a code. A worker may have written anything: links, pipes,
// thousands of files.
func compiledIn(root *os.Root) (names []string, err error) {
	directories, err := listBounded(root, ".")
	for _, directory := range directories {
		if !directory.IsDir() {
			continue
		}
		files, err := listBounded(root, directory.Name())
		if err != nil {
			return nil, err
		}
		regular := map[string]bool{}
		for _, file := range files {
			regular[file.Name()] = file.Type().IsRegular()
		}
		for _, file := range files {
			name := file.Name()
			if regular[name] && regular[name+wasm.CodeSuffix] {
				names = append(names, filepath.Join(directory.Name(), name))
			}
		}
	}
	if len(names) > wasm.CacheFilesMax {
		return nil, errCacheForm
	}
	return names, err
}

func listBounded(root *os.Root, name string) ([]fs.DirEntry, error) {
	directory, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	entries, err := directory.ReadDir(cacheEntriesMax + 1)
	if len(entries) > cacheEntriesMax {
		return nil, errCacheForm
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// clearCache empties a cache and leaves its directory.
func clearCache(directory string) error {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		entries, err := listSome(root)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			if err := root.RemoveAll(entry.Name()); err != nil {
				return err
			}
		}
	}
}

func listSome(root *os.Root) ([]fs.DirEntry, error) {
	directory, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	entries, err := directory.ReadDir(cacheEntriesMax)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// copyCompiled makes one cache what another one is. The owner of either may change it meanwhile.
func copyCompiled(from, to string, owner cacheOwner) error {
	source, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer source.Close()
	names, err := compiledIn(source)
	if err != nil {
		return err
	}
	if err := clearCache(to); err != nil {
		return err
	}
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer target.Close()
	for _, name := range names {
		directory := filepath.Dir(name)
		if err := target.Mkdir(directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if owner.chown {
			if err := target.Lchown(directory, int(owner.uid), int(owner.uid)); err != nil {
				return err
			}
		}
		for _, file := range []string{name, name + wasm.CodeSuffix} {
			if err := copyCacheFile(source, target, file, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyCacheFile(source, target *os.Root, name string, owner cacheOwner) error {
	info, err := source.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > wasm.CacheFileMax {
		return errCacheForm
	}
	in, err := source.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	if opened, err := in.Stat(); err != nil || !os.SameFile(info, opened) {
		return errCacheForm // it was exchanged in between
	}
	out, err := target.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if n, err := io.Copy(out, io.LimitReader(in, wasm.CacheFileMax+1)); err != nil || n > wasm.CacheFileMax {
		return errors.Join(err, errCacheForm)
	}
	if owner.chown {
		return out.Chown(int(owner.uid), int(owner.uid))
	}
	return nil
}
