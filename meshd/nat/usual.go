package nat

import (
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// A router that translates for several cells, as Linux does, gives each connection the cell's own port, unless another cell
// has taken that towards the same peer. So two cells of one port which met their peers in different order are seen at two
// ports each, and go on at either with whom they talk to. That is not a router which draws a port for each
// destination: there, hardly two observers see the same one.
const (
	// usualFor is how old a report may be that counts for this.
	usualFor = time.Minute
	// usualAgain is how often all reports are looked at while nothing new is said.
	usualAgain = 5 * time.Second
	// usualObservers at different addresses at least, and usualShare of all, see the usual port.
	usualObservers = 2
	usualShare     = 3
)

// usual finds out where most observers see this cell, of as many the latest, the zero AddrPort if hardly any two agree;
// and another place at the same router where one sees it, keeping the one that was known before. It looks at all reports, so
// only now and then, and when there is something new.
func (v *view) usual(now clock.Instant) {
	if !v.fresh && now.Sub(v.usualAt) < usualAgain {
		return
	}
	v.fresh, v.usualAt = false, now
	var list [reportsMax]report // one of each observer's address for each place
	n, observers := 0, 0
	for i := range v.reports {
		r := &v.reports[i]
		if r.at == 0 || r.old || now.Sub(r.at) >= usualFor {
			continue
		}
		known, same := false, false
		for j := range list[:n] {
			if list[j].observer.Addr() != r.observer.Addr() {
				continue
			}
			known = true
			if list[j].observed == r.observed {
				same = true
				list[j].at = max(list[j].at, r.at)
			}
		}
		if !known {
			observers++
		}
		if !same {
			list[n] = *r
			n++
		}
	}
	most, best, bestAt := netip.AddrPort{}, 0, clock.Instant(0)
	for i := range list[:n] {
		count, at := 0, clock.Instant(0)
		for j := range list[:n] {
			if list[j].observed == list[i].observed {
				count, at = count+1, max(at, list[j].at)
			}
		}
		if count > best || count == best && at > bestAt {
			most, best, bestAt = list[i].observed, count, at
		}
	}
	other, otherAt := netip.AddrPort{}, clock.Instant(0)
	for _, r := range list[:n] {
		if r.observed == most || r.observed.Addr() != most.Addr() {
			continue
		}
		if r.observed == v.other {
			other = v.other
			break
		}
		if r.at > otherAt {
			other, otherAt = r.observed, r.at
		}
	}
	v.most, v.other = most, other
	if best < usualObservers || best*usualShare < observers || v.differed == 0 && !other.IsValid() {
		v.most, v.other = netip.AddrPort{}, netip.AddrPort{}
	}
}

// outdate has reports of a place count no more for where this cell is usually seen, until they are repeated.
func (v *view) outdate(observed netip.AddrPort) {
	for i := range v.reports {
		if r := &v.reports[i]; r.observed == observed && r.at != 0 {
			r.old = true
		}
	}
}

// seen reports whether somebody saw this cell at an address lately.
func (v *view) seen(now clock.Instant, observed netip.AddrPort) bool {
	return slices.ContainsFunc(v.reports[:], func(r report) bool {
		return r.observed == observed && r.at != 0 && !r.old && now.Sub(r.at) < usualFor
	})
}

// unseenBy returns where this cell may be seen, but not by a member that told somebody where it sees it: the zero AddrPort
// if it is seen at one place only.
func (t *Traversal) unseenBy(m *overlay.Member) netip.AddrPort {
	v := &t.views[t.scope()]
	if seen, known := v.reported(m.Address); !known || seen == v.most {
		return v.other
	}
	return v.most
}

// otherPort returns another port than the told one of a member whose router gives it two, as it says itself, the zero
// AddrPort if it does not: what it sends to somebody new may leave by either.
func otherPort(m *overlay.Member, told netip.AddrPort) (other netip.AddrPort) {
	count := 0
	for _, c := range m.Candidates {
		if c.Address.Addr() != told.Addr() || c.Reach != wire.ReachPunched {
			continue
		}
		if count++; c.Address != told && !other.IsValid() {
			other = c.Address
		}
	}
	if count < 2 {
		return netip.AddrPort{}
	}
	return other
}
