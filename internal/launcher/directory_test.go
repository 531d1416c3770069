package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func TestDefaultDirectories(t *testing.T) {
	for _, c := range []struct {
		root      bool
		variables map[string]string
		want      string
	}{
		{true, nil, "/var/lib/colloid"},
		{true, map[string]string{"COLLOID_DIR": "/srv/c"}, "/srv/c"},
		{false, map[string]string{"HOME": "/home/u"}, "/home/u/.local/state/colloid"},
		{false, map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, "/s/colloid"},
		{false, map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "relative"}, "/home/u/.local/state/colloid"},
		{false, nil, ""},
	} {
		if got := DefaultDirectory(c.root, environment(c.variables)); got != c.want {
			t.Errorf("root=%v %v: %q, want %q", c.root, c.variables, got, c.want)
		}
	}
	if got := RunDirectory("/var/lib/colloid/"); got != "/run/colloid" {
		t.Errorf("run directory of the system cell: %q", got)
	}
	if got := RunDirectory("/srv/c"); got != "/srv/c/run" {
		t.Errorf("run directory of another cell: %q", got)
	}
}

func TestStateRootOthersMayWriteIsRefused(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a", "state")
	if err := prepareRoot(root); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(root); err != nil || info.Mode().Perm() != 0o711 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := prepareRoot(root); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Fatalf("a state root that everybody may write: %v", err)
	}
	if err := prepareRoot("relative"); err == nil {
		t.Fatal("a relative state root was accepted")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := prepareRoot(link); err == nil {
		t.Fatal("a symbolic link was accepted as state root")
	}
}

func TestUnreachableStateRootIsExplained(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	inner := filepath.Join(closed, "state")
	if err := os.MkdirAll(inner, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := Identity{User: 54321, Group: 54321, Name: "stranger"}
	err := checkReachable(inner, stranger)
	if err == nil || !strings.Contains(err.Error(), closed+" ") {
		t.Fatalf("got %v, want an error that names %s", err, closed)
	}
	if err := checkReachable("/", stranger); err != nil {
		t.Fatal(err)
	}
}

func TestF133_ChangingOwnersNeverTouchesWhatLiesElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes owners of files")
	}
	base := t.TempDir()
	victim := filepath.Join(base, "victim")
	directory := filepath.Join(base, "meshd")
	if err := errors.Join(os.WriteFile(victim, nil, 0o600), os.Mkdir(directory, 0o700),
		os.WriteFile(filepath.Join(directory, "own"), nil, 0o600),
		os.Symlink(victim, filepath.Join(directory, "link"))); err != nil {
		t.Fatal(err)
	}
	id := &Identity{User: nobody, Group: nobody, Name: "nobody"}
	if err := prepareOwned(directory, 0o700, id); err != nil {
		t.Fatal(err)
	}
	if owner(t, victim) != 0 || owner(t, filepath.Join(directory, "own")) != nobody {
		t.Fatal("a link was followed, or an own file was left out")
	}
	// Back to root, with a second name of the victim planted inside.
	if err := os.Link(victim, filepath.Join(directory, "hard")); err != nil {
		t.Fatal(err)
	}
	other := &Identity{User: nobody - 1, Group: nobody - 1, Name: "other"}
	if err := prepareOwned(directory, 0o700, other); err == nil {
		t.Fatal("a hard link to a foreign file changed hands")
	}
	if owner(t, victim) != 0 {
		t.Fatal("the victim changed hands")
	}
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Uid
}

func TestFindBinary(t *testing.T) {
	dir := t.TempDir()
	getenv := environment(map[string]string{"COLLOID_LIBEXEC": dir})
	if _, err := FindBinary("meshd", getenv); !errors.Is(err, ErrNoBinary) {
		t.Fatalf("got %v", err)
	}
	path := filepath.Join(dir, "meshd")
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := FindBinary("meshd", getenv); err != nil || got != path {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestLookupIdentity(t *testing.T) {
	for text, want := range map[string]Identity{
		"1234:99": {User: 1234, Group: 99, Name: "1234:99"}, "0": {Name: "root"}, "root": {Name: "root"},
		"3999999": {User: 3999999, Group: 3999999, Name: "3999999"},
	} {
		want.SocketGroup = lookupSocketGroup()
		if got, err := LookupIdentity(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"no-such-user", "4294967295", "1:x", "x:1", "-1", "1:4294967295"} {
		if got, err := LookupIdentity(text); err == nil {
			t.Errorf("%q was accepted as %+v", text, got)
		}
	}
	if id, err := LookupIdentity(""); err != nil || id.User == 0 {
		t.Errorf("the default identity is %+v, %v", id, err)
	}
}
