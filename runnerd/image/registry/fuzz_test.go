package registry

import (
	"strings"
	"testing"
)

// FuzzNormalize holds references to images: what they are completed to is complete, and the host is the one that is asked.
func FuzzNormalize(f *testing.F) {
	for _, reference := range []string{"nginx", "a/b:c", "registry.example.com:5000/x/y:z", "[::1]:5000/a", "https://x/y",
		"localhost/a@sha256:" + strings.Repeat("0a", 32), "A/b", "docker.io/a", "index.docker.io/library/a"} {
		f.Add(reference)
	}
	f.Fuzz(func(t *testing.T, reference string) {
		full, repository, host, err := Normalize(reference)
		if err != nil {
			if full+repository+host != "" {
				t.Fatalf("%q, %q, %q beside %v", full, repository, host, err)
			}
			return
		}
		if host == "" || strings.ContainsAny(host, "/@ \n") || !strings.HasPrefix(full, repository+":") ||
			!strings.HasPrefix(repository, host+"/") || strings.Contains(repository, "/../") {
			t.Fatalf("%q became %q of %q at %q", reference, full, repository, host)
		}
		again, _, otherHost, err := Normalize(full)
		if err != nil || again != full || otherHost != host {
			t.Fatalf("%q became %q, and that %q at %q, %v", reference, full, again, otherHost, err)
		}
		if got := HostOf("oci://" + full); got != host {
			t.Fatalf("%q is at %q, not at %q", full, got, host)
		}
	})
}
