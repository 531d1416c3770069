package cell

import (
	"fmt"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Cells of several versions live in one cluster while it is upgraded (F26, D12). Every contact says which
// protocol versions its cell speaks; a message goes out in the greatest version that both ends speak, and
// not at all if there is none. A contact may be behind its cell: it was upgraded, or taken back to an older
// version, and its new contact is still on its way, perhaps through this very cell. So what a cell was heard
// to speak counts more than its contact for a while. That is not prolonged meanwhile, or two cells that each
// believe the other to be old would never find out.

const (
	// spokenFor is how long the version of a received datagram overrides a contact.
	spokenFor = 10 * time.Second
	// spokenMax bounds the cells for which this is remembered; above it, all are forgotten.
	spokenMax = 256
)

// spoken is the version in which a cell was heard although its contact says otherwise.
type spoken struct {
	version uint8
	until   clock.Instant
}

// versionsOf returns what a contact says; one without a statement is of the first version.
func versionsOf(contact *state.CellContact) wire.Versions {
	if contact.VersionMax == 0 {
		return wire.Versions{Min: 1, Max: 1}
	}
	return wire.Versions{Min: contact.VersionMin, Max: contact.VersionMax}
}

// versionFor returns the version in which a cell understands this one. Of a cell without a contact that was
// not heard yet nothing is known: every protocol repeats its messages, so each version has its turn.
func (c *Cell) versionFor(to wire.CellID) (version uint8, ok bool) {
	own := c.config.Versions
	if len(c.spoken) > 0 {
		if s, heard := c.spoken[to]; heard && !s.until.Reached(c.now) {
			return s.version, true
		}
	}
	if versions, said := c.contactVersions(to); said {
		return own.Common(versions)
	}
	if version := c.guests.version(to); own.Includes(version) {
		return version, true
	}
	if own.Min == own.Max {
		return own.Max, true
	}
	return own.Min + uint8(c.config.Random.UintN(uint(own.Max-own.Min)+1)), true
}

// contactVersions returns what the contact of a cell says, false if there is none.
func (c *Cell) contactVersions(id wire.CellID) (wire.Versions, bool) {
	if m := c.members.Get(id); m != nil {
		return m.Versions, true
	}
	if view := c.views.cells[id]; view != nil && view.hasContact { // it is gone
		return versionsOf(&view.contact), true
	}
	return wire.Versions{}, false
}

// heardVersion compares the version of a verified datagram with what its sender is expected to speak.
func (c *Cell) heardVersion(sender wire.CellID, version uint8) {
	versions, said := c.contactVersions(sender)
	if !said {
		return // a guest's is kept with its address
	}
	expected, ok := c.config.Versions.Common(versions)
	if ok && version == expected && len(c.spoken) == 0 {
		return
	}
	s, heard := c.spoken[sender]
	switch {
	case ok && version == expected:
		if heard {
			delete(c.spoken, sender)
		}
	case heard && s.version == version && !s.until.Reached(c.now.Add(-spokenPause)):
	default:
		if c.spoken == nil || len(c.spoken) >= spokenMax {
			c.spoken = make(map[wire.CellID]spoken)
		}
		c.spoken[sender] = spoken{version, c.now.Add(spokenFor)}
	}
}

// spokenPause is how long the contact is believed again before what is heard counts more once again.
const spokenPause = time.Second

// countUnknown counts a datagram that was dropped because of its version or its type.
func (c *Cell) countUnknown(header wire.Header, err error) {
	switch err {
	case wire.ErrVersion:
		c.counters.otherVersion++
	case wire.ErrType:
		c.counters.unknownTypes[header.Type]++
	default:
		c.counters.malformed++
	}
}

// versionAlarms says which cells this one cannot talk to.
func (c *Cell) versionAlarms(add func(severity, text, hint string)) {
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		if id == c.config.Self || view.hasStatus && view.status.Life == state.Gone {
			continue
		}
		if view.contactNewer {
			add("critical", "cell "+id.String()+" demands what this version does not know: they do not talk to each other",
				"upgrade this cell")
			continue
		}
		if !view.hasContact {
			continue
		}
		theirs := versionsOf(&view.contact)
		if _, ok := c.config.Versions.Common(theirs); ok {
			continue
		}
		older := "upgrade this cell"
		if theirs.Max < c.config.Versions.Min {
			older = "upgrade that cell"
		}
		add("critical", fmt.Sprintf("cell %s speaks protocol versions %d to %d and this cell %d to %d: they do not "+
			"talk to each other", id, theirs.Min, theirs.Max, c.config.Versions.Min, c.config.Versions.Max), older)
	}
}
