package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/logs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"colloid.net/runnerd/image/manifest"
)

// peer is runnerd as the fetcher sees it.
type peer interface {
	// Blob asks for the file of a blob, and how much of it is there.
	Blob(digest manifest.Digest, size int64) (file *os.File, offset int64, err error)
	// Layers asks which layers are needed.
	Layers([]Layer) (missing []bool, err error)
	// Peer asks for a blob of another cell, from an offset on. Without a file there is none.
	Peer(digest manifest.Digest, size, offset int64) (file *os.File, from Grant, err error)
	// Lied says that what the last one gave is not the blob, or not in time.
	Lied(why string)
	Progress(Message)
}

// Outcome of a Job.
type Outcome struct {
	Digest        manifest.Digest
	Architectures []string
	Sources       []string // how much came from where, for people
}

// fetcher carries out one Job.
type fetcher struct {
	job    *Job
	peer   peer
	guard  *guard
	client *http.Client
	base   string // of the repository: https://HOST/v2/REPOSITORY
	who    string // the registry
	done   int64  // bytes of layers that are complete
	total  int64
	layer  int
	layers int
	last   time.Time // of the last progress

	reference name.Tag
	connected bool // the registry has said how it wants to be authenticated with
	peers     peers
}

// Run carries out a job. The error is one sentence that names the registry and the way out.
func Run(ctx context.Context, job *Job, runnerd peer) (Outcome, error) {
	job.Timing.complete()
	logs.Warn, logs.Progress = log.New(io.Discard, "", 0), log.New(io.Discard, "", 0)
	ctx, cancel := context.WithTimeoutCause(ctx, job.Timing.Whole,
		fmt.Errorf("it took more than %v", job.Timing.Whole))
	defer cancel()
	f := &fetcher{job: job, peer: runnerd}
	outcome, err := f.run(ctx)
	if err != nil && f.guard != nil {
		err = f.guard.explain(err)
	}
	if err != nil && context.Cause(ctx) != nil && !errors.As(err, new(refusal)) {
		err = context.Cause(ctx)
	}
	return outcome, err
}

func (f *fetcher) run(ctx context.Context) (Outcome, error) {
	if f.job.Kind == JobModule && !strings.HasPrefix(f.job.Reference, "oci://") {
		return Outcome{Digest: f.job.Digest}, f.downloadModule(ctx)
	}
	if err := f.open(); err != nil {
		return Outcome{}, err
	}
	if f.job.Kind == JobModule {
		return f.fetchArtifact(ctx)
	}
	first, outcome, err := f.resolve(ctx)
	if err != nil || f.job.Kind == JobResolve {
		return outcome, err
	}
	err = f.fetchImage(ctx, first, outcome.Digest)
	outcome.Sources = f.peers.sources()
	return outcome, err
}

// open prepares access to the repository. Nothing is sent yet.
func (f *fetcher) open() (err error) {
	text := strings.TrimPrefix(f.job.Reference, "oci://")
	if f.reference, err = parseTag(text); err != nil {
		return refuse("%.200q is no reference of an image: %v", text, err)
	}
	f.who = hostName(f.reference.RegistryStr())
	f.guard, err = newGuard(f.job, f.who)
	return err
}

// connect asks the registry how it wants to be authenticated with, once. A job that gets everything from
// other cells never does.
func (f *fetcher) connect(ctx context.Context) error {
	if f.connected {
		return nil
	}
	scheme := "https"
	if f.guard.hosts[f.who].HTTP { // the guard has the library ask in plain HTTP
		scheme = "http"
	}
	registry, err := name.NewRegistry(f.reference.RegistryStr(), name.WeakValidation)
	if err != nil {
		return refuse("%.200q is no registry: %v", f.reference.RegistryStr(), err)
	}
	authenticator := authn.Anonymous
	if c := f.job.Credentials; c != nil {
		authenticator = &authn.Basic{Username: c.Username, Password: c.Password}
	}
	scope := f.reference.Scope(transport.PullScope)
	var wrapped http.RoundTripper
	err = f.retry(ctx, func() error {
		wrapped, err = transport.NewWithContext(ctx, registry, authenticator, f.guard, []string{scope})
		return f.explainAccess(err)
	})
	if err != nil {
		return err
	}
	f.client = &http.Client{Transport: wrapped, CheckRedirect: f.guard.redirect}
	f.base = scheme + "://" + registry.RegistryStr() + "/v2/" + f.reference.RepositoryStr()
	f.connected = true
	return nil
}

// explainAccess turns an error of the library into a sentence.
func (f *fetcher) explainAccess(err error) error {
	var answer *transport.Error
	switch {
	case err == nil:
		return nil
	case errors.As(f.guard.explain(err), new(refusal)):
		return f.guard.explain(err)
	case errors.As(err, &answer) && answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests:
		return refusal{statusError(f.who, answer.StatusCode, f.job)}
	case errors.As(err, &answer):
		return statusError(f.who, answer.StatusCode, f.job)
	}
	err = unwrapURL(err)
	switch {
	case isTimeout(err):
		return fmt.Errorf("%s does not answer: %w", f.who, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s ends the connection without an answer: %w", f.who, err)
	}
	return fmt.Errorf("%s cannot be reached: %w", f.who, err)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

func statusError(who string, status int, job *Job) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		if job.Credentials == nil {
			return fmt.Errorf("%s refuses %s (%d): it does not exist, or needs credentials that this host does not have",
				who, job.Reference, status)
		}
		return fmt.Errorf("%s refuses %s with the credentials of user %q (%d): check them, and that this user may pull",
			who, job.Reference, job.Credentials.Username, status)
	case http.StatusNotFound:
		if job.Kind == JobModule && !strings.HasPrefix(job.Reference, "oci://") {
			return fmt.Errorf("%s has no %s: check the address", who, job.Reference)
		}
		if job.Digest != (manifest.Digest{}) { // the tag is not what was asked for
			return fmt.Errorf("%s has no sha256:%s... of %s: check the name and the digest", who, job.Digest.Hex()[:12], job.Reference)
		}
		return fmt.Errorf("%s has no %s: check the name and the tag", who, job.Reference)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%s answers that this host asks too often: credentials may raise its limit", who)
	}
	return fmt.Errorf("%s answers with status %d", who, status)
}

