package seal

import (
	"bytes"
	"testing"
)

// F83: a sealed environment opens with its cluster's key, its workload and its digest only; equal content
// gives equal bytes.
func TestF83_SealedEnvironment(t *testing.T) {
	k, plain := testKey(1), []byte("PASSWORD=geheim")
	digest, sealed := SealEnvironment(k, "web", plain)
	again, sealedAgain := SealEnvironment(k, "web", plain)
	if digest != again || !bytes.Equal(sealed, sealedAgain) {
		t.Error("equal content, other bytes")
	}
	if bytes.Contains(sealed, []byte("geheim")) {
		t.Error("not encrypted")
	}
	if got, err := OpenEnvironment(k, "web", digest, sealed); err != nil || !bytes.Equal(got, plain) {
		t.Fatalf("%q, %v", got, err)
	}
	other, _ := SealEnvironment(testKey(2), "web", plain)
	renamed, _ := SealEnvironment(k, "db", plain)
	changed, _ := SealEnvironment(k, "web", []byte("PASSWORD=geheim2"))
	if other == digest || renamed == digest || changed == digest {
		t.Error("equal digests of what differs")
	}
	for name, open := range map[string]func() ([]byte, error){
		"other key":      func() ([]byte, error) { return OpenEnvironment(testKey(2), "web", digest, sealed) },
		"other workload": func() ([]byte, error) { return OpenEnvironment(k, "db", digest, sealed) },
		"other digest":   func() ([]byte, error) { return OpenEnvironment(k, "web", changed, sealed) },
		"cut":            func() ([]byte, error) { return OpenEnvironment(k, "web", digest, sealed[:len(sealed)-1]) },
		"nothing":        func() ([]byte, error) { return OpenEnvironment(k, "web", digest, nil) },
	} {
		if _, err := open(); err == nil {
			t.Errorf("%s: opens", name)
		}
	}
	for i := range sealed {
		flipped := bytes.Clone(sealed)
		flipped[i] ^= 1
		if _, err := OpenEnvironment(k, "web", digest, flipped); err == nil {
			t.Fatalf("opens with a flipped bit in byte %d", i)
		}
	}
}
