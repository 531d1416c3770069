package gossip

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// Rate limit of one actor (F18) and the bound on actors watched.
const (
	ActorRate  = 50 // changes per second
	ActorBurst = 200
	actorsMax  = 1024 // a power of two
	actorWays  = 4
)

// buckets is one token bucket per actor in the form of the generic cell rate algorithm: one instant
// says everything. In a full set the actor with the most tokens gives way; it loses nothing if its
// bucket was full.
type buckets struct {
	seed  uint64
	table []bucket
}

type bucket struct {
	actor wire.CellID
	// full is when the bucket is filled up again if nothing more is taken.
	full clock.Instant
}

func (b *buckets) init(seed uint64) {
	b.seed, b.table = seed|1, make([]bucket, actorsMax)
}

func (b *buckets) allow(now clock.Instant, actor wire.CellID) bool {
	const interval = time.Second / ActorRate
	const tolerance = (ActorBurst - 1) * interval
	start := int(mix(uint64(actor), b.seed)%(actorsMax/actorWays)) * actorWays
	set := b.table[start:][:actorWays]
	mine := &set[0]
	for i := range set {
		if set[i].actor == actor {
			mine = &set[i]
			break
		}
		if set[i].full < mine.full {
			mine = &set[i]
		}
	}
	if mine.actor != actor {
		*mine = bucket{actor: actor}
	}
	if mine.full > now.Add(tolerance) {
		return false
	}
	mine.full = max(mine.full, now).Add(interval)
	return true
}
