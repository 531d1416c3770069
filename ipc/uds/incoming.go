package uds

import (
	"io"
	"os"

	"colloid.net/ipc/passed"
)

// incoming reads a connection. While a descriptor is wanted it takes one that comes along; else none has
// room, and the kernel drops it.
type incoming struct {
	connection io.Reader
	wanted     bool
	file       *os.File // that came while one was wanted
}

var _ io.Reader = (*incoming)(nil)

// Read implements io.Reader.
func (i *incoming) Read(p []byte) (int, error) {
	socket, is := i.connection.(*blocking)
	if !i.wanted || !is {
		return i.connection.Read(p)
	}
	var control [64]byte // room for some more than the one that is allowed
	n, length, err := socket.readMessage(p, control[:])
	if length > 0 {
		i.keep(control[:length])
	}
	return n, err
}

// keep takes the first descriptor and closes all others.
func (i *incoming) keep(control []byte) {
	list, _ := passed.Descriptors(control)
	if i.file == nil && len(list) > 0 {
		i.file, list = os.NewFile(uintptr(list[0]), "passed"), list[1:]
	}
	passed.Close(list)
}
