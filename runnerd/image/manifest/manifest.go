// Package manifest reads the documents that describe an image: index, manifest and configuration, of
// OCI and of Docker's schema 2. It is a pure function of bytes; whoever calls it has compared the digest.
//
// Nouns. A Descriptor names a blob by digest, size and media type. An Index lists manifests by
// architecture, a Manifest a configuration and layers. Limits: DocumentMax bytes per document, LayersMax
// layers, ManifestsMax entries of an index, LayerSizeMax bytes of one layer, ImageSizeMax of all. What is
// not fully understood is refused with a sentence (F140: media types).
package manifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of documents and of what they announce.
const (
	DocumentMax  = 4 << 20
	LayersMax    = 127 // overlay file systems take no more lower directories by name
	ManifestsMax = 256
	LayerSizeMax = 10 << 30
	ImageSizeMax = 20 << 30
	wordsMax     = 1024
	wordsSizeMax = 40 << 10 // as JSON, in which a configuration goes from process to process in one message of 64 KiB
)

// Media types.
const (
	TypeIndex          = "application/vnd.oci.image.index.v1+json"
	TypeManifest       = "application/vnd.oci.image.manifest.v1+json"
	TypeConfig         = "application/vnd.oci.image.config.v1+json"
	TypeLayer          = "application/vnd.oci.image.layer.v1.tar"
	TypeDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	TypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	TypeDockerConfig   = "application/vnd.docker.container.image.v1+json"
	TypeDockerLayer    = "application/vnd.docker.image.rootfs.diff.tar"
	TypeWasm           = "application/wasm"
	TypeWasmLayer      = "application/vnd.wasm.content.layer.v1+wasm"
)

// Accepted lists the types of documents to ask a registry for.
var Accepted = []string{TypeIndex, TypeManifest, TypeDockerIndex, TypeDockerManifest}

var layerTypes = []string{
	TypeLayer, TypeLayer + "+gzip", TypeLayer + "+zstd",
	TypeDockerLayer, TypeDockerLayer + ".gzip", TypeDockerLayer + ".zstd",
}

// Descriptor names a blob.
type Descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    Digest    `json:"digest"`
	Size      int64     `json:"size"`
	Platform  *Platform `json:"platform,omitempty"`
}

// Platform is what an image runs on.
type Platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// Document is what a reference leads to: an Index when Manifests is not empty, else a Manifest.
type Document struct {
	Manifests []Descriptor // of an index
	Config    Descriptor
	Layers    []Descriptor
	Wasm      bool // the one layer is a WebAssembly module
}

type rawDocument struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Manifests     []Descriptor    `json:"manifests"`
	Config        *Descriptor     `json:"config"`
	Layers        []Descriptor    `json:"layers"`
	FSLayers      json.RawMessage `json:"fsLayers"`
}

// Parse reads an index or a manifest.
func Parse(text []byte) (*Document, error) {
	var raw rawDocument
	if err := unmarshal(text, &raw, "manifest"); err != nil {
		return nil, err
	}
	switch {
	case raw.SchemaVersion != 2 || raw.FSLayers != nil:
		return nil, fmt.Errorf("manifest of schema %d, expected 2: push the image again with a present-day tool",
			raw.SchemaVersion)
	case raw.Manifests != nil && (raw.Layers != nil || raw.Config != nil):
		return nil, fmt.Errorf("document is an index and a manifest at once")
	case raw.MediaType != "" && !slices.Contains(Accepted, raw.MediaType):
		return nil, fmt.Errorf("manifest has media type %.80q, which is not known here", raw.MediaType)
	case raw.Manifests != nil:
		return parseIndex(&raw)
	case raw.Config == nil:
		return nil, fmt.Errorf("manifest names no configuration")
	}
	return parseManifest(&raw)
}

func parseIndex(raw *rawDocument) (*Document, error) {
	if n := len(raw.Manifests); n == 0 || n > ManifestsMax {
		return nil, fmt.Errorf("index lists %d manifests, expected 1 to %d", n, ManifestsMax)
	}
	for _, d := range raw.Manifests {
		if d.Size <= 0 || d.Size > DocumentMax {
			return nil, fmt.Errorf("manifest %s of the index has %d bytes, expected 1 to %d", d.Digest, d.Size, DocumentMax)
		}
	}
	return &Document{Manifests: raw.Manifests}, nil
}

