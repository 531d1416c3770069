package cell

import (
	"fmt"
	"net/netip"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// narrowShown is how long after the last datagram that did not fit a path is called unusable.
const narrowShown = time.Hour

// PathTooNarrow notes that the path to an address does not carry a full datagram. Nothing is made smaller
// for it (RES-2): the operator is told, and the cells go on by other ways (F30). The other side may lose what is
// sent to us without any error, so the contact says it to all.
func (c *Cell) PathTooNarrow(now clock.Instant, to netip.AddrPort) {
	c.now = now
	c.counters.tooNarrow++
	first := c.narrowFlag() == 0
	c.narrowAt = now
	c.alarms.raise(alarmPath, "critical", fmt.Sprintf("the path to %v is unusable: it does not carry %d bytes", to, wire.DatagramMax),
		"raise the MTU of the link or tunnel in between; this alarm ends an hour after the last failure")
	if first {
		c.schedule.restate = true
	}
}

// LinkTooNarrow notes that a link of this host carries fewer bytes than a full datagram needs; an empty name: all
// are wide enough.
func (c *Cell) LinkTooNarrow(now clock.Instant, name string, mtu, need int) {
	c.now = now
	before := c.narrowFlag()
	c.narrowLink = name != ""
	if c.narrowLink {
		c.alarms.raise(alarmLink, "critical", fmt.Sprintf(
			"link %s carries %d bytes, a full datagram needs %d: paths over it are unusable", name, mtu, need),
			"raise its MTU; what is sent over it is lost in part")
	} else {
		c.alarms.clear(alarmLink)
	}
	if c.narrowFlag() != before {
		c.schedule.restate = true
	}
}

// forgetNarrow withdraws the alarm when everything has fitted for long.
func (c *Cell) forgetNarrow() {
	if c.narrowAt != 0 && c.now.Sub(c.narrowAt) > narrowShown {
		c.narrowAt = 0
		c.alarms.clear(alarmPath)
		c.schedule.restate = true
	}
}

func (c *Cell) narrowFlag() uint32 {
	if c.narrowAt == 0 && !c.narrowLink {
		return 0
	}
	return state.FlagNarrow
}
