package cell

import (
	"slices"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
)

// addressPause is the least time between two changes of this cell's own addresses: each costs a contact and one write
// for every workload that runs here. What flaps within it is never said at all.
const addressPause = 10 * time.Second

// ownAddresses follows the addresses of the host (F101, F158).
type ownAddresses struct {
	wanted  []state.Candidate // that the host has now; nil = those of the configuration
	due     clock.Instant     // when they count, 0 = they do
	changed clock.Instant     // the last time they did, 0 = never
	restate bool              // the endpoints still name the ones before
}

// SetAddresses takes the addresses at which others reach this cell, best first, whenever the host's may have changed.
// An empty list changes nothing: with nobody to tell, what was said last stays.
func (c *Cell) SetAddresses(now clock.Instant, addresses []state.Candidate) {
	c.now = now
	a := &c.addresses
	if len(addresses) == 0 || slices.Equal(addresses, c.config.Addresses) {
		a.wanted, a.due = nil, 0
		return
	}
	a.wanted = slices.Clone(addresses)
	if a.due == 0 {
		a.due = now
		if a.changed != 0 {
			a.due = max(now, a.changed.Add(addressPause))
		}
	}
	c.tickAddresses()
	c.drain()
}

// tickAddresses makes the new addresses count when they are due. Contact and endpoints follow together.
func (c *Cell) tickAddresses() {
	a := &c.addresses
	if a.due == 0 || !a.due.Reached(c.now) {
		return
	}
	before := c.config.Addresses
	c.config.Addresses, a.wanted = a.wanted, nil
	a.due, a.changed, a.restate = 0, c.now, true
	text := "this cell is at " + c.config.Addresses[0].Address.String() + " now"
	if len(before) > 0 {
		text += "; it was at " + before[0].Address.String()
	}
	c.log(LevelInfo, text)
	c.nat.SetOwn(c.now, c.config.Addresses)
	c.contactChanged() // also while there is no other cell
}

// restateEndpoints follows a new contact.
func (c *Cell) restateEndpoints() {
	if c.addresses.restate && c.runner.listed {
		c.addresses.restate = false
		c.publishEndpoints()
	}
}
