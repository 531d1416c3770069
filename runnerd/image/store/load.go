package store

import (
	"os"

	"colloid.net/runnerd/image/archive"
)

// Load imports every image of an archive that fits this host: an OCI layout or what docker save writes.
func (s *Store) Load(file *os.File, architecture string, progress Progress, loaded func(Image)) error {
	opened, err := archive.Open(file)
	if err != nil {
		return refusal{err}
	}
	defer opened.Close()
	for _, entry := range opened.Images {
		wanted := Wanted{Reference: entry.Reference, Digest: entry.Digest, Architecture: architecture, Loaded: true}
		image, _, err := s.Import(opened, wanted, progress)
		if err != nil {
			return err
		}
		loaded(image)
	}
	return nil
}

var _ Source = (*archive.Archive)(nil)
