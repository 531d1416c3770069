package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
)

// record is the file of an image. Only this process writes it.
type record struct {
	References   []string  `json:"references"`
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	Size         int64     `json:"size"`
	Loaded       bool      `json:"loaded"`
	Chain        []string  `json:"chain"` // layers, lowest first
	Manifest     []byte    `json:"manifest"`
	Config       []byte    `json:"config"`
}

func (r *record) image(digest manifest.Digest) Image {
	return Image{
		References: r.References, Digest: digest, Size: r.Size, Created: r.Created, Architecture: r.Architecture,
		Layers: len(r.Chain), Loaded: r.Loaded,
	}
}

func (s *Store) recordPath(digest manifest.Digest) string {
	return filepath.Join(s.directory, imagesName, digest.Hex())
}

func (s *Store) load(digest manifest.Digest) (*record, error) {
	text, err := os.ReadFile(s.recordPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("the record of image %s is damaged (%w): remove it with `colloid image rm %s`", digest, err, digest)
	}
	return r, nil
}

// parseRecord reads what save wrote. The layers become names of directories, so they are nothing else.
func parseRecord(text []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	if len(r.Chain) == 0 || len(r.Chain) > manifest.LayersMax {
		return nil, fmt.Errorf("it has %d layers", len(r.Chain))
	}
	for _, id := range r.Chain {
		if _, err := manifest.ParseHex(id); err != nil {
			return nil, fmt.Errorf("layer %.80q: %w", id, err)
		}
	}
	if r.Size < 0 {
		return nil, fmt.Errorf("it has %d bytes", r.Size)
	}
	return r, nil
}

func (s *Store) save(digest manifest.Digest, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeDurably(s.recordPath(digest), text)
}

// writeDurably replaces a file as a whole; after it returns the content survives a loss of power.
func writeDurably(path string, text []byte) error {
	directory := filepath.Dir(path)
	file, err := os.CreateTemp(directory, "new-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails once it is renamed
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDirectory(directory)
}

func syncDirectory(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

// syncFileSystem writes out everything below a directory, and whatever else is on its file system.
func syncFileSystem(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Syncfs(int(file.Fd()))
}