func parseManifest(raw *rawDocument) (*Document, error) {
	if raw.Config.Size < 0 || raw.Config.Size > DocumentMax {
		return nil, fmt.Errorf("configuration has %d bytes, expected at most %d", raw.Config.Size, DocumentMax)
	}
	if n := len(raw.Layers); n == 0 || n > LayersMax {
		return nil, fmt.Errorf("manifest lists %d layers, expected 1 to %d", n, LayersMax)
	}
	d := &Document{Config: *raw.Config, Layers: raw.Layers}
	if first := d.Layers[0].MediaType; len(d.Layers) == 1 && (first == TypeWasm || first == TypeWasmLayer) {
		d.Wasm = true
	}
	total := int64(0)
	for i, layer := range d.Layers {
		if !d.Wasm && !slices.Contains(layerTypes, layer.MediaType) {
			return nil, fmt.Errorf("layer %d has media type %.80q, expected a tar, plain or with gzip or zstd",
				i+1, layer.MediaType)
		}
		if layer.Size <= 0 || layer.Size > LayerSizeMax {
			return nil, fmt.Errorf("layer %d has %d bytes, expected 1 to %d", i+1, layer.Size, int64(LayerSizeMax))
		}
		if total += layer.Size; total > ImageSizeMax {
			return nil, fmt.Errorf("layers have more than %d bytes", int64(ImageSizeMax))
		}
	}
	if !d.Wasm && !slices.Contains([]string{TypeConfig, TypeDockerConfig}, d.Config.MediaType) {
		return nil, fmt.Errorf("configuration has media type %.80q: this is no container image", d.Config.MediaType)
	}
	return d, nil
}

// Size is the sum of all layers.
func (d *Document) Size() (total int64) {
	for _, layer := range d.Layers {
		total += layer.Size
	}
	return total
}

// Architectures lists what an index offers for Linux, sorted.
func (d *Document) Architectures() (list []string) {
	for _, m := range d.Manifests {
		if p := m.Platform; p != nil && p.OS == "linux" && !slices.Contains(list, p.Architecture) {
			list = append(list, p.Architecture)
		}
	}
	slices.Sort(list)
	return list
}

// Select chooses the manifest of an index for a Linux architecture as Go names it (F77). A plain entry
// wins over one with a variant; of variants only those that every such processor has count.
func (d *Document) Select(architecture string) (Descriptor, error) {
	best, found := Descriptor{}, 0
	for _, m := range d.Manifests {
		if m.Platform == nil || m.Platform.OS != "linux" || m.Platform.Architecture != architecture {
			continue
		}
		rank := 0
		switch m.Platform.Variant {
		case "":
			rank = 2
		case "v1", "v8":
			rank = 1
		}
		if rank > found {
			best, found = m, rank
		}
	}
	if found == 0 {
		return best, fmt.Errorf("there is no manifest for linux/%s, only for %q: set arch in the workload, or "+
			"build the image for this architecture", architecture, d.Architectures())
	}
	return best, nil
}

// Config is what an image asks of its containers.
type Config struct {
	Entrypoint, Command, Environment []string
	User, WorkingDirectory           string
	StopSignal                       string
	Architecture, OS                 string
	ExposedPorts                     []string
}

type rawConfig struct {
	Architecture string     `json:"architecture"`
	OS           string     `json:"os"`
	Created      *time.Time `json:"created"`
	Config       struct {
		Entrypoint, Cmd, Env         []string
		User, WorkingDir, StopSignal string
		ExposedPorts                 map[string]json.RawMessage
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

// ParseConfig reads the configuration of an image with so many layers.
func ParseConfig(text []byte, layers int) (config Config, diffs []Digest, created time.Time, err error) {
	var raw rawConfig
	if err := unmarshal(text, &raw, "configuration"); err != nil {
		return config, nil, created, err
	}
	c := &raw.Config
	config = Config{
		Entrypoint: c.Entrypoint, Command: c.Cmd, Environment: c.Env, User: c.User,
		WorkingDirectory: c.WorkingDir, StopSignal: c.StopSignal, Architecture: raw.Architecture, OS: raw.OS,
	}
	for port := range c.ExposedPorts {
		config.ExposedPorts = append(config.ExposedPorts, port)
	}
	slices.Sort(config.ExposedPorts)
	if raw.Created != nil {
		created = *raw.Created
	}
	switch {
	case raw.OS != "linux":
		err = fmt.Errorf("image is for operating system %.40q, expected linux", raw.OS)
	case raw.RootFS.Type != "layers":
		err = fmt.Errorf("root file system is of type %.40q, expected layers", raw.RootFS.Type)
	case len(raw.RootFS.DiffIDs) != layers:
		err = fmt.Errorf("configuration names %d layers, the manifest %d", len(raw.RootFS.DiffIDs), layers)
	default:
		err = checkWords(&config)
	}
	return config, raw.RootFS.DiffIDs, created, err
}

// checkWords bounds what becomes arguments and environment of a process.
func checkWords(c *Config) error {
	count := 0
	single := []string{c.User, c.WorkingDirectory, c.StopSignal, c.Architecture}
	for _, list := range [][]string{c.Entrypoint, c.Command, c.Environment, c.ExposedPorts, single} {
		for _, word := range list {
			count++
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("configuration has a zero byte in %.40q", word)
			}
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("configuration cannot be kept: %w", err)
	}
	if count > wordsMax || len(text) > wordsSizeMax {
		return fmt.Errorf("configuration has %d words of %d bytes, expected at most %d of %d: make arguments and "+
			"environment of the image shorter", count, len(text), wordsMax, wordsSizeMax)
	}
	return nil
}

func unmarshal(text []byte, document any, what string) error {
	if len(text) > DocumentMax {
		return fmt.Errorf("%s has more than %d bytes", what, DocumentMax)
	}
	if err := json.Unmarshal(text, document); err != nil {
		return fmt.Errorf("%s is not understood: %w", what, err)
	}
	return nil
}
