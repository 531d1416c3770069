package control

import (
	"fmt"
	"slices"

	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// filesMax is how many descriptors one connection can be given, those that have served their time included.
const filesMax = 16

// passed is a descriptor that a client was given: whom to tell when its connection has ended.
type passed struct{ ended func() }

// replyWithFile answers a request with a descriptor; it reports false when the client is gone or is to go.
// Such a reply goes out at once or not at all: among replies that wait, nothing could hold the descriptor.
func (c *client) replyWithFile(response Response) bool {
	entry := &passed{response.Ended}
	reason := c.enterFile(entry)
	if reason == "" {
		raw, err := response.File.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				if !c.sendNow(frame(response), unix.UnixRights(int(fd))) {
					reason = "replies wait to be read: read them first"
				}
			})
		}
		if err != nil { // its worker has ended meanwhile
			reason = "what was asked for has ended already: try again"
		}
	}
	if reason == "" {
		return true
	}
	c.mutex.Lock()
	c.files = slices.DeleteFunc(c.files, func(p *passed) bool { return p == entry })
	c.mutex.Unlock()
	response.Ended()
	return c.queue(uds.AppendError(nil, uds.ErrorBusy, reason))
}

// enterFile enters a descriptor that ends with the connection, or says why not.
func (c *client) enterFile(entry *passed) string {
	c.server.mutex.Lock() // until it is entered: others ask at the same time
	defer c.server.mutex.Unlock()
	if reason := c.server.streamsFull(c, 0); reason != "" {
		return reason
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.files) >= filesMax {
		return fmt.Sprintf("this connection was given %d channels already: make another", filesMax)
	}
	c.files = append(c.files, entry)
	return ""
}

// sendNow sends a short reply with a descriptor, and reports whether it went out.
func (c *client) sendNow(reply, rights []byte) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.writeNow(reply, rights)) == 0 && !c.broken
}

// endFiles tells whose descriptors end with the connection.
func (c *client) endFiles() {
	c.mutex.Lock()
	files := c.files
	c.files = nil
	c.mutex.Unlock()
	for _, entry := range files {
		entry.ended()
	}
}
