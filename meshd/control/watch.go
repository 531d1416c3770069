package control

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// A socket whose file is deleted goes on listening and can be reached by nobody. So the server looks at its
// file every watchInterval and listens again when it is not there or another one is in its place.

// watchInterval is the longest time that a daemon stays unreachable because its socket was deleted.
const watchInterval = 2 * time.Second

// place names the file of a socket: whatever others put under its name has another.
type place struct{ device, inode uint64 }

func placeOf(path string) place {
	info, err := os.Lstat(path)
	if err != nil {
		return place{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return place{}
	}
	return place{uint64(stat.Dev), stat.Ino}
}

// listenAt makes a socket with its final owner and mode under a name that nobody knows, and moves it to its
// place: nobody can connect before the permissions are right, and nobody can slip something else in between.
func listenAt(options *Options) (*net.UnixListener, place, error) {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	temporary := options.Path + "." + hex.EncodeToString(random[:])
	if len(temporary) > socketPathMax {
		temporary = options.Path // too long for another name; the directory is ours alone
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, place{}, fmt.Errorf("control: %w", err)
	}
	listener.SetUnlinkOnClose(false) // Close removes the file, if it is still this one
	// Until here the umask has kept others out: connecting needs write permission.
	options.giveToGroup(temporary)
	err = os.Chmod(temporary, 0o660)
	mine := placeOf(temporary)
	if err == nil && temporary != options.Path {
		err = os.Rename(temporary, options.Path)
	}
	if err != nil {
		listener.Close()
		os.Remove(temporary)
		return nil, place{}, fmt.Errorf("control: %w", err)
	}
	return listener, mine, nil
}

// socketPathMax is what the kernel takes for the path of a socket, without the final zero.
const socketPathMax = 107

// watch listens again whenever the file of the socket is not the server's any more.
func (s *Server) watch() {
	ticker := time.NewTicker(s.options.watchInterval)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case <-s.context.Done():
			return
		case <-ticker.C:
		}
		s.mutex.Lock()
		mine := s.place
		s.mutex.Unlock()
		if placeOf(s.options.Path) == mine {
			continue
		}
		err := s.listenAgain()
		switch {
		case err == nil:
			said = ""
			s.options.Trouble("the command socket "+s.options.Path+" was deleted or replaced while meshd runs, and made again",
				"find out who did that", true)
		case said != err.Error():
			said = err.Error()
			s.options.Trouble("the command socket is gone: "+said, "meshd tries again every few seconds", false)
		}
	}
}

func (s *Server) listenAgain() error {
	listener, mine, err := bind(&s.options)
	if err != nil {
		return err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		os.Remove(s.options.Path)
		return listener.Close()
	}
	old := s.listener
	s.listener, s.place = listener, mine
	return old.Close() // Serve goes on with the new one
}

// accept waits for a client on whichever listener is the present one.
func (s *Server) accept() (*net.UnixConn, error) {
	for {
		s.mutex.Lock()
		listener := s.listener
		s.mutex.Unlock()
		connection, err := listener.AcceptUnix()
		if !errors.Is(err, net.ErrClosed) {
			return connection, err
		}
		s.mutex.Lock()
		replaced := s.listener != listener
		s.mutex.Unlock()
		if !replaced {
			return nil, err
		}
	}
}
