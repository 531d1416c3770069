package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
)

// modulesName is where verified modules lie, by digest.
const modulesName = "modules"

// moduleMagic begins every WebAssembly module.
const moduleMagic = "\x00asm"

// Module gives a Wasm module as a descriptor that can only be read: from what is here already, by https
// (http where the policy lists the host), oci, or from a file of this host, file:///PATH. Whether the
// policy allows the reference is the caller's question. The digest is always that of the module itself, also
// for oci, where the reference leads to it (F84). The file behind the descriptor never changes.
func (c *Client) Module(ctx context.Context, reference string, digest [32]byte, progress func(Progress)) (*os.File, error) {
	return c.module(ctx, reference, digest, false, progress)
}

func (c *Client) module(ctx context.Context, reference string, digest [32]byte, ahead bool, progress func(Progress),
) (*os.File, error) {
	if digest == ([32]byte{}) {
		return nil, &Refusal{fmt.Sprintf("module %s has no digest: set sha256 in the workload", reference)}
	}
	if file, err := c.openModule(digest); !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	path, local := strings.CutPrefix(reference, "file://")
	pause := c.jitter
	if local {
		pause = nil
	}
	err := c.share(ctx, digest, ahead, progress, pause, func(_ context.Context, p *pull) error {
		if local {
			return c.copyModule(path, digest)
		}
		return c.fetchModule(reference, digest, p)
	})
	if err != nil {
		return nil, err
	}
	return c.openModule(digest)
}

func (c *Client) modulePath(digest Digest) string {
	return filepath.Join(c.options.Directory, modulesName, store.BlobName(digest))
}

func (c *Client) openModule(digest Digest) (*os.File, error) {
	return os.OpenFile(c.modulePath(digest), os.O_RDONLY|unix.O_NOFOLLOW, 0)
}

// unfinishedPrefix begins the names of modules that are being fetched.
const unfinishedPrefix = "fetch-"

func (c *Client) unfinishedPath(digest Digest) string {
	return filepath.Join(c.options.Directory, modulesName, unfinishedPrefix+digest.Hex())
}

// removeUnfinishedModules removes what a process left that was killed.
func (c *Client) removeUnfinishedModules() {
	directory := filepath.Join(c.options.Directory, modulesName)
	entries, _ := os.ReadDir(directory)
	for _, entry := range entries {
		if _, err := manifest.ParseHex(strings.TrimPrefix(entry.Name(), "sha256-")); err != nil {
			_ = os.Remove(filepath.Join(directory, entry.Name()))
		}
	}
}

// modules lists the modules that are here, as images without a name.
func (c *Client) modules() (list []Image, err error) {
	entries, err := os.ReadDir(filepath.Join(c.options.Directory, modulesName))
	for _, entry := range entries {
		digest, parseErr := manifest.ParseHex(strings.TrimPrefix(entry.Name(), "sha256-"))
		info, infoErr := entry.Info()
		if parseErr != nil || infoErr != nil || len(list) == store.ImagesMax {
			continue // one that is being fetched
		}
		list = append(list, Image{Digest: digest, Size: info.Size(), Created: info.ModTime(), Architecture: "wasm"})
	}
	return list, err
}

// copyModule takes a module from a file of this host. It is copied while it is hashed, since whoever owns
// the file may change it at any time.
func (c *Client) copyModule(path string, digest Digest) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return &Refusal{fmt.Sprintf("module %s: %v", path, err)}
	}
	defer file.Close()
	_, err = c.keepModule(file, digest)
	if err != nil {
		err = fmt.Errorf("module %s: %w", path, err)
	}
	return err
}

// keepModule stores the content of a file under its digest, or under wanted if that is not zero.
func (c *Client) keepModule(file *os.File, wanted Digest) (Digest, error) {
	info, err := file.Stat()
	if err != nil {
		return wanted, err
	} else if !info.Mode().IsRegular() || info.Size() > ModuleSizeMax {
		return wanted, &Refusal{fmt.Sprintf("it is no regular file of at most %d bytes (mode %v, %d bytes)", ModuleSizeMax,
			info.Mode(), info.Size())}
	}
	if err := store.CheckRoom(c.options.Directory, c.floor, uint64(info.Size())); err != nil {
		return wanted, err
	}
	stage, err := os.CreateTemp(filepath.Join(c.options.Directory, modulesName), "new-")
	if err != nil {
		return wanted, err
	}
	defer os.Remove(stage.Name()) // fails once it is renamed
	defer stage.Close()
	hash := sha256.New()
	in := io.NewSectionReader(file, 0, ModuleSizeMax+1)
	if _, err := io.Copy(io.MultiWriter(stage, hash), in); err != nil {
		return wanted, err
	}
	got := Digest(hash.Sum(nil))
	if wanted == (Digest{}) {
		wanted = got
	}
	if got != wanted {
		return wanted, &Refusal{fmt.Sprintf("it has the digest %s, expected %s", got, wanted)}
	}
	return wanted, c.adoptModule(stage, wanted)
}

// adoptModule gives a verified file its name. It must be one that the caller alone has written.
func (c *Client) adoptModule(stage *os.File, digest Digest) error {
	var magic [len(moduleMagic)]byte
	if _, err := stage.ReadAt(magic[:], 0); err != nil || string(magic[:]) != moduleMagic {
		return &Refusal{"it is no WebAssembly module: it does not begin with \\0asm"}
	}
	if err := errors.Join(stage.Chmod(0o444), stage.Sync()); err != nil {
		return err
	}
	return os.Rename(stage.Name(), c.modulePath(digest))
}

// fetchModule downloads a module into a file that the fetcher may write, then keeps a copy that it may
// not.
func (c *Client) fetchModule(reference string, digest Digest, p *pull) (err error) {
	path := c.unfinishedPath(digest)
	stage, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer stage.Close()
	defer func() {
		if !gaveWay(err) { // its next turn goes on with it
			_ = os.Remove(path)
		}
	}()
	if err = store.CheckRoom(c.options.Directory, c.floor, 2*ModuleSizeMax); err != nil {
		return err
	}
	_, err = c.fetch(&registry.Job{Kind: registry.JobModule, Reference: reference, Digest: digest,
		SizeMax: ModuleSizeMax}, &moduleBlob{stage: stage, report: p.report}, p)
	if err != nil {
		return err
	}
	_, err = c.keepModule(stage, digest)
	if err != nil {
		err = fmt.Errorf("module %s: %w", reference, err)
	}
	return err
}

// moduleBlob grants the one file of a module.
type moduleBlob struct {
	noPeers
	stage  *os.File
	report func(Progress)
}

func (m *moduleBlob) blob(_ context.Context, _ Digest, size int64) (*os.File, int64, error) {
	if size < 0 || size > ModuleSizeMax {
		return nil, 0, errBlobSize
	}
	info, err := m.stage.Stat()
	if err != nil {
		return nil, 0, err
	}
	fd, err := unix.FcntlInt(m.stage.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), m.stage.Name()), info.Size(), nil
}

func (m *moduleBlob) layers(context.Context, []registry.Layer) ([]bool, error) {
	return nil, errors.New("a module has no layers")
}

func (m *moduleBlob) progress(p Progress) { m.report(p) }
