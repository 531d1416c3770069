package cli

import "testing"

// A socket may be named by a path below the working directory; what could be an abstract one stays what it is
// and is refused (F135).
func TestF135_SocketsBelowTheWorkingDirectory(t *testing.T) {
	for path, want := range map[string]string{
		"/run/colloid/colloid.sock": "/run/colloid/colloid.sock", "run/colloid.sock": "./run/colloid.sock",
		"colloid.sock": "./colloid.sock", "./colloid.sock": "./colloid.sock", "../s": "../s", "@colloid": "@colloid",
	} {
		if got := plainPath(path); got != want {
			t.Errorf("%s became %s, want %s", path, got, want)
		}
	}
}
