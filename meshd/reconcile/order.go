package reconcile

import "cmp"

// Compare orders identities: by workload, slot, then digest.
func (id InstanceID) Compare(other InstanceID) int {
	return cmp.Or(
		cmp.Compare(id.KeyHash, other.KeyHash),
		cmp.Compare(id.Slot, other.Slot),
		cmp.Compare(id.Digest, other.Digest),
	)
}
