// Package passed finds the file descriptors that came beside a message on a Unix socket.
//
// Nouns: control data is what the kernel gives beside the bytes of a message (recvmsg), rights are the
// descriptors in it. They are in this process's table from the moment of receiving, so whoever receives owns
// all of them, those of a message that it then refuses too.
//
// Limits: those of the room that a receiver gives for control data. The kernel closes what does not fit and
// says so with MSG_CTRUNC.
package passed

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// ErrControl means that control data is no sequence of rights.
var ErrControl = errors.New("passed: control data is not understood")

// Descriptors lists every descriptor of the control data, also beside an error, so that they can be closed.
// The error is ErrControl: there is something else than descriptors in it.
func Descriptors(control []byte) (list []int, err error) {
	messages, parseErr := unix.ParseSocketControlMessage(control)
	if parseErr != nil {
		return nil, ErrControl
	}
	for _, m := range messages {
		// unix.ParseUnixRights panics where the length is no multiple of a descriptor's.
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS || len(m.Data)%4 != 0 {
			err = ErrControl
			continue
		}
		for data := m.Data; len(data) > 0; data = data[4:] {
			list = append(list, int(int32(binary.NativeEndian.Uint32(data))))
		}
	}
	return list, err
}

// Close closes descriptors that nobody wants.
func Close(list []int) {
	for _, fd := range list {
		_ = unix.Close(fd)
	}
}
