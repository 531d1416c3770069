package runnerd

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/grant"
	"colloid.net/runnerd/policy"
)

func operatorKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func signed(t *testing.T, key ed25519.PrivateKey, workload string, expiry time.Time, nonce byte) []byte {
	t.Helper()
	raw, err := grant.Sign(grant.Grant{Workload: workload, Expiry: expiry, Nonce: [grant.NonceSize]byte{nonce}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func execPolicy(t *testing.T) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("policy", fmt.Appendf(nil, "exec web\noperator anna %x\n", operatorKey(1).Public()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// One grant opens one program in its workload, while it holds; every refusal says what is wrong (F137).
func TestF137_GrantsAreRefused(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p, anna, bert := execPolicy(t), operatorKey(1), operatorKey(2)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	changed := signed(t, anna, "spread.web", in(time.Minute), 9)
	changed[30] ^= 1
	for _, c := range []struct {
		name, key string
		raw       []byte
		want      string // part of the refusal, empty: allowed
	}{
		{"good", "spread.web", signed(t, anna, "spread.web", in(time.Minute), 1), ""},
		{"policy without the workload", "spread.db", signed(t, anna, "spread.db", in(time.Minute), 2), `add the line "exec spread.db" to its /etc/p`},
		{"none", "spread.web", nil, "no grant"},
		{"noise", "spread.web", []byte("x"), "not understood"},
		{"unknown key", "spread.web", signed(t, bert, "spread.web", in(time.Minute), 3), "colloid operator show"},
		{"changed", "spread.web", changed, "signature"},
		{"wrong workload", "spread.web", signed(t, anna, "stateful.web", in(time.Minute), 4), "is for"},
		{"expired", "spread.web", signed(t, anna, "spread.web", in(-31*time.Second), 5), "expired"},
		{"expired within the skew", "spread.web", signed(t, anna, "spread.web", in(-20*time.Second), 6), ""},
		{"too long", "spread.web", signed(t, anna, "spread.web", in(3*time.Minute), 7), "compare the clocks"},
		{"for hours", "spread.web", signed(t, anna, "spread.web", in(3*time.Hour), 8), "expired"},
	} {
		g, err := openGrants(filepath.Join(t.TempDir(), "grants"), now)
		if err != nil {
			t.Fatal(err)
		}
		who, err := g.use(c.raw, c.key, p, "/etc/p", now)
		if c.want == "" && (err != nil || who != "anna") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q %v, expected %q", c.name, who, err, c.want)
		}
	}
}

// A used grant stays used: at once, after a restart, when the file is lost to noise, and when the clock is set
// back after it was forgotten (F137).
func TestF137_ReplayedGrantsAreRefused(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p, path := execPolicy(t), filepath.Join(t.TempDir(), "grants")
	open := func() *grants {
		g, _ := openGrants(path, now)
		return g
	}
	raw := signed(t, operatorKey(1), "spread.web", now.Add(time.Minute), 1)
	used := func(g *grants, raw []byte, at time.Time) bool {
		_, err := g.use(raw, "spread.web", p, "/etc/p", at)
		return err == nil
	}
	g := open()
	if !used(g, raw, now) || used(g, raw, now) || used(open(), raw, now) {
		t.Fatal("once and only once")
	}
	later := signed(t, operatorKey(1), "spread.web", now.Add(10*time.Minute), 2)
	if !used(g, later, now.Add(9*time.Minute)) || len(g.used) != 1 {
		t.Fatal("what has expired is forgotten", len(g.used))
	}
	if used(g, raw, now) || used(open(), raw, now) {
		t.Fatal("the clock was set back and it holds again")
	}
	if err := os.WriteFile(path, []byte("noise"), 0o600); err != nil {
		t.Fatal(err)
	}
	if used(open(), later, now.Add(9*time.Minute)) {
		// The floor is counted from now; this grant is of the future of a clock that was set back.
		t.Log("a grant from after the loss")
	}
	if used(open(), raw, now) {
		t.Fatal("the list was lost and it holds again")
	}
}

func TestF137_UsedGrantsAreBounded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := execPolicy(t)
	g, _ := openGrants(filepath.Join(t.TempDir(), "grants"), now)
	for i := range grantsMax {
		g.used[[grant.NonceSize]byte{1, byte(i), byte(i >> 8)}] = now.Add(time.Minute).Unix()
	}
	raw := signed(t, operatorKey(1), "spread.web", now.Add(time.Minute), 9)
	if _, err := g.use(raw, "spread.web", p, "/etc/p", now); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Fatal(err)
	}
	raw = signed(t, operatorKey(1), "spread.web", now.Add(3*time.Minute), 9)
	if _, err := g.use(raw, "spread.web", p, "/etc/p", now.Add(2*time.Minute)); err != nil || len(g.used) != 1 {
		t.Fatal(err, len(g.used))
	}
}
