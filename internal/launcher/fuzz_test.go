package launcher

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// FuzzParseID holds ids of users: never the one that means "unchanged" to the kernel.
func FuzzParseID(f *testing.F) {
	for _, text := range []string{"0", "1000", "4294967295", "4294967296", "-1", "+5", "0x10", "05", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseID(text)
		if err != nil {
			if id != 0 || !strings.Contains(err.Error(), "id") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%d beside %q", id, err)
			}
			return
		}
		if again, err := parseID(fmt.Sprint(id)); err != nil || again != id || id == math.MaxUint32 {
			t.Fatalf("%q became %d, and that %d, %v", text, id, again, err)
		}
	})
}
