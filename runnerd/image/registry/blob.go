package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"colloid.net/runnerd/image/manifest"
)

// jittered gives half to all of a pause.
func jittered(pause time.Duration) time.Duration { return pause/2 + rand.N(pause/2+1) }

// watchedBody ends the request when nothing comes for a while.
type watchedBody struct {
	inner  io.ReadCloser
	cancel context.CancelCauseFunc
	ctx    context.Context
	timer  *time.Timer
	stall  time.Duration
	who    string
}

func (b *watchedBody) expire() {
	b.cancel(fmt.Errorf("%s sends nothing any more (for %v)", b.who, b.stall))
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	if n > 0 {
		b.timer.Reset(b.stall)
	}
	if err != nil && context.Cause(b.ctx) != nil { // an end that follows from giving up is none
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.inner.Close()
}

// fetchImage brings everything that belongs to an image of this architecture.
func (f *fetcher) fetchImage(ctx context.Context, first []byte, digest manifest.Digest) error {
	if err := f.deliver(first, digest); err != nil {
		return err
	}
	document, err := manifest.Parse(first)
	if err == nil && len(document.Manifests) > 0 {
		var chosen manifest.Descriptor
		if chosen, err = document.Select(f.job.Architecture); err == nil {
			text, fetchErr := f.document(ctx, "/manifests/"+chosen.Digest.String(), chosen.Digest)
			if fetchErr == nil {
				fetchErr = f.deliver(text, chosen.Digest)
			}
			if fetchErr != nil {
				return fetchErr
			}
			document, err = manifest.Parse(text)
		}
	}
	if err == nil && (len(document.Manifests) > 0 || document.Wasm) {
		err = errors.New("this is no container image")
	}
	if err != nil {
		return refuse("%s of %s: %v", f.job.Reference, f.who, err)
	}
	config, err := f.config(ctx, document)
	if err != nil {
		return err
	}
	if err := f.deliver(config, document.Config.Digest); err != nil {
		return err
	}
	_, diffs, _, err := manifest.ParseConfig(config, len(document.Layers))
	if err != nil {
		return refuse("%s of %s: %v", f.job.Reference, f.who, err)
	}
	return f.fetchLayers(ctx, document, diffs)
}

// deliver hands a document over in its file.
func (f *fetcher) deliver(text []byte, digest manifest.Digest) error {
	file, _, err := f.peer.Blob(digest, int64(len(text)))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(text, 0)
	return err
}

func (f *fetcher) fetchLayers(ctx context.Context, d *manifest.Document, diffs []manifest.Digest) error {
	layers := make([]Layer, len(d.Layers))
	for i, l := range d.Layers {
		layers[i] = Layer{Digest: l.Digest, Diff: diffs[i], Size: l.Size}
	}
	missing, err := f.peer.Layers(layers)
	if err != nil {
		return err
	}
	if len(missing) != len(layers) {
		return fmt.Errorf("runnerd answers for %d layers of %d", len(missing), len(layers))
	}
	for i, l := range layers {
		if missing[i] {
			f.total += l.Size
		}
	}
	f.layers = len(layers)
	for i, l := range layers {
		if !missing[i] {
			continue
		}
		f.layer = i + 1
		if err := f.fetchBlob(ctx, l.Digest, l.Size); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
		f.done += l.Size
	}
	return nil
}

// blob is the state of one download: what is in the file and its hash so far.
type blob struct {
	file    *os.File
	digest  manifest.Digest
	size    int64 // that is expected; the most there may be while exact is false
	exact   bool
	written int64
	hash    hash.Hash
}

// rewind begins again, or reads what is there already.
func (b *blob) rewind(offset int64) error {
	b.hash, b.written = sha256.New(), offset
	n, err := io.Copy(b.hash, io.NewSectionReader(b.file, 0, offset))
	if err != nil || n != offset {
		return fmt.Errorf("read what is there of %s: %d bytes of %d: %w", b.digest, n, offset, err)
	}
	return b.file.Truncate(offset)
}

// Write appends, never more than the blob may have.
func (b *blob) Write(p []byte) (int, error) {
	if b.written+int64(len(p)) > b.size {
		return 0, refuse("it sends more than the %d bytes that belong to %s", b.size, b.digest)
	}
	n, err := b.file.WriteAt(p, b.written)
	b.hash.Write(p[:n])
	b.written += int64(n)
	return n, err
}

// rest is the range of bytes that are still to come, "" for all.
func (b *blob) rest() string {
	switch {
	case b.written == 0:
		return ""
	case !b.exact:
		return fmt.Sprintf("bytes=%d-", b.written)
	}
	return fmt.Sprintf("bytes=%d-%d", b.written, b.size-1) // some registries insist on an end
}

func (b *blob) complete() bool { return !b.exact || b.written == b.size }
func (b *blob) right() bool    { return manifest.Digest(b.hash.Sum(nil)) == b.digest }

// fetchBlob downloads a blob of a known size, going on where an earlier attempt ended. If the whole then
// has the wrong digest, the beginning may be to blame: it is fetched once more from the start.
func (f *fetcher) fetchBlob(ctx context.Context, digest manifest.Digest, size int64) error {
	file, offset, err := f.peer.Blob(digest, size)
	if err != nil {
		return err
	}
	defer file.Close()
	b := &blob{file: file, digest: digest, size: size, exact: true}
	if offset < 0 || offset > size {
		offset = 0
	}
	if err := b.rewind(offset); err != nil {
		return err
	}
	if done, err := f.blobOfPeers(ctx, b); done || err != nil {
		return err
	}
	if err := f.connect(ctx); err != nil {
		return err
	}
	address, offset := f.base+"/blobs/"+digest.String(), b.written
	if err := f.download(ctx, address, b); err != nil {
		return err
	}
	if !b.right() && offset > 0 {
		if err := b.rewind(0); err != nil {
			return err
		}
		if err := f.download(ctx, address, b); err != nil {
			return err
		}
	}
	if !b.right() {
		return refuse("%s sends something with the digest %s instead of %s: nothing of it is used", f.who,
			manifest.Digest(b.hash.Sum(nil)), digest)
	}
	f.peers.count(f.who, size-offset)
	return nil
}

// download repeats requests until the blob is complete. Progress renews the patience.
func (f *fetcher) download(ctx context.Context, address string, b *blob) error {
	for !b.complete() || !b.exact {
		before := b.written
		err := f.retry(ctx, func() error { return f.continueBlob(ctx, address, b) })
		if err == nil && b.complete() {
			return nil
		}
		if b.written <= before || errors.As(err, new(refusal)) {
			if err == nil {
				err = fmt.Errorf("%s ended after %d of %d bytes", f.who, b.written, b.size)
			}
			return err
		}
	}
	return nil
}

func (f *fetcher) continueBlob(ctx context.Context, address string, b *blob) error {
	if b.exact && b.complete() {
		return nil
	}
	body, response, err := f.get(ctx, address, b.rest())
	if response != nil && response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		err = errors.Join(err, b.rewind(0))
	}
	if err != nil {
		return err
	}
	defer body.Close()
	if b.written > 0 && !continues(response, b.written) { // also after a module broke off
		if err := b.rewind(0); err != nil { // it sends the whole again
			return err
		}
	}
	if announced := response.ContentLength; announced > b.size-b.written {
		return refuse("%s announces %d bytes for %s, which has at most %d", f.who, announced+b.written, b.digest, b.size)
	}
	buffer := make([]byte, 256<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, writeErr := b.Write(buffer[:n]); writeErr != nil {
				return fmt.Errorf("%s: %w", f.who, writeErr)
			}
			f.progress(b.written)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("%s broke off after %d of %d bytes: %w", f.who, b.written, b.size, err)
		}
	}
	if !b.complete() {
		return fmt.Errorf("%s broke off after %d of %d bytes", f.who, b.written, b.size)
	}
	return nil
}

