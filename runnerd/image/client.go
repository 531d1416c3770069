package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"colloid.net/runnerd/image/manifest"
	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/trust"
)

// Bounds and pauses.
const (
	pullsAtOnce   = 2 // F76
	queuedText    = "waits for two other pulls"
	jitterMax     = 2 * time.Second
	idleDefault   = time.Minute
	ModuleSizeMax = 256 << 20
	blobAgeMax    = 24 * time.Hour // of what a pull left that never came to its end
)

// Types that the store defines.
type (
	// Config is what an image asks of its containers.
	Config = manifest.Config
	// IDRange is what ids from 0 of a container are on the host; Count 0 = no mapping.
	IDRange = store.IDRange
	// Image is one image of this host.
	Image = store.Image
	// Digest is a sha256.
	Digest = manifest.Digest
)

// Progress of a pull. Total is 0 until it is known.
type Progress struct {
	Bytes, Total  int64
	Layer, Layers int
	Unpacking     bool   // all is here and becomes layers
	Queued        bool   // others have their turn
	Slow          bool   // with Queued: it was too slow to keep them waiting
	From          string // "cell ..." while another cell gives it (F76)
}

// String is the progress as the reason of an instance that waits for it.
func (p Progress) String() string {
	switch {
	case p.Queued && p.Slow:
		return fmt.Sprintf("%s: it came at less than %d KiB/s", queuedText, slowRate>>10)
	case p.Queued:
		return queuedText
	case p.Unpacking:
		return fmt.Sprintf("unpacking layer %d of %d", p.Layer, p.Layers)
	case p.Total > 0:
		return fmt.Sprintf("pulling %d %%, layer %d of %d%s", p.Bytes*100/p.Total, p.Layer, p.Layers, p.from())
	}
	return "pulling" + p.from()
}

func (p Progress) from() string {
	if p.From == "" {
		return ""
	}
	return ", from " + p.From
}

// Options of a Client.
type Options struct {
	Directory   string        // of images, blobs and modules; made if it is not there
	Credentials string        // file of credentials, see registry.LoadCredentials; "" = none
	Owners      trust.Users   // who may own the file of credentials and certificates
	Hosts       func() []Host // what the policy says of single registries; nil = nothing
	Log         *log.Logger
	Command     []string      // how to start this program; nil = /proc/self/exe
	Idle        time.Duration // after which `runnerd images` ends; 0 = a minute
	JitterMax   time.Duration // before a pull that nobody waits for in person; 0 = 2 s, negative = none
	Timing      registry.Timing
	Peers       Peers          // other cells of the cluster; nil = there are none
	Share       func() Sharing // what other cells may have; nil = nothing
	KeptMax     int64          // bytes of blobs kept for them; 0 = 4 GiB, or 5 % of a smaller disk
	SlowAfter   time.Duration  // how long a pull may be slow while others wait; 0 = half a minute
}

// Host is what the policy says of one registry or server.
type Host = registry.Host

// ErrNoRoot means that this runnerd can run no containers.
var ErrNoRoot = errors.New("containers need a runnerd that runs as root: their file systems cannot be mounted otherwise")

// Client is runnerd's access to images. Its methods may be called from any goroutine.
type Client struct {
	options Options
	floor   uint64

	storeMutex sync.Mutex
	process    *process // `runnerd images`, nil while none runs

	mutex    sync.Mutex
	pulls    map[Digest]*pull
	blobs    map[Digest]*blobUse
	reserved uint64               // bytes that pulls under way will still write
	avoid    map[uint64]time.Time // cells that did not give what they said they had, until when
	slots    chan struct{}
	queued   int                // pulls that wait for a slot
	awaiting map[*pull]struct{} // pulls that somebody waits for
	calm     chan struct{}      // closed when awaiting becomes empty; nil while it is
	closed   bool
}

