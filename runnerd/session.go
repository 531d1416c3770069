package runnerd

import (
	"fmt"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
)

// peer is who is at the other end, for the audit log.
type peer struct {
	uid int64
	pid int
}

// session is one connection of a meshd. It belongs to the loop's goroutine.
type session struct {
	link     *ring.Link
	peer     peer
	sequence uint64 // of the last command

	hello       bool // Hello is to be sent
	network     bool // Network is to be sent
	listing     bool // Listing is to be sent, once nothing is dirty
	acknowledge bool // an event must be sent, if only for its acknowledgement
	attaching   int  // descriptors being made
}

// Attach takes a connected socket of a meshd and makes it the session, in place of the old one. It
// owns the connection from now on.
func (s *Supervisor) Attach(conn *net.UnixConn) error {
	credentials, err := ring.PeerCredentials(conn)
	if err != nil {
		conn.Close()
		return err
	}
	link, err := ring.Create(conn)
	if err != nil {
		conn.Close()
		return err
	}
	fresh := &session{link: link, peer: peer{int64(credentials.UID), credentials.PID}, hello: true, network: true}
	attached := s.post(func() {
		if s.session != nil {
			s.session.link.Close()
			s.blobsGone(s.session)
			s.dropPreparations(s.session)
		}
		s.session = fresh
		s.checkPolicy()
		s.relist()
		s.audit.write(fresh.peer, 0, "connect", "allowed")
	})
	if !attached {
		link.Close()
		return nil
	}
	go func() { link.WaitHangup(); link.Close() }()
	go s.receive(fresh)
	return nil
}

// receive reads commands until the link ends. A command is carried out before the next one is read,
// so a flood waits in the ring.
func (s *Supervisor) receive(from *session) {
	buffer := make([]byte, ring.RecordMax)
	err := s.receiveUntilError(from, buffer)
	from.link.Close()
	s.post(func() {
		s.audit.write(from.peer, from.sequence, "disconnect", err.Error())
		if s.session == from {
			s.session = nil
		}
		s.blobsGone(from)
		s.dropPreparations(from)
	})
}

func (s *Supervisor) receiveUntilError(from *session, buffer []byte) error {
	for {
		n, ok, err := from.link.Receive(buffer)
		if err != nil {
			return err
		}
		if !ok {
			from.link.Wait(-1)
			continue
		}
		command := new(message.Command)
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(buffer[:n], command); err != nil {
			return fmt.Errorf("command of %d bytes is malformed", n)
		}
		err = ring.ErrClosed
		s.do(func() {
			if s.session == from {
				err = s.command(from, command)
			}
		})
		if err != nil {
			return err
		}
	}
}

// relist marks everything to be sent again, between a Hello and a Listing: what meshd knows and does not find between
// them does not exist.
func (s *Supervisor) relist() {
	if s.session == nil {
		return
	}
	s.session.hello, s.session.listing = true, true
	for _, i := range s.instances {
		i.dirty = true
	}
}

// flush sends what is to be sent as far as the ring has room. What does not fit stays marked and is
// tried again after a while; events carry states, so a later one replaces an earlier one.
func (s *Supervisor) flush() {
	if s.session == nil {
		s.gone = nil // the listing of the next session says it
		return
	}
	if !s.flushAll() && s.session.link.Err() == nil && s.retry == nil {
		s.retry = time.AfterFunc(sendRetry, func() { s.post(func() { s.retry = nil }) })
	}
}

func (s *Supervisor) flushAll() bool {
	current := s.session
	if current.hello {
		if !s.send(&message.Event{Body: &message.Event_Hello{Hello: s.helloMessage()}}) {
			return false
		}
		current.hello = false
	}
	if current.network {
		if !s.send(&message.Event{Body: &message.Event_Network{Network: s.networkMessage()}}) {
			return false
		}
		current.network = false
	}
	for len(s.gone) > 0 {
		if !s.send(&message.Event{Body: &message.Event_Instance{Instance: s.gone[0]}}) {
			return false
		}
		s.gone = s.gone[1:]
	}
	for _, i := range s.instances {
		if !i.dirty {
			continue
		}
		if !s.send(&message.Event{Body: &message.Event_Instance{Instance: i.message()}}) {
			return false
		}
		i.dirty = false
	}
	for len(s.ahead.answers) > 0 {
		if !s.send(&message.Event{Body: &message.Event_Prepared{Prepared: s.ahead.answers[0]}}) {
			return false
		}
		s.ahead.answers = s.ahead.answers[1:]
	}
	if current.listing {
		listing := &message.Listing{Count: uint32(len(s.instances))}
		if !s.send(&message.Event{Body: &message.Event_Listing{Listing: listing}}) {
			return false
		}
		current.listing = false
	}
	if current.acknowledge {
		return s.send(&message.Event{})
	}
	return true
}

func (s *Supervisor) send(event *message.Event) bool {
	event.Acknowledged = s.session.sequence
	record, err := proto.Marshal(event)
	if err != nil || len(record) > ring.RecordMax {
		panic(fmt.Sprintf("runnerd: event of %d bytes: %v", len(record), err)) // shorten bounds all parts
	}
	if !s.session.link.Send(record) {
		return false
	}
	s.session.acknowledge = false
	return true
}
