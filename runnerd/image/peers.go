package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
	"colloid.net/runnerd/policy"
)

// Blobs for other cells (F76). What a pull brought is kept as it came, beside the layers that were made of
// it: its digest is of the compressed bytes, and no two compressors give the same. Where room is short, what
// is kept goes first. docs/decisions.md has the figures behind this.
const (
	keptMax = 4 << 30
	// unpackedEstimate is how many times its size a blob may need in all until it is unpacked.
	unpackedEstimate = 4
	// avoidFor is how long a cell that gave something wrong, or stalled, is not asked again; avoidMax how many
	// are remembered.
	avoidFor = 10 * time.Minute
	avoidMax = 64
)

// Sharing is what the policy says of other cells.
type Sharing = policy.Sharing

// Peers are the other cells of the cluster. Its methods may be called from any goroutine.
type Peers interface {
	// Blob asks cells that may have an image for a blob of it, from an offset on. It gives a socket from which
	// what one of them sends can be read, or says why none does; ErrAlone if there is none to ask.
	Blob(ctx context.Context, image, digest [32]byte, offset int64, avoid []uint64) (file *os.File, cell uint64, err error)
}

// ErrAlone means that no cell is known to have an image.
var ErrAlone = errors.New("no cell is known to have it")

// ErrUnshared means that this host does not give a blob to other cells, because it has it not or must not.
var ErrUnshared = errors.New("this cell does not have it, or does not share it")

// noPeers is the part of a granter that asks nobody.
type noPeers struct{}

func (noPeers) peer(context.Context, Digest, int64, int64) (*os.File, registry.Grant) {
	return nil, registry.Grant{Alone: true}
}

func (noPeers) lied(string) {}

// peer asks the other cells.
func (b *imageBlobs) peer(ctx context.Context, digest Digest, _, offset int64) (*os.File, registry.Grant) {
	c := b.client
	b.asked = 0
	if c.options.Peers == nil {
		return nil, registry.Grant{Alone: true}
	}
	file, cell, err := c.options.Peers.Blob(ctx, b.image, digest, max(offset, 0), c.avoided())
	if err != nil {
		return nil, registry.Grant{Alone: errors.Is(err, ErrAlone)}
	}
	b.asked = cell
	grant := registry.Grant{Cell: cellName(cell)}
	b.pull.report(Progress{From: "cell " + grant.Cell})
	return file, grant
}

func cellName(cell uint64) string {
	const digits = "0123456789abcdef"
	var text [16]byte
	for i := range text {
		text[i] = digits[cell>>(60-4*i)&0xf]
	}
	return string(text[:])
}

// lied remembers the cell that gave the last blob. What the fetcher says of it costs that cell nothing but to
// be asked.
func (b *imageBlobs) lied(why string) {
	if b.asked == 0 {
		return
	}
	c := b.client
	c.options.Log.Printf("blob refused: %.300q", why)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.avoid) >= avoidMax {
		clear(c.avoid)
	}
	c.avoid[b.asked] = time.Now().Add(avoidFor)
	b.asked = 0
}

// avoided lists the cells not to ask.
func (c *Client) avoided() (list []uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := time.Now()
	for cell, until := range c.avoid {
		if until.Before(now) {
			delete(c.avoid, cell)
			continue
		}
		list = append(list, cell)
	}
	return list
}

// Shared opens a blob for another cell, at an offset, for reading.
func (c *Client) Shared(digest [32]byte, offset int64) (*os.File, error) {
	sharing := c.options.Share()
	if sharing == policy.ShareNone {
		return nil, ErrUnshared
	}
	for _, private := range []bool{false, true} {
		if private && sharing != policy.ShareAll {
			break
		}
		path := c.keptPath(digest, private)
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err == nil && (!info.Mode().IsRegular() || offset < 0 || offset > info.Size()) {
			err = ErrUnshared
		}
		if err == nil {
			_, err = file.Seek(offset, 0)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		now := time.Now()
		_ = os.Chtimes(path, now, now) // what is asked for stays longest
		return file, nil
	}
	return nil, ErrUnshared
}

func (c *Client) keptPath(digest Digest, private bool) string {
	return filepath.Join(c.options.Directory, store.KeptName, store.KeptBlobName(digest, private))
}

// keep puts a blob that became part of an image where other cells may have it. It reports false where the
// policy shares nothing of the kind. Nobody writes to the file any more: its last fetcher has ended.
func (c *Client) keep(digest Digest, private bool, sharing Sharing) bool {
	if sharing == policy.ShareNone || private && sharing != policy.ShareAll {
		return false
	}
	if _, err := os.Lstat(c.keptPath(digest, false)); err == nil {
		return false // it is there already, for everybody
	}
	path := c.keptPath(digest, private)
	if err := os.Rename(c.blobPath(digest), path); err != nil {
		return false
	}
	if !private {
		_ = os.Remove(c.keptPath(digest, true))
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return true
}

func keptLimit(directory string) int64 {
	var stat unix.Statfs_t
	if unix.Statfs(directory, &stat) != nil {
		return keptMax
	}
	return min(keptMax, int64(stat.Blocks)*stat.Bsize/20)
}

// trimKept removes the blobs that were asked for least recently until the rest is within its bound and the
// disk has so many bytes free beside what images leave to others.
func (c *Client) trimKept(wanted uint64) {
	directory := filepath.Join(c.options.Directory, store.KeptName)
	entries, _ := os.ReadDir(directory)
	var infos []os.FileInfo
	total := int64(0)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			infos = append(infos, info)
			total += info.Size()
		}
	}
	slices.SortFunc(infos, func(a, b os.FileInfo) int {
		if order := a.ModTime().Compare(b.ModTime()); order != 0 {
			return order
		}
		return strings.Compare(a.Name(), b.Name())
	})
	for _, info := range infos {
		if total <= c.options.KeptMax && store.CheckRoom(c.options.Directory, c.floor, wanted) == nil {
			return
		}
		if os.Remove(filepath.Join(directory, info.Name())) == nil {
			total -= info.Size()
		}
	}
}
