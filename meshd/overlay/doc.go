// Package overlay knows who is in the cluster and how to reach and trust an address.
//
// Nouns: Members is the complete, sorted list of the other cells, taken from the replicated store;
// probing, gossip and anti-entropy choose from it and from nothing else (F41). Table holds validated
// contacts in k-buckets by XOR distance and serves bootstrap and relay routing (F15, F38). Lookup is
// one iterative FIND_NODE (F40). Guard keeps this cell from being used as an amplifier (F14).
//
// Everything here is a sans-IO state machine owned by one goroutine: time comes in as clock.Instant,
// randomness as *rand.Rand, and no map is ever iterated. Limits: MembersMax members, BucketsMax
// buckets of at most BucketSizeMax contacts and as many spare ones, QueriesMax queries per lookup,
// AddressesMax addresses and RequestersMax requesters in the guard.
package overlay
