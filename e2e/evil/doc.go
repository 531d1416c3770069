// Package evil is a meshd that has been taken over (docs/threat-model.md): its tests speak to
// the real command runnerd and send every command with hostile fields, scribble over the shared
// memory, flood descriptors and lie about everything. What must hold afterwards: nothing ran that the
// host's policy does not list, the canaries are untouched, runnerd is the same process as before and
// has not grown without bound (F132, F133, F145).
package evil

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// Rings is what runnerd hands out, without any of the checks of an honest meshd.
type Rings struct {
	File   int // the shared memory
	Events [2]int
	Memory []byte
}

// Take receives the hello and maps the memory.
func Take(conn *net.UnixConn) (*Rings, error) {
	hello, control := make([]byte, 64), make([]byte, 256)
	_, n, _, _, err := conn.ReadMsgUnix(hello, control)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("evil: no descriptors came"))
	}
	descriptors, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(descriptors) != 3 {
		return nil, errors.Join(err, errors.New("evil: not three descriptors"))
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptors[0], &stat); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(descriptors[0], 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Rings{File: descriptors[0], Events: [2]int{descriptors[1], descriptors[2]}, Memory: memory}, nil
}

// Close gives everything back.
func (r *Rings) Close() {
	_ = unix.Munmap(r.Memory)
	unix.Close(r.File)
	unix.Close(r.Events[0])
	unix.Close(r.Events[1])
}
