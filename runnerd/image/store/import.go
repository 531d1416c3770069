package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/chrootarchive"
	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/layer"
	"colloid.net/runnerd/image/manifest"
)

// Source gives the blobs of an image: blobs/ of a Store, or an archive.
type Source interface {
	Open(manifest.Digest) (io.ReadCloser, error)
}

// Blobs is what the fetcher brought, in files named by digest.
type Blobs string

// BlobName is the file of a blob.
func BlobName(digest manifest.Digest) string { return "sha256-" + digest.Hex() }

// Open opens a blob.
func (b Blobs) Open(digest manifest.Digest) (io.ReadCloser, error) {
	return os.OpenFile(filepath.Join(string(b), BlobName(digest)), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// Wanted says which image to import, and what to remember of it.
type Wanted struct {
	References   []string
	Digest       manifest.Digest // of an index or a manifest
	Architecture string
	Loaded       bool
	Ahead        bool // nothing needs it yet: at the lowest priority, and given up when another import waits
}

// Progress is called when a layer begins and while it is unpacked.
type Progress func(layer, layers int, bytes int64)

// Import makes an image out of blobs. What it finds wrong is a refusal; nothing of it stays.
func (s *Store) Import(from Source, wanted Wanted, progress Progress) (Image, manifest.Config, error) {
	if wanted.Ahead {
		return s.importAhead(from, wanted, progress)
	}
	defer s.beginImport()()
	return s.importHeld(from, wanted, progress)
}

// importHeld is Import for who holds the mutex.
func (s *Store) importHeld(from Source, wanted Wanted, progress Progress) (Image, manifest.Config, error) {
	d, err := s.stage(from, wanted, 0, progress)
	if err != nil {
		_ = s.pruneLayers() // the layers below the one that was refused
		return Image{}, manifest.Config{}, err
	}
	image, err := s.adopt(wanted, d)
	return image, d.config, err
}

// stage brings all of an image but its record, without which it does not exist. Beside it so many others are staged.
func (s *Store) stage(from Source, wanted Wanted, beside int, progress Progress) (d documents, err error) {
	if r, err := s.load(wanted.Digest); err == nil {
		d.record = *r
		if d.config, _, _, err = manifest.ParseConfig(r.Config, len(r.Chain)); err == nil {
			return d, nil
		}
	}
	if entries, err := os.ReadDir(filepath.Join(s.directory, imagesName)); err != nil {
		return d, err
	} else if len(entries)+beside >= ImagesMax {
		return d, refuse("there are %d images here: remove some with `colloid image prune`", len(entries))
	}
	if d, err = readDocuments(from, wanted); err != nil {
		return d, err
	}
	return d, s.importLayers(from, &d, wanted.Ahead, progress)
}

// adopt makes a staged image exist, under all the names that it had and that it is wanted under. A name that an operator
// loads is that of the image that was loaded last: others that were loaded lose it.
func (s *Store) adopt(wanted Wanted, d documents) (Image, error) {
	s.records.Lock()
	defer s.records.Unlock()
	if wanted.Loaded {
		if err := s.claim(wanted); err != nil {
			return Image{}, err
		}
	}
	for _, reference := range wanted.References {
		d.record.References = appendReference(d.record.References, reference)
	}
	d.record.Loaded = d.record.Loaded || wanted.Loaded
	return d.record.image(wanted.Digest), s.save(wanted.Digest, &d.record)
}

// claim takes the names of an image from others that were loaded.
func (s *Store) claim(wanted Wanted) error {
	entries, err := os.ReadDir(filepath.Join(s.directory, imagesName))
	for _, entry := range entries {
		digest, parseErr := manifest.ParseHex(entry.Name())
		if parseErr != nil || digest == wanted.Digest {
			continue
		}
		r, loadErr := s.load(digest)
		if loadErr != nil || !r.Loaded {
			continue
		}
		if left := without(r.References, wanted.References); len(left) < len(r.References) {
			r.References = left
			err = errors.Join(err, s.save(digest, r))
		}
	}
	return err
}

// documents are those of one image, checked.
type documents struct {
	document *manifest.Document
	config   manifest.Config
	diffs    []manifest.Digest
	record   record
}

func readDocuments(from Source, wanted Wanted) (d documents, err error) {
	if d.record.Manifest, err = readBlob(from, wanted.Digest); err != nil {
		return d, err
	}
	if d.document, err = manifest.Parse(d.record.Manifest); err != nil {
		return d, refusal{err}
	}
	if len(d.document.Manifests) > 0 {
		chosen, err := d.document.Select(wanted.Architecture)
		if err != nil {
			return d, refusal{err}
		}
		if d.record.Manifest, err = readBlob(from, chosen.Digest); err != nil {
			return d, err
		}
		if d.document, err = manifest.Parse(d.record.Manifest); err != nil {
			return d, refusal{err}
		}
	}
	if len(d.document.Manifests) > 0 || d.document.Wasm {
		return d, refuse("%s is no container image", wanted.Digest)
	}
	if d.record.Config, err = readBlob(from, d.document.Config.Digest); err != nil {
		return d, err
	}
	config, diffs, created, err := manifest.ParseConfig(d.record.Config, len(d.document.Layers))
	if err != nil {
		return d, refusal{err}
	}
	if config.Architecture != wanted.Architecture {
		return d, refuse("image is for %.40q, this host is %s: set arch in the workload, or build the image for "+
			"this architecture", config.Architecture, wanted.Architecture)
	}
	d.config, d.diffs = config, diffs
	d.record.Created, d.record.Architecture, d.record.Loaded = created, config.Architecture, wanted.Loaded
	return d, nil
}

// readBlob reads a document and compares its digest.
func readBlob(from Source, digest manifest.Digest) ([]byte, error) {
	file, err := from.Open(digest)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, manifest.DocumentMax+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", digest, err)
	}
	if len(text) > manifest.DocumentMax {
		return nil, refuse("%s has more than %d bytes", digest, manifest.DocumentMax)
	}
	if got := sha256.Sum256(text); got != digest {
		return nil, refuse("%s has the digest %s instead", digest, manifest.Digest(got))
	}
	return text, nil
}

// chain gives the name of each layer, which depends on all layers below.
func chain(diffs []manifest.Digest) []string {
	ids := make([]string, len(diffs))
	previous := ""
	for i, diff := range diffs {
		if i == 0 {
			previous = diff.String()
		} else {
			sum := sha256.Sum256([]byte(previous + " " + diff.String()))
			previous = "sha256:" + hex.EncodeToString(sum[:])
		}
		ids[i] = previous[len("sha256:"):]
	}
	return ids
}

// Missing tells which layers of an image are not here.
func (s *Store) Missing(diffs []manifest.Digest) []bool {
	missing := make([]bool, len(diffs))
	for i, id := range chain(diffs) {
		_, err := s.layerSize(id)
		missing[i] = err != nil
	}
	return missing
}

func (s *Store) importLayers(from Source, d *documents, ahead bool, progress Progress) error {
	d.record.Chain = chain(d.diffs)
	var staged []string
	for i, id := range d.record.Chain {
		progress(i+1, len(d.diffs), 0)
		size, err := s.layerSize(id)
		if err != nil {
			report := func(bytes int64) { progress(i+1, len(d.diffs), bytes) }
			var below []string // whole layers have their names, those of this image that are new not yet
			for j := i - 1; j >= 0; j-- {
				below = append(below, s.layerPath(d.record.Chain[j], slices.Contains(staged, d.record.Chain[j])))
			}
			size, err = s.stageLayer(from, id, d.document.Layers[i], d.diffs[i], below, unpacking{report, ahead})
			staged = append(staged, id)
		}
		if err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(d.diffs), err)
		}
		d.record.Size += size
	}
	return s.adoptLayers(staged)
}

