package swim

import (
	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// kind says why a question was asked.
type kind uint8

const (
	kindScheduled kind = iota // PING of the schedule
	kindRound                 // PING of a full round
	kindDead                  // PING to a cell held DEAD
	kindRequest               // PING_REQ to a helper
	kindRelay                 // PING on behalf of another cell
)

// question is a message that may still be answered.
type question struct {
	cell  wire.CellID // who is to answer; 0 = answered
	about wire.CellID // target of a PING_REQ
	nonce uint32
	kind  kind
	sent  clock.Instant
}

// outstanding remembers what was asked, in a ring in the order of sending. Entries age out by
// nonceLifetime when looked at; at the bound the oldest is overwritten.
type outstanding struct {
	ring  []question
	start int
	count int
}

func (o *outstanding) add(q question) {
	if o.count == len(o.ring) {
		o.start = (o.start + 1) % len(o.ring)
		o.count--
	}
	o.ring[(o.start+o.count)%len(o.ring)] = q
	o.count++
}

// take finds the question that cell answers with nonce and removes it, so that an answer counts once.
func (o *outstanding) take(now clock.Instant, cell wire.CellID, nonce uint32) (question, bool) {
	for o.count > 0 && (o.ring[o.start].cell == 0 || now.Sub(o.ring[o.start].sent) > nonceLifetime) {
		o.start = (o.start + 1) % len(o.ring)
		o.count--
	}
	for i := o.count - 1; i >= 0; i-- {
		q := &o.ring[(o.start+i)%len(o.ring)]
		if q.cell == cell && q.nonce == nonce {
			found := *q
			q.cell = 0
			return found, true
		}
	}
	return question{}, false
}

// await notes that a member should answer. A question that was forgotten begins no row.
func await(now clock.Instant, m *overlay.Member) {
	if m.Awaited == 0 || now.Sub(m.Asked) > nonceLifetime {
		m.Awaited = now
	}
	m.Asked = now
}

// spoke notes an answer of a member.
func spoke(now clock.Instant, m *overlay.Member) { m.Answered, m.Awaited = now, 0 }

// ping sends a PING and remembers its nonce. The payload names the address the member was last heard
// from, if that is fresh (F23).
func (d *Detector) ping(now clock.Instant, m *overlay.Member, k kind) (nonce uint32) {
	nonce = d.options.Nonce()
	d.outstanding.add(question{cell: m.ID, nonce: nonce, sent: now, kind: k})
	await(now, m)
	source := m.Source
	if m.SourceHeard == 0 || now.Sub(m.SourceHeard) > observationLifetime {
		source = unknownAddress
	}
	d.options.Send(m.ID, wire.TypePing, nonce, wire.AppendPing(d.payload[:0], source))
	return nonce
}
