package manifest

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzDigest: a digest has one form in text, one as a name of a file, and one in JSON.
func FuzzDigest(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("0a", 32))
	f.Add("sha256:" + strings.Repeat("0A", 32))
	f.Add("sha512:" + strings.Repeat("0a", 64))
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDigest(text)
		if err != nil {
			if d != (Digest{}) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v beside %q", d, err)
			}
			return
		}
		if d.String() != text {
			t.Fatalf("%q became %q", text, d)
		}
		if again, err := ParseHex(d.Hex()); err != nil || again != d {
			t.Fatalf("%v became %v, %v", d, again, err)
		}
		raw, err := json.Marshal(d)
		var again Digest
		if err != nil || json.Unmarshal(raw, &again) != nil || again != d {
			t.Fatalf("%v became %s, %v, %v", d, raw, again, err)
		}
	})
}
