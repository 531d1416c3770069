package grant

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"testing"
	"time"
)

func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

// A grant holds for one key, one workload and a short time; any changed bit ends it (F137, format only).
func TestGrantIsSignedAndShort(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	g := Grant{Workload: "spread.web", Expiry: now.Add(time.Minute).UTC(), Nonce: [NonceSize]byte{1}}
	raw, err := Sign(g, key(1))
	if err != nil || len(raw) > Size || len(raw) > 255 {
		t.Fatal(len(raw), err)
	}
	public := key(1).Public().(ed25519.PublicKey)
	got, err := Verify(raw, public, now)
	g.KeyID = KeyID(public)
	if err != nil || got != g {
		t.Fatalf("%+v %v", got, err)
	}
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 1
		if _, err := Verify(changed, public, now); err == nil {
			t.Fatalf("byte %d changed and nobody noticed", i)
		}
	}
	if _, err := Verify(raw, key(2).Public().(ed25519.PublicKey), now); !errors.Is(err, ErrSignature) {
		t.Error(err)
	}
	for _, at := range []time.Time{g.Expiry, g.Expiry.Add(time.Hour), g.Expiry.Add(-2 * time.Hour)} {
		if _, err := Verify(raw, public, at); !errors.Is(err, ErrExpired) {
			t.Errorf("at %v: %v", at, err)
		}
	}
	for n := range len(raw) {
		if _, err := Parse(raw[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := Sign(Grant{Expiry: now}, key(1)); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	raw, _ := Sign(Grant{Workload: "wasm.f", Expiry: time.Unix(5, 0)}, key(1))
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := Parse(raw)
		if err != nil {
			return
		}
		body, err := g.body()
		if err != nil || !bytes.Equal(body, raw[:len(body)]) {
			t.Fatalf("%+v %v", g, err)
		}
	})
}
