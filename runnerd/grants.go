package runnerd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"colloid.net/ipc/grant"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/record"
)

const (
	// grantSkew is how far the clock of an operator's machine may be from this host's.
	grantSkew = 30 * time.Second
	// grantLifetime is how long a grant may hold at most, so that few have to be remembered.
	grantLifetime = 2 * time.Minute
	// grantsMax bounds those that are remembered; more are refused until some have expired.
	grantsMax = 4096
	grantSize = grant.NonceSize + 8
)

// grants remembers which one-time permissions were used, on disk: neither a restart nor a power cut makes one
// valid again (F137). It belongs to the loop's goroutine.
type grants struct {
	path string
	used map[[grant.NonceSize]byte]int64 // until when, Unix seconds
	// floor is the greatest expiry that was forgotten: what does not expire after it may have been used. It
	// only matters when the clock is set back.
	floor int64
}

// openGrants reads what was used. A file that cannot be understood refuses everything that exists now.
func openGrants(path string, now time.Time) (*grants, error) {
	g := &grants{path: path, used: map[[grant.NonceSize]byte]int64{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return g, nil
	}
	if err != nil || !g.parse(text) {
		g.floor = now.Add(grantLifetime + grantSkew).Unix()
		return g, fmt.Errorf("%s cannot be read: grants signed before now are refused", path)
	}
	return g, nil
}

// parse reads what encode wrote; false: it changes nothing.
func (g *grants) parse(text []byte) bool {
	if len(text) < 8 || (len(text)-8)%grantSize != 0 || len(text) > 8+grantsMax*grantSize {
		return false
	}
	g.floor = int64(binary.BigEndian.Uint64(text))
	for rest := text[8:]; len(rest) > 0; rest = rest[grantSize:] {
		g.used[[grant.NonceSize]byte(rest)] = int64(binary.BigEndian.Uint64(rest[grant.NonceSize:]))
	}
	return true
}

// forget drops what has expired.
func (g *grants) forget(now time.Time) {
	for nonce, expiry := range g.used {
		if expiry < now.Add(-grantSkew).Unix() {
			g.floor = max(g.floor, expiry)
			delete(g.used, nonce)
		}
	}
}

// use checks a grant for a workload and uses it up. The error is one sentence that says what to do.
func (g *grants) use(raw []byte, key string, p *policy.Policy, file string, now time.Time) (operator string, err error) {
	if !p.AllowsExec(key) {
		return "", fmt.Errorf("programs and files of %s are closed on this host: add the line \"exec %s\" to its %s", key, key, file)
	}
	if len(raw) == 0 {
		return "", errors.New("no grant of an operator came along: use `colloid exec` or `colloid cp`, which sign one")
	}
	claimed, err := grant.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("the grant is not understood: %w", err)
	}
	who := p.Operator(claimed.KeyID)
	if who == nil {
		return "", fmt.Errorf("no operator of this host has the key %x...: add the line that `colloid operator show` "+
			"prints to its %s", claimed.KeyID, file)
	}
	signed, err := grant.Verify(raw, who.Key, now)
	if errors.Is(err, grant.ErrExpired) && now.Before(claimed.Expiry.Add(grantSkew)) && !now.Before(claimed.Expiry) {
		signed, err = grant.Verify(raw, who.Key, claimed.Expiry.Add(-time.Second))
	}
	expiry := signed.Expiry.Unix()
	switch {
	case errors.Is(err, grant.ErrExpired):
		return "", fmt.Errorf("the grant has expired, it held until %s and here it is %s: compare the clocks, more than %v "+
			"between them is too much", claimed.Expiry.Format(time.TimeOnly), now.UTC().Format(time.TimeOnly), grantSkew)
	case err != nil:
		return "", fmt.Errorf("grant of operator %s: %w", who.Name, err)
	case signed.Expiry.Sub(now) > grantLifetime:
		return "", fmt.Errorf("the grant holds for %v from now, more than %v: compare the clocks",
			signed.Expiry.Sub(now).Round(time.Second), grantLifetime)
	case signed.Workload != key:
		return "", fmt.Errorf("the grant is for %.96q, not for %s", signed.Workload, key)
	}
	g.forget(now)
	if _, twice := g.used[signed.Nonce]; twice || expiry <= g.floor {
		return "", fmt.Errorf("this grant of operator %s was used before: it opens one program, once", who.Name)
	}
	if len(g.used) >= grantsMax {
		return "", fmt.Errorf("%d grants were used within %v: try again in a minute", grantsMax, grantLifetime)
	}
	g.used[signed.Nonce] = expiry
	if err := g.save(); err != nil {
		delete(g.used, signed.Nonce)
		return "", fmt.Errorf("the use of the grant cannot be written down: %w", err)
	}
	return who.Name, nil
}

func (g *grants) save() error { return record.WriteFile(g.path, g.encode()) }

func (g *grants) encode() []byte {
	text := binary.BigEndian.AppendUint64(nil, uint64(g.floor))
	for nonce, expiry := range g.used {
		text = binary.BigEndian.AppendUint64(append(text, nonce[:]...), uint64(expiry))
	}
	return text
}
