package daemon

import (
	"time"

	"colloid.net/ipc/message"
)

// A helper that hangs keeps its connection. It is asked something every helperInterval and has to acknowledge it; one
// that owes an answer at helperMissed looks in a row, 10 to 15 s, does not work. All commands count, but only looks of
// this process are counted: after a pause of the whole host or cell both begin anew.
const (
	helperInterval = 5 * time.Second
	helperMissed   = 2
)

// watchHelper looks after runnerd until the daemon stops.
func (d *Daemon) watchHelper() {
	ticker := time.NewTicker(helperInterval)
	defer ticker.Stop()
	for {
		select {
		case <-d.stopped:
			return
		case <-ticker.C:
			d.inbox.post(func() { d.helper.look(d) })
		}
	}
}

// look counts the answers that are owed and asks again. It does not ask while one is owed: the ring stays empty for
// what matters.
func (h *helper) look(d *Daemon) {
	if h.link == nil || !h.takesHost {
		return // a helper of another version does not acknowledge
	}
	if link := h.link; !h.asked.IsZero() {
		h.drain(d, link) // the answer may be here already
		if h.link != link {
			return
		}
	}
	if h.asked.IsZero() {
		h.tellHost()
		return
	}
	if h.missed++; h.missed >= helperMissed {
		d.cell.HelperSilent(d.reactor.Now(), time.Since(h.asked))
	}
}

// acknowledged notes that the helper has carried out what was sent up to a sequence.
func (h *helper) acknowledged(d *Daemon, sequence uint64) {
	if sequence > h.sequence {
		return // it cannot have seen that; nothing follows from it
	}
	silent := h.missed >= helperMissed
	h.missed, h.asked = 0, time.Time{}
	if sequence < h.sequence {
		h.asked = time.Now() // it works, and owes more
	}
	if silent {
		d.cell.HelperAnswers(d.reactor.Now())
	}
}

// tellHost says where the instances answer.
func (h *helper) tellHost() {
	if h.link != nil && h.takesHost {
		h.command(&message.Command{Body: &message.Command_Host{Host: &message.Host{Address: h.address}}})
	}
}
