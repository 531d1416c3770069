package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
)

// pull is one that several callers may wait for.
type pull struct {
	cancel context.CancelFunc
	over   chan struct{}
	err    error // once over is closed
	// held are blobs that it uses between two of its turns, see imageBlobs.end.
	held map[Digest]bool
	// turn ends with the present turn, before the pull itself does.
	turn context.Context
	// wanted is closed once a start or an operator waits for it. Until then it is one that is made ahead (ahead.go).
	wanted chan struct{}

	mutex   sync.Mutex
	waiters map[int]func(Progress)
	next    int
	last    Progress
	yield   context.CancelCauseFunc // ends the turn of a pull that is made ahead, nil without one
	hurries []func()                // what is to be done when wanted is closed
}

func (p *pull) report(progress Progress) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.last = progress
	for _, f := range p.waiters {
		if f != nil {
			f(progress)
		}
	}
}

// join adds a waiter, unless the pull has been given up.
func (p *pull) join(progress func(Progress)) (id int, ok bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.waiters == nil {
		return 0, false
	}
	p.next++
	p.waiters[p.next] = progress
	if progress != nil && p.last != (Progress{}) {
		progress(p.last)
	}
	return p.next, true
}

// leave takes a waiter away; without one the pull ends.
func (p *pull) leave(id int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.waiters, id)
	if len(p.waiters) == 0 {
		p.waiters = nil
		p.cancel()
	}
}

// share runs work once for everybody who wants the same digest at the same time.
// pause is what the pull waits for before it takes its place among those that run, nil for nothing. Who asks ahead waits
// for what nobody needs yet.
func (c *Client) share(ctx context.Context, digest Digest, ahead bool, progress func(Progress),
	pause func(context.Context) error, work func(context.Context, *pull) error,
) error {
	if pause == nil {
		pause = func(context.Context) error { return nil }
	}
	for {
		p, id, err := c.joinPull(digest, ahead, progress, pause, work)
		if err != nil {
			return err
		}
		if p == nil {
			continue // that one was just given up
		}
		select {
		case <-p.over:
			p.leave(id)
			return p.err
		case <-ctx.Done():
			p.leave(id)
			return ctx.Err()
		}
	}
}

func (c *Client) joinPull(digest Digest, ahead bool, progress func(Progress), pause func(context.Context) error,
	work func(context.Context, *pull) error,
) (*pull, int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		return nil, 0, os.ErrClosed
	}
	if p := c.pulls[digest]; p != nil {
		if id, ok := p.join(progress); ok {
			if !ahead {
				c.want(p)
			}
			return p, id, nil
		}
		c.mutex.Unlock()
		<-p.over
		c.mutex.Lock()
		return nil, 0, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &pull{cancel: cancel, over: make(chan struct{}), waiters: map[int]func(Progress){}, turn: ctx,
		wanted: make(chan struct{})}
	id, _ := p.join(progress)
	c.pulls[digest] = p
	if !ahead {
		c.want(p)
	}
	go func() {
		defer cancel()
		if !ahead {
			_ = pause(ctx) // an error is that ctx is over
		}
		if p.err = c.turns(ctx, p, work); p.err != nil {
			_ = os.Remove(c.unfinishedPath(digest)) // of a module that waited for another turn when it was given up
		}
		c.mutex.Lock()
		for blob := range p.held { // it was given up between two turns
			c.letGo(blob)
		}
		delete(c.pulls, digest)
		c.unwant(p)
		c.mutex.Unlock()
		close(p.over)
	}()
	return p, id, nil
}

// pullImage brings an image from its registry into the store.
func (c *Client) pullImage(ctx context.Context, reference string, digest Digest, p *pull) error {
	if os.Geteuid() != 0 {
		return &Refusal{ErrNoRoot.Error()}
	}
	full, _, host, err := registry.Normalize(reference)
	if err != nil {
		return &Refusal{fmt.Sprintf("%.200q is no reference of an image: %v", reference, err)}
	}
	if host == localHost {
		return &Refusal{fmt.Sprintf("image %s is not loaded on this machine: colloid image load FILE there", full)}
	}
	job := &registry.Job{Kind: registry.JobImage, Reference: full, Digest: digest, Architecture: architecture,
		Peers: c.options.Peers != nil}
	b := &imageBlobs{client: c, image: digest, job: job, pull: p, used: p.held}
	p.held = nil
	defer func() { b.end(err) }()
	last, err := c.fetch(job, b, p)
	if err != nil {
		return err
	}
	if len(last.Sources) > 0 {
		c.options.Log.Printf("image %s@%s: %.500s", full, digest, strings.Join(last.Sources, ", "))
	}
	if err = c.importImage(ctx, full, digest, p); err != nil {
		err = fmt.Errorf("image %s: %w", full, err)
	}
	return err
}

// importImage makes an image of blobs that are here.
func (c *Client) importImage(ctx context.Context, full string, digest Digest, p *pull) error {
	q := store.Request{Operation: store.OperationImport, Reference: full, Digest: digest, Architecture: architecture,
		Ahead: !p.isWanted()}
	if q.Ahead {
		defer p.unhurried(c.raiseStore)()
	}
	reply, err := c.request(ctx, q, nil, func(r store.Reply) {
		p.report(Progress{Layer: r.Layer, Layers: r.Layers, Bytes: r.Bytes, Unpacking: true})
	})
	if err != nil && reply.GaveWay {
		return errYield
	}
	return err
}

