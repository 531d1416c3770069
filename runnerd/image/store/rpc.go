package store

import (
	"time"

	"colloid.net/runnerd/image/manifest"
)

// Version of the requests and replies. Both sides are one binary, but an old runnerd may start the
// binary that replaced it.
const Version = 1

// RequestsMax bounds the requests that the process works on at a time; more wait in the socket.
const RequestsMax = 32

// Operations of a Request.
const (
	OperationFind    = "find"    // Image and Config of Digest
	OperationMissing = "missing" // which of Diffs are not here; Missing
	OperationImport  = "import"  // from blobs/: Image and Config
	OperationLoad    = "load"    // from the archive whose descriptor is beside the request: Loaded
	OperationMount   = "mount"   // Path
	OperationExpect  = "expect"  // a mount with IDs soon
	OperationUnmount = "unmount"
	OperationList    = "list"   // Image, one reply each
	OperationRemove  = "remove" // Names of Digest, and Digest with the last one; without Names, Digest
)

// Request asks for one thing. ID comes back in every reply to it.
type Request struct {
	Version      int             `json:"version"`
	ID           uint64          `json:"id"`
	Operation    string          `json:"operation"`
	Reference    string          `json:"reference,omitempty"`
	Digest       manifest.Digest `json:"digest,omitzero"`
	Architecture string          `json:"architecture,omitempty"`

	Ahead bool `json:"ahead,omitempty"` // of an import: nothing needs the image yet

	Diffs []manifest.Digest `json:"diffs,omitempty"` // of all layers, lowest first

	Names []string `json:"names,omitempty"` // of an image, to remove

	Name    string  `json:"name,omitempty"` // of a root
	IDs     IDRange `json:"ids,omitzero"`
	DiskMiB uint32  `json:"disk_mib,omitempty"`
}

// IDRange is what user and group ids from 0 of a container are on the host. Count 0 means no mapping.
type IDRange struct {
	Base  uint32 `json:"base"`
	Count uint32 `json:"count"`
}

// Image is one image in the store.
type Image struct {
	References   []string        `json:"references,omitempty"`
	Digest       manifest.Digest `json:"digest"`
	Size         int64           `json:"size"` // unpacked, shared layers counted in each image
	Created      time.Time       `json:"created"`
	Architecture string          `json:"architecture"`
	Layers       int             `json:"layers"`
	Loaded       bool            `json:"loaded,omitempty"` // by an operator, not pulled
	Users        int             `json:"users,omitempty"`  // roots that stand on it
}

// Reply answers a Request. The last one to an ID has Done. Error is one sentence, and the only field
// that counts when it is not empty.
type Reply struct {
	ID      uint64           `json:"id"`
	Done    bool             `json:"done,omitempty"`
	Error   string           `json:"error,omitempty"`
	Absent  bool             `json:"absent,omitempty"`   // with Error: there is no such image
	Refused bool             `json:"refused,omitempty"`  // with Error: trying again cannot help
	GaveWay bool             `json:"gave_way,omitempty"` // with Error: an import that was Ahead made room for another
	Image   *Image           `json:"image,omitempty"`
	Config  *manifest.Config `json:"config,omitempty"`
	Missing []bool           `json:"missing,omitempty"`
	Path    string           `json:"path,omitempty"`
	Layer   int              `json:"layer,omitempty"` // progress of an import
	Layers  int              `json:"layers,omitempty"`
	Bytes   int64            `json:"bytes,omitempty"`
}