// resolve fetches the first document: by digest if there is one, else by tag.
func (f *fetcher) resolve(ctx context.Context) ([]byte, Outcome, error) {
	outcome := Outcome{Digest: f.job.Digest}
	if f.job.Kind == JobModule {
		outcome.Digest = manifest.Digest{} // what is compared is the module itself
	}
	target := f.reference.TagStr()
	if outcome.Digest != (manifest.Digest{}) {
		target = outcome.Digest.String()
	}
	text, err := f.document(ctx, "/manifests/"+target, outcome.Digest)
	if err != nil {
		return nil, outcome, err
	}
	outcome.Digest = sha256.Sum256(text)
	if f.job.Kind != JobResolve {
		return text, outcome, nil
	}
	document, err := manifest.Parse(text)
	if err != nil {
		return nil, outcome, refuse("%s of %s: %v", f.job.Reference, f.who, err)
	}
	outcome.Architectures = document.Architectures()
	if len(document.Manifests) == 0 {
		config, err := f.config(ctx, document)
		if err != nil {
			return nil, outcome, err
		}
		parsed, _, _, err := manifest.ParseConfig(config, len(document.Layers))
		if err != nil {
			return nil, outcome, refuse("%s of %s: %v", f.job.Reference, f.who, err)
		}
		outcome.Architectures = []string{parsed.Architecture}
	}
	return text, outcome, nil
}

func (f *fetcher) config(ctx context.Context, d *manifest.Document) ([]byte, error) {
	return f.document(ctx, "/blobs/"+d.Config.Digest.String(), d.Config.Digest)
}

// document fetches a small document and compares its digest, unless that is zero.
func (f *fetcher) document(ctx context.Context, path string, digest manifest.Digest) (text []byte, err error) {
	if text, found := f.documentOfPeers(ctx, digest); found {
		return text, nil
	}
	if err := f.connect(ctx); err != nil {
		return nil, err
	}
	err = f.retry(ctx, func() error {
		body, _, err := f.get(ctx, f.base+path, "")
		if err != nil {
			return err
		}
		defer body.Close()
		text, err = io.ReadAll(io.LimitReader(body, manifest.DocumentMax+1))
		if err != nil {
			return fmt.Errorf("%s broke off: %w", f.who, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(text) > manifest.DocumentMax {
		return nil, refuse("%s sends a document of more than %d bytes", f.who, manifest.DocumentMax)
	}
	if got := manifest.Digest(sha256.Sum256(text)); digest != (manifest.Digest{}) && got != digest {
		return nil, refuse("%s sends something with the digest %s instead of %s: nothing of it is used", f.who, got, digest)
	}
	f.peers.count(f.who, int64(len(text)))
	return text, nil
}

// get makes one request, for a range of bytes unless that is empty. The body ends with an error when nothing comes for a while.
func (f *fetcher) get(ctx context.Context, address, bytes string) (io.ReadCloser, *http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		cancel(nil)
		return nil, nil, refuse("%.200q is no address: %v", address, err)
	}
	request.Header.Set("Accept", strings.Join(append(slices.Clone(manifest.Accepted), "*/*"), ", "))
	if bytes != "" {
		request.Header.Set("Range", bytes)
	}
	response, err := f.client.Do(request)
	if err != nil {
		cancel(nil)
		return nil, nil, f.explainAccess(unwrapURL(err))
	}
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusPartialContent && bytes != "" {
		body := &watchedBody{inner: response.Body, cancel: cancel, stall: f.job.Timing.Stall, ctx: ctx,
			who: f.who}
		body.timer = time.AfterFunc(body.stall, body.expire)
		return body, response, nil
	}
	response.Body.Close()
	cancel(nil)
	err = statusError(f.who, response.StatusCode, f.job)
	if response.StatusCode < 500 && response.StatusCode != http.StatusTooManyRequests &&
		response.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		err = refusal{err}
	}
	return nil, response, err
}

// unwrapURL takes the address off an error of the client: it may hold a signature, and is long.
func unwrapURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// triesMax is how often in a row something may fail without any progress.
const triesMax = 5

// tries is fewer when an operator waits for the answer.
func (f *fetcher) tries() int {
	if f.job.Kind == JobResolve {
		return 2
	}
	return triesMax
}

// retry repeats what may work the next time.
func (f *fetcher) retry(ctx context.Context, try func() error) error {
	pause := f.job.Timing.Retry
	for n := 1; ; n++ {
		err := try()
		if err == nil || n >= f.tries() || errors.As(err, new(refusal)) || ctx.Err() != nil ||
			f.job.Kind == JobResolve && isTimeout(err) { // somebody has waited long enough
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(jittered(pause)):
		}
		pause *= 2
	}
}
