package stream

import (
	"encoding/binary"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Limits of relaying (F150, F153).
const (
	// HopsMax is how many relays a stream may pass.
	HopsMax = 8
	// RelaysMax bounds the streams that a cell relays, RelaysPerSource those of one originator.
	RelaysMax       = 256
	RelaysPerSource = 8
	relayHalfOpen   = 5 * time.Second
	relayIdle       = 30 * time.Second
	relayClosing    = 5 * time.Second
	// relayFresh is how long an entry resists being replaced by the same stream from another direction.
	relayFresh = time.Second
)

// RelayLimits bound what a cell does for others. Zero fields mean the defaults.
type RelayLimits struct {
	Streams         int // RelaysMax; negative: none
	BytesPerSecond  int // of all together, 64 MiB
	StreamPerSecond int // of one, 32 MiB
}

// relayed is one stream that passes through. Nothing of its content is kept (STREAM-5).
type relayed struct {
	id             uint32
	source, target wire.CellID
	previous, next wire.CellID // hops towards either end
	opened, heard  clock.Instant
	answeredAt     clock.Instant // last datagram of the target, 0 = none yet
	sourceFin      bool
	targetFin      bool
	bucket         bucket
}

// bucket limits bytes per second.
type bucket struct {
	tokens float64
	at     clock.Instant
}

func (b *bucket) take(now clock.Instant, bytes, rate int) bool {
	burst := float64(rate) / 16
	if b.at == 0 {
		b.tokens = burst
	} else {
		b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*float64(rate), burst)
	}
	b.at = now
	if b.tokens < float64(bytes) {
		return false
	}
	b.tokens -= float64(bytes)
	return true
}

type relayTable struct {
	limits  RelayLimits
	entries []relayed
	bucket  bucket
	due     clock.Instant
}

func (t *relayTable) init(limits RelayLimits) {
	if limits.Streams == 0 {
		limits.Streams = RelaysMax
	}
	if limits.BytesPerSecond == 0 {
		limits.BytesPerSecond = 64 << 20
	}
	if limits.StreamPerSecond == 0 {
		limits.StreamPerSecond = 32 << 20
	}
	t.limits, t.due = limits, clock.Never
}

// Relaying reports whether anything passes through this cell, so that it needs the sealed form of datagrams.
func (m *Mux) Relaying() bool { return len(m.relays.entries) > 0 }

// Relays returns how many streams pass through this cell.
func (m *Mux) Relays() int { return len(m.relays.entries) }

func (e *relayed) until() clock.Instant {
	switch {
	case e.answeredAt == 0:
		return e.opened.Add(relayHalfOpen)
	case e.sourceFin && e.targetFin:
		return e.heard.Add(relayClosing)
	}
	return e.heard.Add(relayIdle)
}

func (t *relayTable) deadline() clock.Instant { return t.due }

// expire removes what is over, looking at all of it once a second.
func (t *relayTable) expire(now clock.Instant) {
	if !t.due.Reached(now) {
		return
	}
	kept := t.entries[:0]
	for i := range t.entries {
		if e := &t.entries[i]; !e.until().Reached(now) {
			kept = append(kept, *e)
		}
	}
	t.entries = kept
	t.due = clock.Never
	if len(kept) > 0 {
		t.due = now.Add(time.Second)
	}
}

func (t *relayTable) remove(e *relayed) {
	last := len(t.entries) - 1
	*e = t.entries[last]
	t.entries = t.entries[:last]
}

// find returns the entry that a datagram of either end belongs to. The destination tells entries apart that
// share number and sender; without one the entry must be the only such.
func (t *relayTable) find(id uint32, sender wire.CellID, destination uint32, named bool) *relayed {
	var found *relayed
	for i := range t.entries {
		e := &t.entries[i]
		if e.id != id {
			continue
		}
		var far wire.CellID
		switch sender {
		case e.source:
			far = e.target
		case e.target:
			far = e.source
		default:
			continue
		}
		if named && low(far) == destination {
			return e
		}
		if !named {
			if found != nil {
				return nil
			}
			found = e
		}
	}
	return found
}