// continues reports whether an answer begins at the byte that was asked for.
func continues(response *http.Response, offset int64) bool {
	return response.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(response.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset))
}

const progressEvery = 200 * time.Millisecond

func (f *fetcher) progress(written int64) {
	if now := time.Now(); now.Sub(f.last) >= progressEvery {
		f.last = now
		f.peer.Progress(Message{Kind: MessageProgress, Bytes: f.done + written, Total: f.total, Layer: f.layer,
			LayerCount: f.layers, From: f.peers.current})
	}
}

// downloadModule fetches a plain file by its address.
func (f *fetcher) downloadModule(ctx context.Context) error {
	target, err := url.Parse(f.job.Reference)
	if err != nil || target.Host == "" {
		return refuse("%.200q is no address of a module", f.job.Reference)
	}
	f.who = hostName(target.Host)
	if f.guard, err = newGuard(f.job, f.who); err != nil {
		return err
	}
	f.client = &http.Client{Transport: f.guard, CheckRedirect: f.guard.redirect}
	if c := f.job.Credentials; c != nil {
		f.client.Transport = basic{f.guard, f.who, c}
	}
	file, offset, err := f.peer.Blob(f.job.Digest, f.job.SizeMax)
	if err != nil {
		return err
	}
	defer file.Close()
	b := &blob{file: file, digest: f.job.Digest, size: f.job.SizeMax}
	if err := b.rewind(max(0, min(offset, b.size))); err != nil {
		return err
	}
	resumed := b.written > 0
	if !b.right() {
		err = f.download(ctx, f.job.Reference, b)
	}
	if err == nil && resumed && !b.right() { // the beginning may be to blame
		if err = b.rewind(0); err == nil {
			err = f.download(ctx, f.job.Reference, b)
		}
	}
	if err != nil {
		return err
	}
	if !b.right() {
		return refuse("%s sends something with the digest %s instead of %s: nothing of it is used", f.who,
			manifest.Digest(b.hash.Sum(nil)), b.digest)
	}
	return nil
}

// basic adds the credentials of a host to requests to it, and to no others.
type basic struct {
	inner http.RoundTripper
	host  string
	c     *Credentials
}

func (t basic) RoundTrip(request *http.Request) (*http.Response, error) {
	if hostName(request.URL.Host) == t.host {
		request = request.Clone(request.Context())
		request.SetBasicAuth(t.c.Username, t.c.Password)
	}
	return t.inner.RoundTrip(request)
}

// fetchArtifact fetches the one layer of an artifact that holds a module.
func (f *fetcher) fetchArtifact(ctx context.Context) (Outcome, error) {
	text, outcome, err := f.resolve(ctx)
	if err != nil {
		return outcome, err
	}
	document, err := manifest.Parse(text)
	if err != nil {
		return outcome, refuse("%s of %s: %v", f.job.Reference, f.who, err)
	}
	if !document.Wasm || document.Layers[0].Size > f.job.SizeMax {
		return outcome, refuse("%s of %s is no WebAssembly module of at most %d bytes", f.job.Reference, f.who, f.job.SizeMax)
	}
	l := document.Layers[0]
	if l.Digest != f.job.Digest {
		return outcome, refuse("%s of %s is a module with the digest %s, expected %s", f.job.Reference, f.who, l.Digest,
			f.job.Digest)
	}
	f.total, f.layer, f.layers = l.Size, 1, 1
	return outcome, f.fetchBlob(ctx, l.Digest, l.Size)
}