// adoptLayers gives staged layers their names once all that is in them is on disk: a name stands for a
// whole layer, also after a loss of power.
func (s *Store) adoptLayers(staged []string) error {
	if len(staged) == 0 {
		return nil
	}
	layers := filepath.Join(s.directory, layersName)
	if err := syncFileSystem(layers); err != nil {
		return err
	}
	for _, id := range staged {
		if err := os.Rename(filepath.Join(layers, stagePrefix+id), filepath.Join(layers, id)); err != nil {
			return err
		}
	}
	return syncDirectory(layers)
}

// Names in and around the directory of a layer.
const (
	stagePrefix = "stage-" // of a layer that is not whole yet, or not any more
	diffName    = "diff"   // the content
	sizeName    = "size"   // how many bytes its files have
)

// layerPath is the content of a layer, which may be staged.
func (s *Store) layerPath(id string, staged bool) string {
	if staged {
		id = stagePrefix + id
	}
	return filepath.Join(s.directory, layersName, id, diffName)
}

// layerSize gives the size of a layer that is here.
func (s *Store) layerSize(id string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(s.directory, layersName, id, sizeName))
	if err != nil {
		return 0, err
	}
	return parseSize(text)
}

func parseSize(text []byte) (int64, error) {
	size, err := strconv.ParseUint(string(text), 10, 63)
	return int64(size), err
}