// relay passes a datagram on and reports whether it belongs to an entry.
func (m *Mux) relay(now clock.Instant, d *Datagram, id uint32) bool {
	named := d.Header.Type < wire.TypeVolumeRequest
	e := m.relays.find(id, d.Header.Sender, d.Header.Nonce, named)
	if e == nil {
		return false
	}
	if d.Sealed == nil {
		panic("stream: a datagram to be passed on without its sealed form")
	}
	e.heard = now
	fromSource := d.Header.Sender == e.source
	if !fromSource {
		e.answeredAt = now
	}
	size := len(d.Sealed)
	if !e.bucket.take(now, size, m.relays.limits.StreamPerSecond) ||
		!m.relays.bucket.take(now, size, m.relays.limits.BytesPerSecond) {
		m.stats.RelayLimited++
		return true
	}
	to := e.previous
	if fromSource {
		to = e.next
	}
	m.stats.Relayed++
	m.stats.RelayedBytes += uint64(size)
	m.options.Forward(to, d.Sealed)
	if d.Header.Type == wire.TypeStreamClose || d.Header.Type == wire.TypeVolumeDone {
		m.relayClose(e, d, fromSource)
	}
	return true
}

// HopOf returns the cell that a datagram should have come from directly, 0 if none is known: only that cell
// can tell whether it is reached at the address it came from (F155).
func (m *Mux) HopOf(d *Datagram) wire.CellID {
	if d.Header.Type == wire.TypeStreamOpen {
		return d.Hop
	}
	if len(d.Payload) < 4 {
		return 0
	}
	id := binary.BigEndian.Uint32(d.Payload)
	if d.Header.Nonce == low(m.options.Self) {
		if s := m.streams[streamKey{d.Header.Sender, id}]; s != nil {
			return s.via
		}
		return 0
	}
	e := m.relays.find(id, d.Header.Sender, d.Header.Nonce, true)
	switch {
	case e == nil:
		return 0
	case e.source == d.Header.Sender:
		return e.previous
	}
	return e.next
}

// relayClose notes what a CLOSE that passed says about the entry.
func (m *Mux) relayClose(e *relayed, d *Datagram, fromSource bool) {
	end, err := wire.ParseStreamClose(d.Payload)
	switch {
	case err != nil:
	case end.Reset:
		m.relays.remove(e)
	case fromSource:
		e.sourceFin = true
	default:
		e.targetFin = true
	}
}

// relayReset takes a refusal of the next relay, which names the source in the nonce, and hands it back.
func (m *Mux) relayReset(d *Datagram, end *wire.StreamClose) bool {
	for i := range m.relays.entries {
		e := &m.relays.entries[i]
		if e.id == end.Stream && low(e.source) == d.Header.Nonce && e.next == d.Header.Sender &&
			e.target != d.Header.Sender {
			m.sendReset(e.previous, e.source, e.id, Reason(end.Reason))
			m.relays.remove(e)
			return true
		}
	}
	return false
}

// relayOpen admits a stream that others have with each other, and passes its STREAM_OPEN on.
func (m *Mux) relayOpen(now clock.Instant, d *Datagram, open *wire.StreamOpen) {
	e, reason := m.admitRelay(now, d, open)
	if reason != ReasonNone {
		m.stats.RelayRefused++
		m.sendReset(d.Hop, d.Header.Sender, open.Stream, reason)
		return
	}
	hops := extension(open.Extensions, wire.ExtensionHops)[0] + 1
	ext := append(m.extension[:0], open.Extensions...)
	ext[2] = hops // the extension of the least tag is the first
	m.stats.Relayed++
	m.options.SendOpen(e.next, e.source, d.Header.Nonce, wire.AppendStreamOpen(m.payload[:0], wire.StreamOpen{
		Stream: e.id, Target: e.target, Type: open.Type, Name: open.Name, Extensions: ext,
	}))
}

