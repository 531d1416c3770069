package store

import (
	"fmt"
	"os"
	"strings"

	"colloid.net/runnerd/image/archive"
	"colloid.net/runnerd/image/manifest"
)

// Load imports every image of an archive: an OCI layout or what docker save writes. Either all of them are here
// afterwards or none that was not before; only where a record cannot be written are there some, and loaded was called
// for those. What it is called with has the names of the archive alone, if there are any.
func (s *Store) Load(file *os.File, architecture string, progress Progress, loaded func(Image)) error {
	opened, err := archive.Open(file)
	if err != nil {
		return refusal{err}
	}
	defer opened.Close()
	defer s.beginImport()()
	fail := func(n int, outcome string, err error) error {
		if len(opened.Images) == 1 {
			return err
		}
		return fmt.Errorf("image %d of %d, %s: %w; %s", n+1, len(opened.Images), nameOf(&opened.Images[n]), err, outcome)
	}
	wanted := func(i *archive.Image) Wanted {
		return Wanted{References: i.References, Digest: i.Digest, Architecture: architecture, Loaded: true}
	}
	staged := make([]documents, len(opened.Images))
	for n := range opened.Images {
		if staged[n], err = s.stage(opened, wanted(&opened.Images[n]), n, progress); err == nil {
			err = checkNames(staged[n].record.References, opened.Images[n].References)
		}
		if err != nil {
			_ = s.pruneLayers()
			return fail(n, "nothing was loaded", err)
		}
	}
	for n := range opened.Images {
		entry := &opened.Images[n]
		image, err := s.adopt(wanted(entry), staged[n])
		if err != nil {
			_ = s.pruneLayers()
			return fail(n, fmt.Sprintf("%d were loaded", n), err)
		}
		if len(entry.References) > 0 {
			image.References = entry.References
		}
		loaded(image)
	}
	return nil
}

// nameOf is what people call an image of an archive.
func nameOf(i *archive.Image) string {
	if len(i.References) == 0 {
		return i.Digest.String()
	}
	return strings.Join(i.References[:min(len(i.References), 3)], ", ")
}

// checkNames refuses more names than an image may have: none is dropped behind the back of who loads them.
func checkNames(have, more []string) error {
	for _, name := range more {
		have = append(without(have, []string{name}), name)
	}
	if len(have) > referencesMax {
		return refuse("it would have %d names, expected at most %d: remove some with `colloid image rm NAME`", len(have),
			referencesMax)
	}
	return nil
}

var _ Source = (*archive.Archive)(nil)

// RemoveNames takes names away from an image, and the image with the last one.
func (s *Store) RemoveNames(digest manifest.Digest, names []string) error {
	defer s.beginImport()()
	r, err := s.load(digest)
	if err != nil {
		return err
	}
	if left := without(r.References, names); len(left) > 0 {
		s.records.Lock()
		defer s.records.Unlock()
		r.References = left
		return s.save(digest, r)
	}
	if err := s.remove(digest); err != nil {
		return err
	}
	return s.pruneLayers()
}