// stageLayer unpacks one layer under another name, above those below, highest first. The caller removes what a failure
// leaves.
func (s *Store) stageLayer(from Source, id string, descriptor manifest.Descriptor, diff manifest.Digest, below []string,
	how unpacking,
) (size int64, err error) {
	if err := errors.Join(s.room(), s.giveWay(how.ahead)); err != nil {
		return 0, err
	}
	blob, err := from.Open(descriptor.Digest)
	if err != nil {
		return 0, err
	}
	defer blob.Close()
	stage := filepath.Join(s.directory, layersName, stagePrefix+id)
	if err := os.RemoveAll(stage); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Join(stage, diffName), 0o755); err != nil {
		return 0, err
	}
	if err := os.Chmod(filepath.Join(stage, diffName), 0o755); err != nil { // whatever the umask
		return 0, err
	}
	result, err := s.unpack(filepath.Join(stage, diffName), blob, descriptor, diff, how)
	if err == nil && result.Whiteouts > 0 {
		err = removeIdleWhiteouts(filepath.Join(stage, diffName), below)
	}
	if err != nil {
		return 0, err
	}
	size = result.Bytes
	return size, os.WriteFile(filepath.Join(stage, sizeName), strconv.AppendInt(nil, size, 10), 0o600)
}

// unpack gives the library what the filter lets through. The library works in a child whose root
// directory is the layer.
func (s *Store) unpack(directory string, blob io.Reader, descriptor manifest.Descriptor, diff manifest.Digest,
	how unpacking,
) (result layer.Result, err error) {
	reader, writer := io.Pipe()
	filtered := make(chan error, 1)
	nice := threadNice() // not the lowest any more once somebody wants the image
	go func() {
		var err error
		if how.ahead {
			lowerThread(nice)
		}
		result, err = s.filter(writer, blob, descriptor, diff, how)
		writer.CloseWithError(err) // nil: end of file
		filtered <- err
	}()
	err = chrootarchive.UntarUncompressed(reader, directory, &archive.TarOptions{
		WhiteoutFormat: archive.OverlayWhiteoutFormat,
	})
	unpacked := errors.New("the layer could not be unpacked")
	if err == nil {
		unpacked = io.EOF
		_, _ = io.Copy(io.Discard, reader) // what the library does not need of the end of the archive
	}
	reader.CloseWithError(errors.Join(errUnpack, unpacked))
	if cause := <-filtered; cause != nil && !errors.Is(cause, errUnpack) {
		return layer.Result{}, cause // why the stream ended, and not that it did
	}
	if err != nil {
		return layer.Result{}, fmt.Errorf("cannot unpack: %w", err)
	}
	return result, nil
}

func (s *Store) filter(out io.Writer, blob io.Reader, descriptor manifest.Descriptor, diff manifest.Digest,
	how unpacking,
) (layer.Result, error) {
	var noRoom error
	limits := layer.Limits{Room: func() error {
		if noRoom = s.room(); noRoom == nil {
			noRoom = s.giveWay(how.ahead)
		}
		return noRoom
	}}
	source := &io.LimitedReader{R: &counter{in: blob, report: how.progress}, N: descriptor.Size + 1}
	result, err := layer.Filter(out, source, limits)
	switch {
	case noRoom != nil:
		return result, noRoom
	case errors.Is(err, errUnpack):
		return result, err
	case err != nil:
		return result, refusal{err}
	case source.N == 0:
		return result, refuse("blob has more than the %d bytes that the manifest says", descriptor.Size)
	case result.Blob != descriptor.Digest:
		return result, refuse("blob has digest %s, the manifest says %s", manifest.Digest(result.Blob), descriptor.Digest)
	case result.Diff != diff:
		return result, refuse("content has digest %s, the configuration says %s", manifest.Digest(result.Diff), diff)
	}
	return result, nil
}

var errUnpack = errors.New("cannot unpack")

// reportEvery is how often a counter reports, in bytes.
const reportEvery = 4 << 20

type counter struct {
	in           io.Reader
	report       func(int64)
	bytes, asked int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if c.bytes += int64(n); c.bytes-c.asked >= reportEvery {
		c.asked = c.bytes
		c.report(c.bytes)
	}
	return n, err
}
