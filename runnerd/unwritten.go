package runnerd

import (
	"errors"
	"fmt"

	"colloid.net/ipc/message"
	"golang.org/x/sys/unix"
)

// unwritten is what could not be made durable, most likely because the disk is full. Instances go on without,
// but the next runnerd would not know what this one decided, so that an operator must hear of it. It belongs
// to the loop's goroutine.
type unwritten struct {
	instances map[InstanceID]struct{} // their last state is not on the disk
	reason    error                   // of the last failure
	audit     bool                    // the audit log does not take lines
	told      bool                    // meshd's present alarm says so
}

// write makes the state of an instance durable, or remembers that it is not.
func (s *Supervisor) write(i *instance) {
	err := i.save()
	if err == nil {
		delete(s.unwritten.instances, i.id)
		return
	}
	if _, known := s.unwritten.instances[i.id]; !known {
		s.options.Log.Printf("cannot write down the state of %s: %v", i.id, err)
	}
	if s.unwritten.instances == nil {
		s.unwritten.instances = make(map[InstanceID]struct{})
	}
	s.unwritten.instances[i.id], s.unwritten.reason = struct{}{}, err
	s.tellUnwritten()
}

// writeAgain tries what failed before, and takes the alarm back when all of it is on the disk.
func (s *Supervisor) writeAgain() {
	for id := range s.unwritten.instances {
		i := s.instances[id]
		if i == nil || i.directory == "" || i.save() == nil {
			delete(s.unwritten.instances, id)
		}
	}
	if s.audit.failed != nil {
		s.audit.write(peer{}, 0, "audit", "lines before this one may be missing: "+s.audit.failed.Error())
	}
	s.unwritten.audit = s.audit.failed != nil
	if s.unwritten.audit {
		s.unwritten.reason = s.audit.failed
	}
	s.tellUnwritten()
}

// tellUnwritten sends another Hello where the alarm begins or ends.
func (s *Supervisor) tellUnwritten() {
	failing := len(s.unwritten.instances) > 0 || s.unwritten.audit
	if failing == s.unwritten.told {
		return
	}
	s.unwritten.told = failing
	if !failing {
		s.options.Log.Printf("everything is written down again")
	}
	if s.session != nil {
		s.session.hello = true
		s.relist()
	}
}

// alarm is what meshd is told, "" for nothing.
func (u *unwritten) alarm(directory string) string {
	if !u.told {
		return ""
	}
	reason := u.reason
	for _, cause := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS} {
		if errors.Is(reason, cause) {
			reason = cause
		}
	}
	return message.AlarmPrefix + shorten(fmt.Sprintf("cannot write to %s: %v", directory, reason)) +
		message.HintMark + "what runs goes on, but a restart would not know of it: make room there"
}
