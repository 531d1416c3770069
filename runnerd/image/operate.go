package image

import (
	"context"
	"fmt"
	"os"

	"colloid.net/runnerd/image/registry"
	"colloid.net/runnerd/image/store"
)

// Resolved is what a tag means at the moment (F84).
type Resolved struct {
	Reference     string // complete
	Digest        Digest
	Architectures []string // what the image exists for (F77)
	Loaded        bool     // it is an image that an operator loaded here
}

// localHost is in the names of images that come from no registry: an operator loads them on each machine.
const localHost = "localhost"

// Resolve asks the registry what a tag means. Nothing is stored. An image that was loaded here under that
// very name counts where the registry does not answer or does not know it.
func (c *Client) Resolve(ctx context.Context, reference string) (Resolved, error) {
	full, _, host, err := registry.Normalize(reference)
	if err != nil {
		return Resolved{}, &Refusal{fmt.Sprintf("%.200q is no reference of an image: %v", reference, err)}
	}
	r := Resolved{Reference: full}
	if host == localHost {
		return c.resolveLoaded(ctx, r, &Refusal{fmt.Sprintf("no image %s was loaded here: see `colloid image ls`", full)})
	}
	outcome, err := c.fetch(&registry.Job{Kind: registry.JobResolve, Reference: full}, noBlobs{}, &pull{turn: ctx})
	if err != nil {
		return c.resolveLoaded(ctx, r, err)
	}
	r.Digest, r.Architectures = outcome.Digest, outcome.Architectures
	return r, nil
}

// resolveLoaded looks among the images that an operator loaded.
func (c *Client) resolveLoaded(ctx context.Context, r Resolved, otherwise error) (Resolved, error) {
	if os.Geteuid() != 0 {
		return r, otherwise
	}
	images, err := c.List(ctx)
	if err != nil {
		return r, otherwise
	}
	for _, image := range images {
		for _, known := range image.References {
			if name, _, _, err := registry.Normalize(known); err == nil && name == r.Reference && image.Loaded {
				r.Digest, r.Architectures, r.Loaded = image.Digest, []string{image.Architecture}, true
				return r, nil
			}
		}
	}
	return r, otherwise
}

// noBlobs grants nothing: resolving leaves nothing behind.
type noBlobs struct{ noPeers }

func (noBlobs) blob(context.Context, Digest, int64) (*os.File, int64, error) {
	return nil, 0, fmt.Errorf("the fetcher asks for a blob to resolve a tag")
}

func (noBlobs) layers(context.Context, []registry.Layer) ([]bool, error) {
	return nil, fmt.Errorf("the fetcher asks for layers to resolve a tag")
}

func (noBlobs) progress(Progress) {}

// Pull is Ensure for an operator: at once, and by tag too. It gives the image that is here then.
func (c *Client) Pull(ctx context.Context, reference string, digest Digest, progress func(Progress)) (Image, error) {
	if digest == (Digest{}) {
		resolved, err := c.Resolve(ctx, reference)
		if err != nil {
			return Image{}, err
		}
		digest = resolved.Digest
	}
	if image, _, err := c.find(ctx, digest); err == nil {
		return image, nil
	}
	err := c.share(ctx, digest, false, progress, nil, func(ctx context.Context, p *pull) error {
		return c.pullImage(ctx, reference, digest, p)
	})
	if err != nil {
		return Image{}, err
	}
	image, _, err := c.find(ctx, digest)
	return image, err
}

// ErrAbsent is what Remove gives of an image that is not here.
var ErrAbsent = store.ErrAbsent

// IsModule reports whether a file begins as a WebAssembly module does.
func IsModule(file *os.File) bool {
	var magic [len(moduleMagic)]byte
	_, err := file.ReadAt(magic[:], 0)
	return err == nil && string(magic[:]) == moduleMagic
}

// Load imports the images of an archive, or a Wasm module, from an open file.
func (c *Client) Load(ctx context.Context, file *os.File, progress func(Progress)) ([]Image, error) {
	if IsModule(file) {
		digest, err := c.keepModule(file, Digest{})
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		return []Image{{Digest: digest, Size: info.Size(), Architecture: "wasm", Loaded: true}}, nil
	}
	return c.images(ctx, store.Request{Operation: store.OperationLoad, Architecture: architecture}, file, progress)
}

// Normalize completes a reference; repository is it without the tag.
func Normalize(reference string) (full, repository string, err error) {
	full, repository, _, err = registry.Normalize(reference)
	return full, repository, err
}