// admitRelay finds or makes the entry of a stream.
func (m *Mux) admitRelay(now clock.Instant, d *Datagram, open *wire.StreamOpen) (*relayed, Reason) {
	source, target, self := d.Header.Sender, open.Target, m.options.Self
	o, t := &m.options, &m.relays
	hops := extension(open.Extensions, wire.ExtensionHops)
	switch {
	case o.NextHop == nil || o.Member == nil || t.limits.Streams < 0:
		return nil, ReasonRefused
	case source == self || target == source || len(hops) != 1 || open.Extensions[0] != wire.ExtensionHops:
		return nil, ReasonProtocol
	case !o.Member(source) || !o.Member(target) || !o.Member(d.Hop) || !d.Validated:
		return nil, ReasonRefused
	case hops[0] >= HopsMax:
		m.stats.RelayHopsMax++
		return nil, ReasonHops
	case d.Hop != source && !m.closer(target, self, d.Hop):
		m.stats.RelayLoops++ // the relay before must not have chosen this one
		return nil, ReasonLoop
	}
	if e := t.find(open.Stream, source, low(target), true); e != nil && e.source == source && e.target == target {
		if e.previous == d.Hop {
			if now.Sub(max(e.opened, e.answeredAt)) >= relayFresh { // the source asks because nothing came back
				if next := m.chooseNext(d, target); next != 0 {
					e.next = next
				}
			}
			e.heard = now
			return e, ReasonNone
		}
		if now.Sub(e.heard) < relayFresh {
			m.stats.RelayLoops++
			return nil, ReasonLoop
		}
		t.remove(e)
	} else if e != nil || t.find(open.Stream, target, low(source), true) != nil {
		return nil, ReasonBusy // another stream that could not be told from this one
	}
	if !m.relayRoom(source, open) {
		return nil, ReasonBusy
	}
	next := m.chooseNext(d, target)
	if next == 0 {
		return nil, ReasonNoRoute
	}
	t.entries = append(t.entries, relayed{
		id: open.Stream, source: source, target: target, previous: d.Hop, next: next, opened: now, heard: now,
	})
	t.due = min(t.due, now.Add(time.Second))
	m.options.Send(d.Hop, wire.TypeRelayOffer, low(source), wire.AppendRelayOffer(m.payload[:0],
		wire.RelayOffer{Stream: open.Stream, Source: source, Target: target}))
	return &t.entries[len(t.entries)-1], ReasonNone
}

// chooseNext asks where a stream goes from here, 0 if nowhere that the rule of F150 allows.
func (m *Mux) chooseNext(d *Datagram, target wire.CellID) wire.CellID {
	source, self := d.Header.Sender, m.options.Self
	next := m.options.NextHop(target, source, d.Hop)
	if next == source || next == d.Hop || next == self || next != 0 && !m.closer(target, next, self) {
		return 0
	}
	return next
}

// closer is the rule that keeps streams from going in circles: the next hop is the target, a home cell of it,
// or strictly nearer to it than the cell that chooses (F150).
func (m *Mux) closer(target, next, chooser wire.CellID) bool {
	return next == target || next^target < chooser^target || m.options.Home != nil && m.options.Home(target, next)
}

// relayRoom applies the bounds per source and together. The last quarter is kept for volumes and for exec
// with a grant.
func (m *Mux) relayRoom(source wire.CellID, open *wire.StreamOpen) bool {
	t := &m.relays
	ofSource := 0
	for i := range t.entries {
		if t.entries[i].source == source {
			ofSource++
		}
	}
	reserved := t.limits.Streams / 4
	if open.Type == wire.StreamVolume ||
		open.Type == wire.StreamExec && extension(open.Extensions, wire.ExtensionGrant) != nil {
		reserved = 0
	}
	return ofSource < RelaysPerSource && len(t.entries) < t.limits.Streams-reserved
}
