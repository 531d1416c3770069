package store

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"

	"colloid.net/runnerd/image/manifest"
)

// Beginnings of the names of kept blobs: what was got without credentials, and what was got with some.
const (
	keptPublic  = "public-"
	keptPrivate = "private-"
)

// KeptBlobName is the file of a blob that is kept for other cells. runnerd fills the directory and limits
// its size, and this process removes what belongs to no image any more.
func KeptBlobName(digest manifest.Digest, private bool) string {
	if private {
		return keptPrivate + digest.Hex()
	}
	return keptPublic + digest.Hex()
}

// blobs notes the digests of everything that an image consists of.
func (r *record) blobs(image manifest.Digest, into map[manifest.Digest]bool) {
	into[image] = true
	into[sha256.Sum256(r.Manifest)] = true
	document, err := manifest.Parse(r.Manifest)
	if err != nil {
		return
	}
	into[document.Config.Digest] = true
	for _, l := range document.Layers {
		into[l.Digest] = true
	}
}

// pruneKept removes kept blobs of no image.
func (s *Store) pruneKept(needed map[manifest.Digest]bool) {
	directory := filepath.Join(s.directory, KeptName)
	entries, _ := os.ReadDir(directory)
	for _, entry := range entries {
		name := strings.TrimPrefix(strings.TrimPrefix(entry.Name(), keptPublic), keptPrivate)
		if digest, err := manifest.ParseHex(name); err != nil || !needed[digest] {
			_ = os.Remove(filepath.Join(directory, entry.Name()))
		}
	}
}
