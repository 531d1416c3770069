package registry

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"colloid.net/runnerd/image/manifest"
	"colloid.net/workload"
)

// Version of Job, Message and Grant.
const Version = 1

// Kinds of a Job.
const (
	JobResolve = "resolve" // Reference to a digest
	JobImage   = "image"   // an image by Digest, or by what Reference resolves to
	JobModule  = "module"  // the file behind an https or http URL, or the one layer of an oci:// artifact
)

// Job says what to fetch.
type Job struct {
	Version      int             `json:"version"`
	Kind         string          `json:"kind"`
	Reference    string          `json:"reference"`
	Digest       manifest.Digest `json:"digest,omitzero"`
	Architecture string          `json:"architecture,omitempty"`
	SizeMax      int64           `json:"size_max,omitempty"` // of a module
	Hosts        []Host          `json:"hosts,omitempty"`
	Credentials  *Credentials    `json:"credentials,omitempty"` // those of the registry, nil = none
	Timing       Timing          `json:"timing"`
	Peers        bool            `json:"peers,omitempty"` // other cells may be asked for blobs (F76)
}

// Host is what the policy says of one registry or server.
type Host struct {
	Name    string `json:"name"` // HOST or HOST:PORT, as in references
	HTTP    bool   `json:"http,omitempty"`
	Private bool   `json:"private,omitempty"` // may have an address that is not public
	CA      []byte `json:"ca,omitempty"`      // PEM of certificates to trust instead of the system's
}

// Timing bounds a Job. Zero fields mean the defaults; tests shorten them.
type Timing struct {
	Whole time.Duration `json:"whole,omitempty"` // an hour
	Stall time.Duration `json:"stall,omitempty"` // 30 s
	Retry time.Duration `json:"retry,omitempty"` // first pause, 1 s, doubling
	// PeerStall and PeerWhole bound what another cell may take for a blob, beside the time for its size at
	// peerRate: 10 s without a byte, 30 s.
	PeerStall time.Duration `json:"peer_stall,omitempty"`
	PeerWhole time.Duration `json:"peer_whole,omitempty"`
}

// Kinds of a Message.
const (
	MessageBlob     = "blob"     // wants a descriptor for Digest of Size bytes
	MessageLayers   = "layers"   // wants to know which of Layers are needed
	MessagePeer     = "peer"     // wants a blob from another cell: Digest of at most Size bytes, from Offset on
	MessageLied     = "lied"     // the cell of the last MessagePeer did not give the blob; Error says how
	MessageProgress = "progress" // Bytes of Total, Layer of LayerCount, From
	MessageDone     = "done"     // Digest, Architectures and Sources; the process ends
	MessageFailed   = "failed"   // Error; the process ends
)

// Message goes from the fetcher to runnerd.
type Message struct {
	Kind          string          `json:"kind"`
	Digest        manifest.Digest `json:"digest,omitzero"`
	Size          int64           `json:"size,omitempty"`
	Layers        []Layer         `json:"layers,omitempty"`
	Bytes         int64           `json:"bytes,omitempty"`
	Total         int64           `json:"total,omitempty"`
	Layer         int             `json:"layer,omitempty"`
	LayerCount    int             `json:"layer_count,omitempty"`
	Architectures []string        `json:"architectures,omitempty"`
	Offset        int64           `json:"offset,omitempty"`
	From          string          `json:"from,omitempty"` // registry or cell
	Sources       []string        `json:"sources,omitempty"`
	Error         string          `json:"error,omitempty"`
	Refused       bool            `json:"refused,omitempty"` // trying again cannot help
}

// Layer of an image.
type Layer struct {
	Digest manifest.Digest `json:"digest"`
	Diff   manifest.Digest `json:"diff"`
	Size   int64           `json:"size"`
}

// Grant answers MessageBlob and MessagePeer, beside the descriptor, and MessageLayers. The descriptor for
// MessagePeer is a socket from which to read; without one no cell gives the blob.
type Grant struct {
	Offset  int64  `json:"offset,omitempty"` // so many bytes of the blob are there
	Missing []bool `json:"missing,omitempty"`
	Cell    string `json:"cell,omitempty"`  // who sends
	Alone   bool   `json:"alone,omitempty"` // no cell is known to have the image: do not ask again
}

// Whole is how long a job may take.
func Whole(t Timing) time.Duration { t.complete(); return t.Whole }

func (t *Timing) complete() {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&t.Whole, time.Hour}, {&t.Stall, 30 * time.Second}, {&t.Retry, time.Second}, {&t.PeerStall, 10 * time.Second},
		{&t.PeerWhole, 30 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
}

// dockerName is what everybody calls the registry whose address is dockerHost.
const (
	dockerName = "docker.io"
	dockerHost = "index.docker.io"
)

// hostName gives the name by which policy and credentials know a host.
func hostName(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ":443")
	if host == dockerHost {
		return dockerName
	}
	return host
}

// Normalize completes a reference: registry, repository and tag, docker.io/library/nginx:latest for
// nginx. A digest behind @ is cut off. host is the registry alone.
func Normalize(reference string) (full, repository, host string, err error) {
	parsed, err := parseTag(reference)
	if err != nil {
		return "", "", "", err
	}
	host = hostName(parsed.RegistryStr())
	repository = host + "/" + parsed.RepositoryStr()
	return repository + ":" + parsed.TagStr(), repository, host, nil
}

// repositoryForm is stricter than the library, as workload.ValidRegistryHost is, which takes "https:" and ".." for hosts.
var repositoryForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)

// parseTag reads a reference without what stands behind an @.
func parseTag(reference string) (name.Tag, error) {
	reference, _, _ = strings.Cut(reference, "@")
	parsed, err := name.NewTag(reference, name.WeakValidation)
	if err != nil {
		return parsed, err
	}
	if !workload.ValidRegistryHost(parsed.RegistryStr()) || !repositoryForm.MatchString(parsed.RepositoryStr()) {
		return parsed, fmt.Errorf("registry %.80q or repository %.80q has an impossible name", parsed.RegistryStr(),
			parsed.RepositoryStr())
	}
	return parsed, nil
}

// HostOf gives the name of the host that a Job first talks to, "" if its reference is none.
func HostOf(reference string) string {
	if !strings.HasPrefix(reference, "oci://") && strings.Contains(reference, "://") {
		target, err := url.Parse(reference)
		if err != nil {
			return ""
		}
		return hostName(target.Host)
	}
	_, _, host, err := Normalize(strings.TrimPrefix(reference, "oci://"))
	if err != nil {
		return ""
	}
	return host
}
