package reconcile

import "colloid.net/meshd/placement"

// AdmissionPatience is how long what serves is kept for the answer of this host's helper, before it is stopped to make
// place for its successor. A helper answers at once; one that does not is asked no longer, as if it had agreed.
const AdmissionPatience = RepeatInterval / 4

// admitted reports whether what serves may end for its successor: the helper has been asked if it would run the
// workload here, and has had the time to refuse, or, where there is something to fetch and it can be asked for that,
// has all that the successor needs (prepared). What has a port or a volume of its own must end before its successor
// begins, and a successor that the host's policy refuses never begins: an update that all hosts refuse must not end
// what serves (D2, F75). A refusal arrives as an instance that is Denied, and moves the replica.
func (r *run) admitted(w *placement.Workload, slot uint16) bool {
	if r.Prepares && placement.Fetches(w.Spec) {
		return r.prepared(w, slot)
	}
	check := Action{Kind: Check, ID: InstanceID{w.KeyHash, slot, w.Digest}, Key: w.Key, Spec: w.Encoded}
	key := actionID{Check, check.ID}
	m, asked := r.asked[key]
	if !asked {
		r.checks = append(r.checks, check)
		return false
	}
	m.round = r.round
	r.asked[key] = m
	if answered := m.since.Add(AdmissionPatience); !answered.Reached(r.now) {
		r.wake(answered)
		return false
	}
	return true
}
