package stream

import (
	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Tick does what is due: timers, acknowledgements, and datagrams as far as windows, pace and budget allow,
// streams of people first.
func (m *Mux) Tick(now clock.Instant) {
	m.now, m.kicked, m.stale = now, false, true
	m.deliver()
	for i := len(m.list) - 1; i >= 0; i-- { // a stream that ends leaves the list
		m.list[i].timers(now)
	}
	m.relays.expire(now)
	for _, s := range m.list {
		if s.greet {
			s.sendAccept()
		}
		if s.in.ackNow || s.in.ackAt != 0 && s.in.ackAt.Reached(now) {
			if s.state.established() && s.keys.open != nil {
				s.sendAck()
			}
		}
	}
	if m.starved && m.pool.available() > slabChunks {
		m.starved = false
		for _, s := range m.list {
			switch {
			case !s.wantWrite || !s.out.room():
			case m.share(s):
				s.raise(pendingWritable)
			default:
				m.starved = true
			}
		}
	}
	m.deliver()
	m.transmit(now)
	m.deliver()
}

// transmit serves the classes in order, and within one its streams in turn.
func (m *Mux) transmit(now clock.Instant) {
	budget := tickBudget
	for from := 0; from < len(m.list) && budget > 0; {
		class := m.list[from].class
		to := from
		for to < len(m.list) && m.list[to].class == class {
			to++
		}
		group := m.list[from:to]
		m.turnFrom[class]++
		for busy := true; busy && budget > 0; {
			busy = false
			for i := range group {
				s := group[(i+m.turnFrom[class])%len(group)]
				sent := s.transmit(now, min(turn, budget))
				budget -= sent
				busy = busy || sent == turn
			}
		}
		from = to
	}
	if budget == 0 {
		m.kick()
	}
}

// Deadline is when Tick has something to do next.
func (m *Mux) Deadline() clock.Instant {
	if m.kicked || len(m.events) > 0 || len(m.arrivals) > 0 {
		return m.now
	}
	if m.stale {
		m.stale = false
		m.cached = m.relays.deadline()
		for _, s := range m.list {
			m.cached = clock.Earliest(m.cached, s.deadline())
		}
	}
	return m.cached
}

func (s *Stream) deadline() clock.Instant {
	switch {
	case s.pair != nil:
		return clock.Never
	case s.state == Opening:
		return s.openDue
	case s.state == Incoming:
		return s.expires
	case s.greet || s.in.ackNow:
		return s.mux.now
	}
	next := s.heard.Add(idleMax)
	if s.initiator {
		next = min(s.keepDue(), s.improveAt)
	}
	earlier := func(at clock.Instant) {
		if at != 0 {
			next = min(next, at)
		}
	}
	earlier(s.in.ackAt)
	earlier(s.out.lossAt)
	earlier(s.out.persistAt)
	earlier(s.retransmitAt())
	if s.keys.seal != nil && s.out.choose(s.control.allowed()) != 0 {
		next = min(next, max(s.control.nextSend, s.mux.now))
	}
	return next
}

// timers does what is due in one stream, except sending data.
func (s *Stream) timers(now clock.Instant) {
	switch {
	case s.pair != nil:
	case s.state == Opening:
		if s.openDue.Reached(now) {
			s.tryOpen(now)
		}
	case s.state == Incoming:
		if s.expires.Reached(now) {
			s.Reject(ReasonTimeout)
		}
	case s.state == Closed:
	default:
		s.outTimers(now)
		if s.state == Closed {
			return
		}
		if s.initiator {
			s.improve(now)
			s.keep(now)
		} else if s.heard.Add(idleMax).Reached(now) {
			s.end(eventTimeout, ReasonTimeout)
		}
	}
}

// tryOpen sends STREAM_OPEN, each second time by another way.
func (s *Stream) tryOpen(now clock.Instant) {
	if s.tries >= openTries {
		if s.refusal == ReasonNone {
			s.refusal = ReasonTimeout
		}
		s.end(eventTimeout, s.refusal)
		return
	}
	if s.via == 0 || s.tries >= 2 {
		s.via = s.mux.options.Route(s.peer, s.route)
		s.route++
	}
	s.tries++
	interval := min(openInterval<<(s.tries-1), rtoMax)
	if s.via == 0 {
		s.openDue, s.refusal = now.Add(interval), ReasonNoRoute
		return
	}
	s.openDue = now.Add(interval)
	s.sendOpen(now)
}

func (s *Stream) sendOpen(now clock.Instant) {
	m := s.mux
	s.openSent = now
	ext := wire.AppendExtension(m.extension[:0], wire.ExtensionHops, []byte{0})
	ext = wire.AppendExtension(ext, wire.ExtensionKey, s.keys.public[:])
	if s.grant != nil {
		ext = wire.AppendExtension(ext, wire.ExtensionGrant, s.grant)
	}
	ext = wire.AppendExtension(ext, wire.ExtensionCipher, []byte{s.keys.offered})
	m.send(s, wire.TypeStreamOpen, wire.AppendStreamOpen(m.payload[:0], wire.StreamOpen{
		Stream: s.id, Target: s.peer, Type: s.kind, Name: s.name, Extensions: ext,
	}))
}

// sendAccept says STREAM_ACK 0 with this end's key.
func (s *Stream) sendAccept() {
	m := s.mux
	s.greet = false
	s.in.limit = max(s.credit(), s.in.cum)
	ext := wire.AppendExtension(m.extension[:0], wire.ExtensionKey, s.keys.public[:])
	ext = wire.AppendExtension(ext, wire.ExtensionCipher, []byte{s.keys.chosen})
	m.send(s, wire.TypeStreamAck, wire.AppendStreamAck(m.payload[:0], wire.StreamAck{
		Stream: s.id, Credit: s.in.limit - s.in.cum, Extensions: ext,
	}))
}

// keepDue is when the initiator asks for a sign of life.
func (s *Stream) keepDue() clock.Instant {
	if s.tries > 0 {
		return s.openSent.Add(probeInterval)
	}
	return s.heard.Add(keepInterval)
}

// keep asks the other end for a sign of life when there was none, which also keeps the entries of relays
// and finds another way when one of them is gone.
func (s *Stream) keep(now clock.Instant) {
	if !s.keepDue().Reached(now) {
		return
	}
	if s.tries >= probesMax {
		s.end(eventTimeout, ReasonTimeout)
		return
	}
	s.probe(now)
}

func (s *Stream) probe(now clock.Instant) {
	s.candidate = 0
	if s.improvedAt != 0 && now.Sub(s.improvedAt) < improveProof {
		s.improvedAt = 0
		s.improveLater(now)
	}
	if s.tries > 0 && s.tries%2 == 0 {
		if via := s.mux.options.Route(s.peer, s.route); via != 0 {
			if via != s.via {
				s.mux.stats.Rerouted++
			}
			s.via = via
		}
		s.route++
	}
	s.tries++
	s.sendOpen(now)
}

// improve looks now and then whether there is a better way than the one in use: a stream that began through a
// relay, or had to leave one, goes straight once its ends reach each other. The better way is used once the
// other end has answered a STREAM_OPEN that was sent there.
func (s *Stream) improve(now clock.Instant) {
	if !s.improveAt.Reached(now) {
		return
	}
	if s.candidate != 0 { // no answer; but the other end may have got the question, and answer where nothing arrives
		s.candidate = 0
		s.improveLater(now)
		s.sendOpen(now)
		return
	}
	if s.improvedAt != 0 && now.Sub(s.improvedAt) >= improveProof {
		s.improvedAt, s.improvePause = 0, improveInterval
	}
	s.improveAt = now.Add(s.improvePause)
	best, former := s.mux.options.Route(s.peer, 0), s.via
	if s.tries > 0 || best == 0 || best == former {
		return
	}
	s.candidate, s.via = best, best
	s.sendOpen(now)
	s.via = former
	s.improveAt = now.Add(probeInterval)
}

// improved takes the answer of the other end, which may be the one to improve's question.
func (s *Stream) improved(now clock.Instant) {
	if s.candidate != 0 {
		s.via, s.candidate = s.candidate, 0
		s.improvedAt, s.improveAt = now, now.Add(s.improvePause)
		s.mux.stats.Improved++
	}
}

// improveLater makes looks for a better way more seldom after one that led nowhere.
func (s *Stream) improveLater(now clock.Instant) {
	s.improvePause = min(2*s.improvePause, improvePauseMax)
	s.improveAt = now.Add(s.improvePause)
}

// suspect makes the initiator look for a sign of life at once.
func (s *Stream) suspect(now clock.Instant) {
	if s.initiator && s.tries == 0 && s.state.established() {
		s.probe(now)
	}
}
