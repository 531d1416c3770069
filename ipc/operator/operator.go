// Package operator is the protocol between the command line and runnerd on the host's own socket: images
// are fetched, loaded, listed and removed there, and tags resolved, without meshd in between (F84, F140).
//
// Nouns. A Request is the first packet of a connection and the only one; for OperationLoad it carries the
// descriptor of the file. Replies follow until one with Done, then the connection ends. Hanging up ends
// what was asked for. Packets are those of package ipc/packet, with its bounds.
//
// Both sides look at each other's credentials: runnerd serves root, its own user and group
// uds.GroupWrite; the command line talks to root or its own user only, since the directory of the socket
// belongs to meshd, which is trusted with less.
package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"colloid.net/ipc/packet"
)

// SocketName is the socket's name in the run directory.
const SocketName = "runnerd.sock"

// Version of the protocol. A runnerd answers another one with an error that names both.
const Version = 1

// Operations.
const (
	OperationPull    = "pull"    // Reference, which may have a digest; Progress, then Image
	OperationLoad    = "load"    // Progress, then Image for each one
	OperationList    = "list"    // Image for each one
	OperationRemove  = "remove"  // Reference is a name, which goes, and the image with the last one; or a digest
	OperationPrune   = "prune"   // Image for each one that was removed
	OperationResolve = "resolve" // Resolved
)

// Request asks for one thing.
type Request struct {
	Version   int    `json:"version"`
	Operation string `json:"operation"`
	Reference string `json:"reference,omitempty"`
}

// Reply is a part of the answer. Error is one sentence; then there is no more.
type Reply struct {
	Done     bool      `json:"done,omitempty"`
	Error    string    `json:"error,omitempty"`
	Usage    bool      `json:"usage,omitempty"` // with Error: the request itself is wrong, whenever it is made
	Progress *Progress `json:"progress,omitempty"`
	Image    *Image    `json:"image,omitempty"`
	Resolved *Resolved `json:"resolved,omitempty"`
}

// Progress of what takes time.
type Progress struct {
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`
	Total int64  `json:"total,omitempty"` // 0 = not known
}

// Image is one image of the host, also as `-o json` prints it: fields keep their names and meanings.
type Image struct {
	Digest       string    `json:"digest"` // sha256:...
	References   []string  `json:"references"`
	Size         int64     `json:"size"` // bytes, unpacked
	Created      time.Time `json:"created,omitzero"`
	Architecture string    `json:"architecture"` // "wasm" for a module
	Loaded       bool      `json:"loaded"`       // by an operator, not pulled
	Instances    int       `json:"instances"`    // that use it now
}

// Resolved is what a tag means at the moment.
type Resolved struct {
	Reference     string   `json:"reference"` // complete
	Digest        string   `json:"digest"`    // sha256:...
	Architectures []string `json:"architectures,omitempty"`
	Loaded        bool     `json:"loaded,omitempty"`
}

// RefusedError is an error of runnerd's. Its text is for people and says all there is to say.
type RefusedError struct {
	Text  string
	Usage bool // as in Reply
}

func (e *RefusedError) Error() string { return e.Text }

// ErrAbsent means that no runnerd serves the socket.
var ErrAbsent = errors.New("no runnerd serves it")

// Do asks runnerd and calls each for every reply but the last, which has nothing to tell.
func Do(ctx context.Context, path string, request Request, file *os.File, each func(Reply)) error {
	conn, err := packet.Dial(path)
	switch {
	case errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w", path, ErrAbsent)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w for %s: become root or a member of group colloid-admin", os.ErrPermission, path)
	case err != nil:
		return fmt.Errorf("cannot connect to %s: %w", path, err)
	}
	defer conn.Close()
	uid, _, err := conn.Credentials()
	if err != nil {
		return err
	}
	if uid != 0 && int(uid) != os.Geteuid() {
		return fmt.Errorf("%s is served by user %d, and not by root or you: nothing is asked of it", path, uid)
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	request.Version = Version
	// A write error is not final: runnerd may have refused with a reply before it hung up.
	sendErr := conn.Send(request, file)
	for {
		var reply Reply
		surplus, err := conn.Receive(&reply)
		if surplus != nil {
			surplus.Close()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && sendErr != nil:
			return fmt.Errorf("ask runnerd: %w", sendErr)
		case errors.Is(err, io.EOF):
			return errors.New("runnerd hung up before it was done: try again")
		case err != nil:
			return fmt.Errorf("runnerd's answer: %w", err)
		case reply.Error != "":
			return &RefusedError{reply.Error, reply.Usage}
		case reply.Done:
			return nil
		}
		each(reply)
	}
}
