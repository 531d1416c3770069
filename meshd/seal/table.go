package seal

import "colloid.net/meshd/wire"

// admit makes a row for a sender that has none, evicting the row used longest ago when the table is full.
func (o *Opener) admit(id wire.CellID) int32 {
	var at int32
	if len(o.senders) < o.sendersMax {
		at = int32(len(o.senders))
		o.senders = append(o.senders, sender{})
	} else {
		at = o.oldest
		evicted := &o.senders[at]
		o.unlink(at)
		delete(o.index, evicted.id)
		o.rememberFloor(evicted.id, max(evicted.replay.top, evicted.replay.floor))
	}
	counter := o.floors[id].counter
	delete(o.floors, id) // its place in floorsRing stays until its turn comes
	o.senders[at] = sender{id: id, older: -1, newer: -1}
	o.senders[at].replay = window{top: counter, floor: counter}
	o.index[id] = at
	o.link(at)
	return at
}

// floor is what stays of a sender without a row.
type floor struct {
	counter uint64 // nothing up to here is accepted
	place   int    // in floorsRing
}

// rememberFloor records that nothing up to counter may be accepted of a sender without a row.
func (o *Opener) rememberFloor(id wire.CellID, counter uint64) {
	if known, ok := o.floors[id]; ok {
		known.counter = max(known.counter, counter)
		o.floors[id] = known
		return
	}
	if limit := o.sendersMax * floorsPerSender; len(o.floorsRing) < limit {
		o.floors[id] = floor{counter, len(o.floorsRing)}
		o.floorsRing = append(o.floorsRing, id)
		return
	}
	// A sender that came back and went again has a later place; its first one is then free.
	if last := o.floorsRing[o.floorsNext]; o.floors[last].place == o.floorsNext {
		delete(o.floors, last)
	}
	o.floorsRing[o.floorsNext] = id
	o.floors[id] = floor{counter, o.floorsNext}
	o.floorsNext = (o.floorsNext + 1) % len(o.floorsRing)
}

// touch makes a row the one used last.
func (o *Opener) touch(at int32) {
	if at != o.newest {
		o.unlink(at)
		o.link(at)
	}
}

func (o *Opener) link(at int32) {
	row := &o.senders[at]
	row.older, row.newer = o.newest, -1
	if o.newest >= 0 {
		o.senders[o.newest].newer = at
	} else {
		o.oldest = at
	}
	o.newest = at
}

func (o *Opener) unlink(at int32) {
	row := &o.senders[at]
	if row.older >= 0 {
		o.senders[row.older].newer = row.newer
	} else {
		o.oldest = row.newer
	}
	if row.newer >= 0 {
		o.senders[row.newer].older = row.older
	} else {
		o.newest = row.older
	}
}
