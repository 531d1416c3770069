package cli

import (
	"time"

	"colloid.net/ipc/uds"
)

// lookAgain finds what has changed in the cluster; it reports true when there is nothing to follow any more.
func (f *follower) lookAgain() bool {
	if f.streams != nil && f.streams.ended() {
		f.say("%s: waiting for the daemon", streamTrouble(f.streams.broken))
		f.disconnect()
	}
	s, err := f.app.dial()
	if err != nil {
		return false // what carries the streams ends as well
	}
	defer s.close()
	status, err := s.status(false)
	if err != nil {
		return false
	}
	if f.streams == nil {
		if f.streams, err = dialStreams(s); err != nil {
			return false
		}
		f.say("connected to the daemon again")
	}
	exists := false
	for _, w := range status.Workloads {
		exists = exists || w.Key == f.key
	}
	if !exists && status.Cell.Authoritative {
		f.say("%s was deleted", printable(f.key))
		return true
	}
	f.look(status, f.wanted(status))
	return false
}

// wanted are the replicas to be followed now.
func (f *follower) wanted(status *uds.Status) []replica {
	if f.chain != nil {
		before := f.chain.current
		r, remark := f.chain.next(status)
		if remark != "" {
			f.say("%s", remark)
		}
		if s := f.sources[before]; s != nil && before != f.chain.current && s.open {
			f.close(s)
		}
		if r == nil {
			return nil
		}
		return []replica{*r}
	}
	replicas, err := f.reference.find(status, f.key)
	if err != nil {
		return nil // a cell that is not there now
	}
	if f.printer.single && len(replicas) > 1 {
		f.say("%s has %d replicas now", f.reference.name(f.key), len(replicas))
		f.printer.single = false
	}
	return replicas
}

// close stops reading a replica.
func (f *follower) close(s *source) {
	s.open = false
	f.printer.finish(s)
	s.remote.Close()
	s.remote = nil // what is on its way still is void
}

// look opens what is not open. What has gone from the list ends by itself.
func (f *follower) look(status *uds.Status, replicas []replica) {
	listed := map[instance]bool{}
	for _, r := range replicas {
		id := r.instance()
		listed[id] = true
		s := f.sources[id]
		if s == nil {
			s = &source{replica: r, host: hostOf(status, r.info.Cell), fresh: f.printer.started}
			if f.sources[id] = s; f.printer.started && f.chain == nil {
				f.say("%s: now on %s", r.name(), s.host)
			}
		}
		s.replica = r
		switch {
		case r.info.State == "unreachable":
			if !s.gone {
				s.gone = true
				f.failed = true
				f.say("%s: its cell %s does not answer", r.name(), s.host)
			}
		case s.gone:
			s.gone = false
			f.say("%s: its cell %s answers again", r.name(), s.host)
		}
		if !s.open && !s.gone && !time.Now().Before(s.retry) {
			f.open(s)
		}
	}
	for id, s := range f.sources {
		if !listed[id] && !s.open && f.chain == nil { // of a chain's, one may come back and goes on where it ended
			delete(f.sources, id)
		}
	}
}
