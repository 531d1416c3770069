package stream

import (
	"slices"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Datagram is one authentic message about streams.
type Datagram struct {
	Header  wire.Header
	Payload []byte
	// Hop is the cell that sealed it: the sender, or the relay that passes on the sender's STREAM_OPEN.
	Hop wire.CellID
	// Validated: the address it came from has proven that it receives what is sent there (F14).
	Validated bool
	// Sealed is the datagram as it came, needed if it has to be passed on; may be nil.
	Sealed []byte
}

// Receive takes a message. What belongs to no stream of this cell and to none that it relays changes nothing.
func (m *Mux) Receive(now clock.Instant, d *Datagram) {
	m.now, m.stale = now, true
	m.stats.Received++
	switch d.Header.Type {
	case wire.TypeStreamOpen:
		m.receiveOpen(now, d)
	case wire.TypeStreamData, wire.TypeVolumeChunk:
		m.receiveData(now, d)
	case wire.TypeStreamAck:
		m.receiveAck(now, d)
	case wire.TypeStreamClose, wire.TypeVolumeDone:
		m.receiveClose(now, d)
	case wire.TypeRelayOffer:
		// Advisory: routes come from what the cell itself knows, so that nobody can attract streams (F154).
		if _, err := wire.ParseRelayOffer(d.Payload); err == nil {
			m.stats.RelayOffers++
		} else {
			m.stats.Malformed++
		}
	case wire.TypeVolumeRequest:
		m.receiveRequest(now, d)
	}
	m.deliver()
}

// find returns the stream that a datagram belongs to, or passes it on. STREAM messages name their
// destination in the nonce; VOL_REPL messages carry the stream's number there instead (F24).
func (m *Mux) find(now clock.Instant, d *Datagram, id uint32) *Stream {
	volume := d.Header.Type >= wire.TypeVolumeRequest
	if volume && d.Header.Nonce != id {
		m.stats.Malformed++
		return nil
	}
	if volume || d.Header.Nonce == low(m.options.Self) {
		if s := m.streams[streamKey{d.Header.Sender, id}]; s != nil && (!volume || s.kind == wire.StreamVolume) {
			return s
		}
	}
	if (volume || d.Header.Nonce != low(m.options.Self)) && m.relay(now, d, id) {
		return nil
	}
	m.stats.Unknown++
	return nil
}

func (m *Mux) receiveData(now clock.Instant, d *Datagram) {
	data, err := wire.ParseStreamData(d.Payload)
	if err != nil {
		m.stats.Malformed++
		return
	}
	unknown := m.stats.Unknown
	s := m.find(now, d, data.Stream)
	switch {
	case s == nil:
		if m.stats.Unknown != unknown && !m.mourn(now, d, data.Stream) {
			m.sendReset(d.Header.Sender, d.Header.Sender, data.Stream, ReasonNoRoute)
		}
	case !s.state.established() || s.keys.open == nil:
	default:
		s.receiveData(now, data)
	}
}

// mourn answers a datagram of a stream that ended in order: its CLOSE's acknowledgement was lost.
func (m *Mux) mourn(now clock.Instant, d *Datagram, id uint32) bool {
	key := streamKey{d.Header.Sender, id}
	for i := range m.tombstones {
		t := &m.tombstones[i]
		if t.key == key && t.cum != 0 && !t.until.Reached(now) {
			m.stats.Sent++
			m.options.Send(t.via, wire.TypeStreamAck, low(key.peer),
				wire.AppendStreamAck(m.payload[:0], wire.StreamAck{Stream: id, Sequence: t.cum}))
			return true
		}
	}
	return false
}

func (m *Mux) receiveClose(now clock.Instant, d *Datagram) {
	end, err := wire.ParseStreamClose(d.Payload)
	if err != nil {
		m.stats.Malformed++
		return
	}
	if end.Reset && (m.receiveReset(now, d, &end) || m.relayReset(d, &end)) {
		return
	}
	unknown := m.stats.Unknown
	s := m.find(now, d, end.Stream)
	switch {
	case s == nil:
		if m.stats.Unknown != unknown && !end.Reset && !m.mourn(now, d, end.Stream) {
			m.sendReset(d.Header.Sender, d.Header.Sender, end.Stream, ReasonNoRoute)
		}
	case end.Reset:
		s.end(eventReset, s.resetReason(&end))
	case s.state.established() && s.keys.open != nil:
		s.receiveFin(now, &end)
	}
}

// resetReason is what a RST of the other end means. It is never an orderly end: nothing in it is
// authenticated from end to end, and whoever passes a stream on could make a part pass for all.
func (s *Stream) resetReason(end *wire.StreamClose) Reason {
	reason := Reason(end.Reason)
	if reason == ReasonNone {
		return ReasonFailed
	}
	if s.state.established() {
		switch reason {
		case ReasonNoRoute, ReasonRefused, ReasonBusy, ReasonKind: // answers to a STREAM_OPEN that is new to it
			return ReasonForgotten
		}
	}
	return reason
}

// receiveReset handles what a relay says under its own name: it does not know the stream, or does not take
// it. That is a hint to look for another way; only the other end ends a stream.
func (m *Mux) receiveReset(now clock.Instant, d *Datagram, end *wire.StreamClose) bool {
	if d.Header.Nonce != low(m.options.Self) || m.streams[streamKey{d.Header.Sender, end.Stream}] != nil {
		return false
	}
	at := slices.IndexFunc(m.list, func(s *Stream) bool {
		return s.id == end.Stream && s.via == d.Header.Sender && s.peer != s.via && s.initiator
	})
	if at < 0 {
		return false
	}
	s := m.list[at]
	if s.state == Opening {
		s.via, s.refusal = 0, Reason(end.Reason)
		if s.refusals++; s.refusals <= refusalsQuick { // there are other ways; later it keeps to the intervals
			s.tries--
			s.openDue = now.Add(refusalPause)
		}
	} else {
		s.suspect(now)
	}
	return true
}

func (m *Mux) receiveAck(now clock.Instant, d *Datagram) {
	ack, err := wire.ParseStreamAck(d.Payload)
	if err != nil {
		m.stats.Malformed++
		return
	}
	s := m.find(now, d, ack.Stream)
	if s == nil {
		return
	}
	key := extension(ack.Extensions, wire.ExtensionKey)
	if key != nil && ack.Sequence == 0 {
		s.accepted(now, &ack, key)
		return
	}
	if s.state.established() && s.keys.seal != nil {
		// One that knows less than what is known is late, or comes from another life of the other end.
		if ack.Sequence+1 >= s.out.una {
			s.heardNow(now)
		}
		s.receiveAck(now, &ack)
	}
}

// accepted takes STREAM_ACK 0.
func (s *Stream) accepted(now clock.Instant, ack *wire.StreamAck, key []byte) {
	chosen := extension(ack.Extensions, wire.ExtensionCipher)
	if !s.initiator || len(key) != publicSize || len(chosen) != 1 || chosen[0]&^s.keys.offered != 0 {
		s.mux.stats.Malformed++
		return
	}
	if s.state != Opening {
		switch {
		case !s.state.established():
		case [publicSize]byte(key) == s.keys.other:
			s.heardNow(now)
			s.improved(now)
		default: // another life of the other end has taken it: what it was before is lost
			s.Reset(ReasonForgotten)
		}
		return
	}
	copy(s.keys.other[:], key)
	s.keys.chosen = chosen[0]
	if s.keys.agree(s.mux.options.Secret[:], s.transcript(), true) != nil {
		s.Reset(ReasonProtocol)
		return
	}
	if s.tries == 1 {
		s.control.observeRTT(now, now.Sub(s.openSent))
	}
	s.heardNow(now)
	s.improvePause, s.improveAt = improveInterval, now.Add(improveInterval)
	s.reason = ReasonNone
	s.out.limit = max(s.out.limit, min(ack.Credit, WindowMax))
	s.move(eventAccept)
	if s.out.finished {
		s.move(eventFinish)
	}
	s.raise(pendingAccepted)
	s.mux.kick()
}

func (m *Mux) receiveOpen(now clock.Instant, d *Datagram) {
	open, err := wire.ParseStreamOpen(d.Payload)
	if err != nil {
		m.stats.Malformed++
		return
	}
	if open.Target != m.options.Self {
		m.relayOpen(now, d, &open)
		return
	}
	source := d.Header.Sender
	key := extension(open.Extensions, wire.ExtensionKey)
	hops := extension(open.Extensions, wire.ExtensionHops)
	offered := extension(open.Extensions, wire.ExtensionCipher)
	wrongSide := (open.Stream>>31 != 0) != (source > open.Target)
	if len(key) != publicSize || len(hops) != 1 || len(offered) != 1 || hops[0] > HopsMax || wrongSide {
		m.stats.Malformed++
		m.sendReset(d.Hop, source, open.Stream, ReasonProtocol)
		return
	}
	if s := m.streams[streamKey{source, open.Stream}]; s != nil {
		if s.initiator || s.keys.other != [publicSize]byte(key) {
			// The other end has forgotten: it was restarted and draws the same number.
			s.end(eventReset, ReasonNoRoute)
		} else {
			s.via = d.Hop // authentic, and newer than what the window of the opener has seen
			s.heardNow(now)
			s.greet = s.state != Incoming
			m.kick()
			return
		}
	}
	for i := range m.tombstones {
		t := &m.tombstones[i]
		if t.key == (streamKey{source, open.Stream}) && t.other == [publicSize]byte(key) && !t.until.Reached(now) {
			return // late, or shown again: the stream is over
		}
	}
	if reason := m.admit(now, source, d); reason != ReasonNone {
		m.stats.Refused++
		m.sendReset(d.Hop, source, open.Stream, reason)
		return
	}
	s := &Stream{
		mux: m, peer: source, id: open.Stream, kind: open.Type, class: classOf(open.Type),
		name: slices.Clone(open.Name), grant: slices.Clone(extension(open.Extensions, wire.ExtensionGrant)),
		state: Incoming, via: d.Hop, heard: now, expires: now.Add(acceptLimit),
	}
	copy(s.keys.other[:], key)
	s.keys.offered = offered[0]
	s.out.init()
	s.in.init()
	s.control.init(m.options.Random.IntN(len(cycle)))
	m.add(s)
	m.arrivals = append(m.arrivals, s)
}

// admit says why a stream cannot be taken, ReasonNone if it can.
func (m *Mux) admit(now clock.Instant, source wire.CellID, d *Datagram) Reason {
	m.accepts = min(m.accepts+acceptRate*now.Sub(m.acceptsAt).Seconds(), acceptBurst)
	m.acceptsAt = now
	if m.options.Member != nil && (!m.options.Member(source) || !m.options.Member(d.Hop)) || !d.Validated {
		return ReasonRefused
	}
	theirs := 0
	for _, s := range m.list {
		if s.peer == source && !s.initiator {
			theirs++
		}
	}
	if m.accepts < 1 || len(m.list) >= m.options.StreamsMax || theirs >= PeerStreamsMax {
		return ReasonBusy
	}
	m.accepts--
	return ReasonNone
}

// receiveRequest checks VOL_REPL_REQ, which belongs to a volume stream that was opened before (F24). The
// request itself is read by the service from the stream.
func (m *Mux) receiveRequest(now clock.Instant, d *Datagram) {
	if _, err := wire.ParseVolumeRequest(d.Payload); err != nil {
		m.stats.Malformed++
		return
	}
	if s := m.find(now, d, d.Header.Nonce); s != nil && s.state.established() {
		s.heardNow(now)
	}
}
