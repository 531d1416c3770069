package nat

import (
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Times of home cells (F36). A home carries what others send to this cell, so silence of it is noticed
// sooner than on other paths: a router that gave this cell another port is found out here.
const (
	homeSilence = 3 * time.Second
	homeRepeat  = 500 * time.Millisecond
	homeLost    = 5500 * time.Millisecond
	// homesInterval is how often the choice is looked at, betterAfter how long a better one waits.
	homesInterval = time.Second
	betterAfter   = time.Minute
	// betterGain is the round trip that a change must save, besides halving it.
	betterGain = 5 * time.Millisecond
	// spareAfter is how long a cell that failed as a home is not asked again.
	spareAfter = time.Minute
	sparesMax  = 256
)

func (t *Traversal) isHome(id wire.CellID) bool { return slices.Contains(t.homes, id) }

// tickHomes looks after the homes of a cell that needs them.
func (t *Traversal) tickHomes(now clock.Instant) {
	if !t.Restricted() {
		t.homes = t.homes[:0]
		return
	}
	silent := 0
	for i := 0; i < len(t.homes); i++ {
		m := t.options.Members.Get(t.homes[i])
		if m == nil || !m.InService() || m.Reach != wire.ReachPublic {
			t.homes = slices.Delete(t.homes, i, i+1)
			t.changed = true
			i--
			continue
		}
		if t.watchHome(now, m) {
			silent++
		}
	}
	if !t.homesDue.Reached(now) {
		return
	}
	t.homesDue = now.Add(homesInterval)
	t.tryHome(now, silent)
}

// watchHome asks a home that has been silent, and reports whether it is lost.
func (t *Traversal) watchHome(now clock.Instant, m *overlay.Member) bool {
	p := t.path(m.ID)
	if p == nil {
		return true
	}
	p.used = now
	if p.proven == 0 || now.Sub(p.proven) >= homeSilence {
		if now.Sub(p.pinged) >= homeRepeat {
			t.ping(now, p, m.Address)
		}
	}
	return p.proven == 0 || now.Sub(p.proven) >= homeLost
}

// tryHome looks for a home where one is missing or lost. A cell becomes one only after it has answered just
// now: while nobody answers, nothing is published.
func (t *Traversal) tryHome(now clock.Instant, silent int) {
	if m := t.options.Members.Get(t.trial); m != nil && !t.isHome(m.ID) {
		if p := t.paths[m.ID]; p != nil && p.proven != 0 && now.Sub(p.proven) < homeSilence {
			t.adopt(now, m)
			return
		}
		t.spare(now, m.ID)
	}
	t.trial = 0
	if silent == 0 && len(t.homes) == state.HomesMax {
		return
	}
	best := t.bestHome(now)
	if m := t.options.Members.Get(t.nearby); len(t.homes) == 0 && m != nil && m.InService() && !m.NeedsHelp() &&
		m.Reach == wire.ReachPublic && now.Sub(t.nearbyAt) < homeSilence && !t.keepsApart(now, m.ID) {
		if p := t.path(m.ID); p != nil { // it was heard just now, and the first home cannot come too soon
			p.proven, p.since = now, now
			t.adopt(now, m)
			return
		}
	}
	if best == nil {
		return
	}
	p := t.path(best.ID)
	if p == nil {
		return
	}
	t.trial = best.ID
	t.ping(now, p, best.Address)
	t.homesDue = now.Add(homeRepeat)
}

// spare passes a cell over for a while.
func (t *Traversal) spare(now clock.Instant, id wire.CellID) {
	if len(t.spares) >= sparesMax {
		clear(t.spares)
	}
	t.spares[id] = now
}

// adopt makes a cell that answers a home, in the place of a lost one if there is any.
func (t *Traversal) adopt(now clock.Instant, m *overlay.Member) {
	t.trial = 0
	if len(t.homes) < state.HomesMax {
		t.homes = append(t.homes, m.ID)
		t.changed = true
		return
	}
	for i, id := range t.homes {
		p := t.paths[id]
		if p == nil || p.proven == 0 || now.Sub(p.proven) >= homeLost {
			t.homes[i] = m.ID
			t.changed = true
			return
		}
	}
}

// bestHome returns the PUBLIC cell with the shortest round trip that is no home yet.
func (t *Traversal) bestHome(now clock.Instant) *overlay.Member {
	var best *overlay.Member
	t.options.Members.Each(func(m *overlay.Member) bool {
		if m.Reach != wire.ReachPublic || m.NeedsHelp() || !m.InService() || !m.Address.IsValid() ||
			t.isHome(m.ID) || t.keepsApart(now, m.ID) {
			return true
		}
		if at, failed := t.spares[m.ID]; failed && now.Sub(at) < spareAfter {
			return true
		}
		if best == nil || better(m, best) {
			best = m
		}
		return true
	})
	return best
}

// better orders by round trip; one that was never measured comes last.
func better(a, b *overlay.Member) bool {
	switch {
	case a.RTT == 0 || b.RTT == 0:
		return a.RTT != 0
	default:
		return a.RTT < b.RTT
	}
}
