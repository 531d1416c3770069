package manifest

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Digest is a sha256. The zero value means none.
type Digest [32]byte

// String is the form in manifests: sha256: and 64 hexadecimal digits.
func (d Digest) String() string { return "sha256:" + d.Hex() }

// Hex is the digits alone, as in names of files.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// ParseDigest accepts exactly what String gives.
func ParseDigest(text string) (Digest, error) {
	digits, ok := strings.CutPrefix(text, "sha256:")
	if !ok {
		return Digest{}, fmt.Errorf("digest %.80q is no sha256", text)
	}
	return ParseHex(digits)
}

// ParseHex accepts 64 lower-case hexadecimal digits.
func ParseHex(digits string) (Digest, error) {
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) != 32 || strings.ToLower(digits) != digits {
		return Digest{}, fmt.Errorf("digest %.80q is no sha256 of 64 lower-case hexadecimal digits", digits)
	}
	return Digest(raw), nil
}

// MarshalText makes a digest a string of JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is strict: see ParseDigest.
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDigest(string(text))
	return err
}
