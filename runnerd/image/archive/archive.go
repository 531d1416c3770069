// Package archive reads images out of one file that an operator loads (F140): a tar of an OCI layout, or
// what `docker save` and its relatives write.
//
// Nouns. An Archive is the file with an index of its entries; Images are those that can be imported.
// Open reads headers only. Blobs are read in place, compared by whoever imports them, never unpacked
// here, and names inside the archive are keys of a table, not paths. Limits: EntriesMax entries, ImagesMax
// images with NamesMax names each, documents as in package manifest.
package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"colloid.net/runnerd/image/manifest"
)

// Bounds of an archive.
const (
	EntriesMax = 65536
	ImagesMax  = 256
	NamesMax   = 64 // of one image
	linksMax   = 8
	madeMax    = 64 << 20 // bytes of documents that are kept in memory
)

// Image is one image of an archive.
type Image struct {
	References []string // none = it has no name there
	Digest     manifest.Digest
}

// add notes an image, or further names of one that is there already.
func (a *Archive) add(digest manifest.Digest, names ...string) error {
	at := slices.IndexFunc(a.Images, func(i Image) bool { return i.Digest == digest })
	if at < 0 {
		at = len(a.Images)
		a.Images = append(a.Images, Image{Digest: digest})
	}
	image := &a.Images[at]
	for _, name := range names {
		if validReference(name) && !slices.Contains(image.References, name) {
			image.References = append(image.References, name)
		}
	}
	if len(image.References) > NamesMax {
		return fmt.Errorf("image %s has %d names, expected at most %d", digest, len(image.References), NamesMax)
	}
	return nil
}

// Archive is an open file. It belongs to one goroutine, but Open may be called from any.
type Archive struct {
	Images []Image

	file    io.ReaderAt
	entries map[string]section
	links   map[string]string
	blobs   map[manifest.Digest]section
	made    map[manifest.Digest][]byte // manifests that docker save does not write
}

// section is where the content of an entry lies.
type section struct{ offset, size int64 }

// Open reads the index of a regular file.
func Open(file *os.File) (*Archive, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("the archive is no regular file: write it to one first")
	}
	return Read(file, info.Size())
}

// Close ends the use of the archive; the file stays open.
func (*Archive) Close() {}

// Read is Open for anything that can be read at any place.
func Read(file io.ReaderAt, size int64) (*Archive, error) {
	a := &Archive{
		file: file, entries: map[string]section{}, links: map[string]string{},
		blobs: map[manifest.Digest]section{}, made: map[manifest.Digest][]byte{},
	}
	if err := a.index(io.NewSectionReader(file, 0, size)); err != nil {
		return nil, err
	}
	_, layout := a.find("oci-layout")
	_, docker := a.find("manifest.json")
	var err error
	switch {
	case layout:
		err = a.readLayout()
		if docker && (err != nil || len(a.Images) == 0) {
			a.Images = nil
			err = a.readDocker()
		}
	case docker:
		err = a.readDocker()
	default:
		err = errors.New("the archive is neither an OCI layout (no oci-layout) nor a docker archive (no manifest.json)")
	}
	if err == nil && len(a.Images) == 0 {
		err = errors.New("there is no image in the archive")
	}
	return a, err
}

// index notes where each entry lies. tar.Reader seeks over content, so after Next the reader stands at
// the first byte of it.
func (a *Archive) index(reader *io.SectionReader) error {
	var magic [2]byte
	if _, err := reader.ReadAt(magic[:], 0); err == nil && magic == [2]byte{0x1f, 0x8b} {
		return errors.New("the archive is compressed: unpack it with gunzip first")
	}
	in := tar.NewReader(reader)
	for count := 0; ; count++ {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive is no valid tar: %w", err)
		}
		if count >= EntriesMax {
			return fmt.Errorf("the archive has more than %d entries", EntriesMax)
		}
		offset, err := reader.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := path.Clean("/" + header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			if header.Size > reader.Size()-offset {
				return fmt.Errorf("entry %.200q is cut off", header.Name)
			}
			a.entries[name] = section{offset, header.Size}
			if digits, ok := strings.CutPrefix(name, "/blobs/sha256/"); ok {
				if digest, err := manifest.ParseHex(digits); err == nil {
					a.blobs[digest] = section{offset, header.Size}
				}
			}
		case tar.TypeSymlink, tar.TypeLink: // docker save writes a layer once and links to it
			target := header.Linkname
			if header.Typeflag == tar.TypeSymlink && !path.IsAbs(target) {
				target = path.Join(path.Dir(name), target)
			}
			a.links[name] = path.Clean("/" + target)
		}
	}
}

// find looks a name up and follows links within the table.
func (a *Archive) find(name string) (section, bool) {
	name = path.Clean("/" + name)
	for range linksMax {
		if s, ok := a.entries[name]; ok {
			return s, true
		}
		target, linked := a.links[name]
		if !linked {
			break
		}
		name = target
	}
	return section{}, false
}

