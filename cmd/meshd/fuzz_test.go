package main

import (
	"strings"
	"testing"
)

// FuzzParseAddress: an address that can be listened on, however it is written, or one line.
func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"192.0.2.1", "[::1]:5", "::1", "[::1]", "::ffff:192.0.2.1", "192.0.2.1:70000", "]", "fe80::1%eth0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		address, err := parseAddress(text)
		if err != nil {
			if address.IsValid() || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v beside %q", address, err)
			}
			return
		}
		if again, err := parseAddress(address.String()); err != nil || again != address || address.Addr().Is4In6() {
			t.Fatalf("%q became %v, and that %v, %v", text, address, again, err)
		}
	})
}
