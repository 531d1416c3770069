package seal

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzOpenEnvironment: what was sealed opens, and nothing else does: neither other bytes, nor under another
// name, digest or key, and what does not open gives nothing away.
func FuzzOpenEnvironment(f *testing.F) {
	f.Add("web", []byte("A=b"), []byte("x"), 0, byte(1))
	f.Add("", []byte{}, []byte{}, 5, byte(0))
	f.Fuzz(func(t *testing.T, workload string, plain, other []byte, at int, mask byte) {
		k := Key{1}
		digest, sealed := SealEnvironment(k, workload, plain)
		if opened, err := OpenEnvironment(k, workload, digest, sealed); err != nil || !bytes.Equal(opened, plain) {
			t.Fatalf("%q became %q, %v", plain, opened, err)
		}
		refused := func(what string, k Key, workload string, digest [32]byte, sealed []byte) {
			if opened, err := OpenEnvironment(k, workload, digest, sealed); !errors.Is(err, ErrEnvironment) || opened != nil {
				t.Fatalf("%s: %q, %v", what, opened, err)
			}
		}
		if !bytes.Equal(other, sealed) {
			refused("other bytes", k, workload, digest, other)
		}
		refused("another cluster", Key{2}, workload, digest, sealed)
		refused("another workload", k, workload+"x", digest, sealed)
		if mask != 0 {
			changed := bytes.Clone(sealed)
			changed[uint(at)%uint(len(changed))] ^= mask
			refused("a changed bit", k, workload, digest, changed)
			digest[uint(at)%uint(len(digest))] ^= mask
			refused("another digest", k, workload, digest, sealed)
		}
	})
}