// blobUse is a file in blobs/ that pulls use.
type blobUse struct {
	users int
	turn  chan struct{} // holds one token: who has it may give the file to its fetcher
	// private: somebody may have got something of it with credentials.
	private, opened bool
}

// imageBlobs grants what belongs to one image.
type imageBlobs struct {
	client   *Client
	image    Digest
	job      *registry.Job
	asked    uint64 // cell that gave the last blob
	pull     *pull
	used     map[Digest]bool
	current  *blobUse // whose turn this pull has
	reserved uint64
}

var errBlobSize = errors.New("the fetcher asks for a blob of impossible size")

func (b *imageBlobs) blob(ctx context.Context, digest Digest, size int64) (*os.File, int64, error) {
	if size < 0 || size > manifest.LayerSizeMax {
		return nil, 0, errBlobSize
	}
	b.passOn()
	use := b.use(digest)
	select {
	case <-use.turn:
		b.current = use
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	path := b.client.blobPath(digest)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && info.Size() > size {
		err = file.Truncate(0)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	offset := info.Size()
	b.client.mutex.Lock()
	// Of what an earlier run left, nobody knows any more how it was got.
	use.private = use.private || b.job.Credentials != nil || offset > 0 && !use.opened
	use.opened = true
	b.client.mutex.Unlock()
	if offset > size {
		offset = 0
	}
	return file, offset, nil
}

// use notes that this pull needs a blob, so that no other removes it.
func (b *imageBlobs) use(digest Digest) *blobUse {
	c := b.client
	c.mutex.Lock()
	defer c.mutex.Unlock()
	use := c.blobs[digest]
	if use == nil {
		use = &blobUse{turn: make(chan struct{}, 1)}
		use.turn <- struct{}{}
		c.blobs[digest] = use
	}
	if b.used == nil {
		b.used = map[Digest]bool{}
	}
	if !b.used[digest] {
		b.used[digest] = true
		use.users++
	}
	return use
}

func (b *imageBlobs) passOn() {
	if b.current != nil {
		b.current.turn <- struct{}{}
		b.current = nil
	}
}

// layers asks the store which layers it lacks, and reserves room for them.
func (b *imageBlobs) layers(ctx context.Context, layers []registry.Layer) ([]bool, error) {
	diffs := make([]Digest, len(layers))
	for i, l := range layers {
		diffs[i] = l.Diff
	}
	reply, err := b.client.request(ctx, store.Request{Operation: store.OperationMissing, Diffs: diffs}, nil, nil)
	if err != nil {
		return nil, err
	}
	if len(reply.Missing) != len(layers) {
		return nil, fmt.Errorf("the image store answers for %d layers of %d", len(reply.Missing), len(layers))
	}
	wanted := uint64(0)
	for i, l := range layers {
		if l.Size < 0 || l.Size > manifest.LayerSizeMax {
			return nil, errBlobSize
		}
		if reply.Missing[i] {
			wanted += uint64(l.Size)
		}
	}
	return reply.Missing, b.reserve(wanted)
}

// reserve keeps two pulls from both counting on the same room.
func (b *imageBlobs) reserve(wanted uint64) error {
	c := b.client
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.trimKept(c.reserved + unpackedEstimate*wanted) // what is kept for others gives way
	if err := store.CheckRoom(c.options.Directory, c.floor, c.reserved+wanted); err != nil {
		return err
	}
	c.reserved += wanted
	b.reserved += wanted
	return nil
}

func (b *imageBlobs) progress(p Progress) { b.pull.report(p) }

// end gives back what the pull held. What it brought is in the store now, or was refused; an interrupted
// pull leaves its blobs, and the next one goes on from there. One that gave way as slow goes on itself: how it got what
// it has stays known.
func (b *imageBlobs) end(err error) {
	b.passOn()
	c := b.client
	sharing := c.options.Share() // not with the lock: who answers may wait for it
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.reserved -= b.reserved
	if gaveWay(err) {
		b.pull.held = b.used
		return
	}
	var refused *Refusal
	for digest := range b.used {
		use, last := c.letGo(digest)
		if !last || err == nil && c.keep(digest, use.private, sharing) {
			continue
		}
		if err == nil || errors.As(err, &refused) {
			_ = os.Remove(c.blobPath(digest))
		}
	}
	c.trimKept(0)
}

// letGo ends the use of a blob by a pull, with the lock held. It reports whether no other uses it.
func (c *Client) letGo(digest Digest) (use *blobUse, last bool) {
	use = c.blobs[digest]
	if use.users--; use.users > 0 {
		return use, false
	}
	delete(c.blobs, digest)
	return use, true
}

func (c *Client) blobPath(digest Digest) string {
	return filepath.Join(c.options.Directory, "blobs", store.BlobName(digest))
}

// removeOldBlobs removes what pulls left that nobody went on with.
func (c *Client) removeOldBlobs() {
	directory := filepath.Join(c.options.Directory, "blobs")
	entries, _ := os.ReadDir(directory)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > blobAgeMax {
			_ = os.Remove(filepath.Join(directory, entry.Name()))
		}
	}
}