// Open prepares the directory. It starts nothing.
func Open(options Options) (*Client, error) {
	if options.Log == nil {
		options.Log = log.New(os.Stderr, "runnerd: ", log.LstdFlags|log.LUTC)
	}
	if options.Owners == nil {
		options.Owners = trust.Own()
	}
	if options.Idle == 0 {
		options.Idle = idleDefault
	}
	if options.JitterMax == 0 {
		options.JitterMax = jitterMax
	}
	if options.SlowAfter == 0 {
		options.SlowAfter = slowAfter
	}
	if options.Command == nil {
		options.Command = []string{"/proc/self/exe"}
	}
	if options.Share == nil {
		options.Share = func() Sharing { return policy.ShareNone }
	}
	if options.KeptMax == 0 {
		options.KeptMax = keptLimit(options.Directory)
	}
	if err := store.Prepare(options.Directory); err != nil {
		return nil, fmt.Errorf("image directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(options.Directory, modulesName), 0o700); err != nil {
		return nil, fmt.Errorf("image directory: %w", err)
	}
	c := &Client{
		options: options, floor: store.Floor(options.Directory), pulls: map[Digest]*pull{},
		blobs: map[Digest]*blobUse{}, slots: make(chan struct{}, pullsAtOnce), avoid: map[uint64]time.Time{},
		awaiting: map[*pull]struct{}{},
	}
	c.removeOldBlobs()
	c.removeUnfinishedModules()
	c.trimKept(0)
	return c, nil
}

// Close ends the children. What is mounted stays mounted.
func (c *Client) Close() {
	c.mutex.Lock()
	c.closed = true
	for _, p := range c.pulls {
		p.cancel()
	}
	c.mutex.Unlock()
	c.storeMutex.Lock()
	if c.process != nil {
		c.process.conn.Close()
	}
	c.storeMutex.Unlock()
}

// Ensure makes an image be here, from the store or by pulling it, and gives its configuration. Several
// callers share one pull; it ends when the last of them gives up. Errors say in one sentence what is
// wrong and what to do; errors.As with *Refusal tells that trying again cannot help.
func (c *Client) Ensure(ctx context.Context, reference string, digest [32]byte, progress func(Progress)) (Config, error) {
	return c.ensure(ctx, reference, digest, false, progress)
}

func (c *Client) ensure(ctx context.Context, reference string, digest [32]byte, ahead bool, progress func(Progress),
) (Config, error) {
	if digest == ([32]byte{}) {
		return Config{}, &Refusal{fmt.Sprintf("image %s has no digest: apply the workload again, or write %s@sha256:...",
			reference, reference)}
	}
	if _, config, err := c.find(ctx, digest); !errors.Is(err, store.ErrAbsent) {
		return config, err
	}
	err := c.share(ctx, digest, ahead, progress, c.jitter, func(ctx context.Context, p *pull) error {
		return c.pullImage(ctx, reference, digest, p)
	})
	if err != nil {
		return Config{}, err
	}
	_, config, err := c.find(ctx, digest)
	return config, err
}

// jitter keeps the cells that a dead one's work moves to from asking a registry all at once (F76).
func (c *Client) jitter(ctx context.Context) error {
	if c.options.JitterMax <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rand.N(c.options.JitterMax)):
		return nil
	}
}

// Refusal is an error that trying again cannot mend.
type Refusal struct{ Text string }

func (r *Refusal) Error() string { return r.Text }

func (c *Client) find(ctx context.Context, digest Digest) (Image, Config, error) {
	reply, err := c.request(ctx, store.Request{Operation: store.OperationFind, Digest: digest}, nil, nil)
	if err != nil || reply.Image == nil || reply.Config == nil {
		return Image{}, Config{}, err
	}
	return *reply.Image, *reply.Config, nil
}

// Mount gives the root file system of one instance: an image with a writable layer of its own. name is
// the instance's, [a-z0-9-]. ids map the files' owners (F139); diskMiB bounds what is written, 0 = only
// the disk does. Asking again for what is mounted gives the same path; after a reboot it begins anew.
func (c *Client) Mount(ctx context.Context, name string, digest [32]byte, ids IDRange, diskMiB uint32) (string, error) {
	reply, err := c.request(ctx, store.Request{Operation: store.OperationMount, Name: name, Digest: digest, IDs: ids,
		DiskMiB: diskMiB}, nil, nil)
	return reply.Path, err
}

// Expect says that a root with these ids will be wanted soon: what can be made ahead is, and the process that
// mounts roots is there. It is no error that changes anything.
func (c *Client) Expect(ctx context.Context, ids IDRange) error {
	_, err := c.request(ctx, store.Request{Operation: store.OperationExpect, IDs: ids}, nil, nil)
	return err
}

// Unmount takes a root away with everything that was written to it. There need not be one.
func (c *Client) Unmount(ctx context.Context, name string) error {
	_, err := c.request(ctx, store.Request{Operation: store.OperationUnmount, Name: name}, nil, nil)
	return err
}

// List gives the images and modules that are here. Without root there are no images.
func (c *Client) List(ctx context.Context) ([]Image, error) {
	modules, err := c.modules()
	if err != nil || os.Geteuid() != 0 {
		return modules, err
	}
	images, err := c.images(ctx, store.Request{Operation: store.OperationList}, nil, nil)
	return append(images, modules...), err
}

// Remove deletes one image or module; with names those of an image, and the image with the last one.
func (c *Client) Remove(ctx context.Context, digest [32]byte, names ...string) error {
	if err := os.Remove(c.modulePath(digest)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := c.request(ctx, store.Request{Operation: store.OperationRemove, Digest: digest, Names: names}, nil, nil)
	return err
}

// images collects the images that replies carry, at most store.ImagesMax.
func (c *Client) images(ctx context.Context, q store.Request, file *os.File, progress func(Progress)) ([]Image, error) {
	var list []Image
	_, err := c.request(ctx, q, file, func(r store.Reply) {
		if r.Image != nil && len(list) < store.ImagesMax {
			list = append(list, *r.Image)
		}
		if r.Layers > 0 && progress != nil {
			progress(Progress{Bytes: r.Bytes, Layer: r.Layer, Layers: r.Layers, Unpacking: true})
		}
	})
	return list, err
}

// architecture is that of this program, by the names that images use.
const architecture = runtime.GOARCH
