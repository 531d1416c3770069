package workload

import (
	"crypto/sha256"
	"encoding/binary"
)

// Digest names the whole specification: the first 8 bytes of SHA-256 over its canonical encoding, as
// a big-endian number. Two cells that decoded the same bytes compute the same digest.
func (s *Spec) Digest() uint64 {
	sum := sha256.Sum256(appendSpec(make([]byte, 0, SpecSizeMax), s))
	return binary.BigEndian.Uint64(sum[:])
}

// InstanceDigest names what an instance runs (F74): Digest with the fields left out that only decide
// how many instances there are and where. An instance is replaced when it changes, so scaling, moving
// or re-prioritising a workload restarts nothing. The operator's signature is left out as well: it
// covers the replica count and so changes with it.
func (s *Spec) InstanceDigest() uint64 {
	instance := *s
	instance.Replicas = 0
	instance.Priority = 0
	instance.Constraints = nil
	instance.Update = Update{}
	instance.SignatureKeyID = [4]byte{}
	instance.Signature = [64]byte{}
	return instance.Digest()
}