func (a *Archive) reader(s section) *io.SectionReader {
	return io.NewSectionReader(a.file, s.offset, s.size)
}

// document reads a small entry whole.
func (a *Archive) document(name string, value any) ([]byte, error) {
	s, ok := a.find(name)
	if !ok {
		return nil, fmt.Errorf("the archive has no %.200q", name)
	}
	if s.size > manifest.DocumentMax {
		return nil, fmt.Errorf("%.200q of the archive has %d bytes, expected at most %d", name, s.size,
			manifest.DocumentMax)
	}
	text, err := io.ReadAll(a.reader(s))
	if err == nil && value != nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		return nil, fmt.Errorf("%.200q of the archive: %w", name, err)
	}
	return text, nil
}

// Open gives the content of a blob.
func (a *Archive) Open(digest manifest.Digest) (io.ReadCloser, error) {
	if text, ok := a.made[digest]; ok {
		return io.NopCloser(strings.NewReader(string(text))), nil
	}
	s, ok := a.blobs[digest]
	if !ok {
		return nil, fmt.Errorf("the archive lacks blob %s", digest)
	}
	return io.NopCloser(a.reader(s)), nil
}

// Annotations with the name of an image, the more complete one first.
var nameAnnotations = []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"}

func (a *Archive) readLayout() error {
	var index struct {
		Manifests []struct {
			Digest      manifest.Digest   `json:"digest"`
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	if _, err := a.document("index.json", &index); err != nil {
		return err
	}
	if len(index.Manifests) > ImagesMax {
		return fmt.Errorf("the archive has %d images, expected at most %d", len(index.Manifests), ImagesMax)
	}
	for _, m := range index.Manifests {
		name := ""
		for _, annotation := range nameAnnotations {
			if text := m.Annotations[annotation]; name == "" && validReference(text) {
				name = text
			}
		}
		if err := a.add(m.Digest, name); err != nil {
			return err
		}
	}
	return nil
}

// validReference accepts names that may be printed and stored; what they mean is up to whoever asks.
func validReference(name string) bool {
	if name == "" || len(name) > 255 {
		return false
	}
	for _, r := range []byte(name) {
		if r <= ' ' || r >= 0x7f || r == '"' || r == '\\' {
			return false
		}
	}
	return true
}

// readDocker makes a manifest for each image, which docker save does not write: its layers are plain
// tar files named at will. The same image gives the same manifest and with it the same digest.
func (a *Archive) readDocker() error {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if _, err := a.document("manifest.json", &list); err != nil {
		return err
	}
	if len(list) > ImagesMax {
		return fmt.Errorf("the archive has %d images, expected at most %d", len(list), ImagesMax)
	}
	kept := 0
	for _, entry := range list {
		if kept > madeMax {
			return fmt.Errorf("the configurations of the archive have more than %d bytes", madeMax)
		}
		config, err := a.document(entry.Config, nil)
		if err != nil {
			return err
		}
		kept += len(config)
		if len(entry.Layers) > manifest.LayersMax {
			return fmt.Errorf("an image of the archive has %d layers, expected at most %d", len(entry.Layers),
				manifest.LayersMax)
		}
		made := rawManifest{SchemaVersion: 2, MediaType: manifest.TypeManifest,
			Config: a.keep(manifest.TypeConfig, config)}
		for _, name := range entry.Layers {
			descriptor, err := a.layer(name)
			if err != nil {
				return err
			}
			made.Layers = append(made.Layers, descriptor)
		}
		text, err := json.Marshal(made)
		if err != nil {
			return err
		}
		if err := a.add(a.keep(manifest.TypeManifest, text).Digest, entry.RepoTags...); err != nil {
			return err
		}
	}
	return nil
}

type rawManifest struct {
	SchemaVersion int                   `json:"schemaVersion"`
	MediaType     string                `json:"mediaType"`
	Config        manifest.Descriptor   `json:"config"`
	Layers        []manifest.Descriptor `json:"layers"`
}

func (a *Archive) keep(mediaType string, text []byte) manifest.Descriptor {
	digest := manifest.Digest(sha256.Sum256(text))
	a.made[digest] = text
	return manifest.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(text))}
}

func (a *Archive) layer(name string) (manifest.Descriptor, error) {
	s, ok := a.find(name)
	if !ok {
		return manifest.Descriptor{}, fmt.Errorf("the archive has no %.200q", name)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, a.reader(s)); err != nil {
		return manifest.Descriptor{}, err
	}
	digest := manifest.Digest(hash.Sum(nil))
	a.blobs[digest] = s
	return manifest.Descriptor{MediaType: manifest.TypeLayer, Digest: digest, Size: s.size}, nil
}
