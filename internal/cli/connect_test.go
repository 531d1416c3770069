package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

// halfUnderstood are addresses that are none, and were read as one that they resemble.
var halfUnderstood = []string{"[::1", "::1]", "[[::1]]", "]::1[", "[192.0.2.1]", "[192.0.2.1]:1", "192.0.2.1]", "[::1]9", "[::1]:9:9", "[::1]]:9",
	"[::1 ]", "::1%", "[fe80::1%a]b]:9", "::ffff:192.0.2.1%e", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:+9", "192.0.2.1:09", "192.0.2.1:65536"}

// An address that is not understood to its end is refused, wherever one is given.
func TestAddressesThatAreHalfUnderstood(t *testing.T) {
	names := []string{"a..b", ".a", "a%b", "192.0.2.256", "192.0.2.01", "192.0.2", "0x7f.1", "3221225985", "0.0.0.0", "::", "224.0.0.1", "[ff02::1]:9"}
	for _, text := range append(names, halfUnderstood...) {
		for _, arguments := range [][]string{{"connect", text}, {"--join", text}} {
			runCommand("", map[string]string{"COLLOID_DIR": t.TempDir(), "COLLOID_LIBEXEC": fakePrograms(t)}, arguments...).
				expectError(t, ExitUsage, text)
		}
	}
	for _, text := range halfUnderstood {
		for _, flag := range []string{"--bind", "--advertise"} {
			runCommand("", map[string]string{"COLLOID_DIR": t.TempDir(), "COLLOID_LIBEXEC": fakePrograms(t)}, flag, text).
				expectError(t, ExitUsage, flag, text)
		}
	}
	d := newFake(t)
	d.run("", "connect", "[::1").expectError(t, ExitUsage, "the bracket is not closed")
	d.run("", "connect", "[::1#SECRET").expectError(t, ExitUsage, "the bracket is not closed")
	if r := d.run("", "connect", "[::1#SECRET"); strings.Contains(r.errors, "SECRET") || len(d.requests) > 0 {
		t.Errorf("%q, requests %q", r.errors, d.requests)
	}
}

func TestConnectLeaveLock(t *testing.T) {
	d := newFake(t)
	d.status.Cell.State = "active"
	d.run("", "connect", "host:99#KEY", "--merge").expect(t, 0, "joined cluster 00000000000000cc, 3 members\n")
	d.run("", "connect", "host").expect(t, 0, "joined cluster 00000000000000cc, 3 members\n")
	d.run("", "lock").expect(t, 0, "kkkk\n")
	d.run("", "unlock").expect(t, 0, "")
	d.run("", "leave", "--drain", "90s").expect(t, 0, "left the cluster\n")
	d.requests = slices.DeleteFunc(d.requests, func(r string) bool { return strings.HasPrefix(r, "02 ") }) // looks at the status
	want := []string{`08 "\x01host:99#KEY"`, `08 "\x00host"`, `0f "\x01"`, `0f "\x00"`, `09 "\x00Z"`}
	if !slices.Equal(d.requests, want) {
		t.Errorf("requests %q, want %q", d.requests, want)
	}
	for _, wrong := range []string{"100h", "-1s", "-1ns"} { // a round number of seconds or not
		d.run("", "leave", "--drain", wrong).expectError(t, ExitUsage, "--drain")
	}
	d.refuse[uds.CodeConnect] = refusal{uds.ErrorUnreachable, "nobody answers at host"}
	r := d.run("", "connect", "host#SECRET")
	if r.expectError(t, ExitError, "nobody answers"); strings.Contains(r.errors, "SECRET") {
		t.Errorf("the key of a cluster is in a message: %q", r.errors)
	}
}

func TestForgetFindsTheCellAndRefusesTheLiving(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	d.run("", "forget", "two").expect(t, 0, "00000000000000b2 forgotten\n")
	d.run("", "forget", "00000000000000B2").expect(t, 0, "00000000000000b2 forgotten\n")
	if last := d.requests[len(d.requests)-1]; last != `0a "\x00\x00\x00\x00\x00\x00\x00\xb2"` {
		t.Errorf("request %s", last)
	}
	d.run("", "forget", "one").expectError(t, ExitError, "colloid leave")
	d.run("", "forget", "0000").expectError(t, ExitUsage, "2 cells")
	d.run("", "forget", "nine").expectError(t, ExitError, "no cell")
	d.run("", "forget", "").expectError(t, ExitUsage, "empty")
}

// What left or was forgotten is that for every command, and to forget it again is no news.
func TestGoneCellsAreGoneForEveryCommand(t *testing.T) {
	d := newFake(t)
	d.status = sampleStatus(d)
	d.status.Cells[1].State = "gone"
	for _, command := range []string{"drain", "uncordon"} {
		d.run("", command, "two").expectError(t, ExitError, "cell 00000000000000b2 is gone: it left the cluster or was forgotten")
	}
	d.run("", "forget", "two").expect(t, 0, "00000000000000b2 was forgotten already, or has left\n")
	for _, request := range d.requests {
		if !strings.HasPrefix(request, "02 ") {
			t.Errorf("request %s", request)
		}
	}
	d.status.Cells[1].Drained = true
	d.run("", "uncordon", "two").expect(t, 0, "00000000000000b2 takes work again\n")
}

// The configuration does not end without a word: neither with the only cell, nor when the last ones leave
// together.
func TestTheLastCellWarnsWhenItLeaves(t *testing.T) {
	const warning = "no other cell stays: the configuration of 1 workload ends"
	for state, warns := range map[string]bool{"leaving": true, "gone": true, "alive": false, "dead": false} {
		d := newFake(t)
		d.status = sampleStatus(d)
		d.status.Cells[1].State = state
		r := d.run("", "leave")
		if r.exit != 0 || strings.Count(r.errors, warning) == 1 != warns {
			t.Errorf("%s: exit %d, %q", state, r.exit, r.errors)
		}
	}
}

func TestNoDaemonIsExplained(t *testing.T) {
	dir := t.TempDir()
	runCommand("", map[string]string{"COLLOID_DIR": dir}, "status").
		expectError(t, ExitUnreachable, filepath.Join(dir, "run", "colloid.sock"), "start it with `colloid`")
	runCommand("", nil, "--socket", filepath.Join(dir, "x"), "status").expectError(t, ExitUnreachable, "/x")
	dead := filepath.Join(dir, "dead")
	if err := os.WriteFile(dead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runCommand("", nil, "--socket", dead, "status").expectError(t, ExitUnreachable, "/dead")
}

func TestSocketPlaces(t *testing.T) {
	places := func(flag string, variables map[string]string) []string {
		a := &app{socket: flag, Environment: Environment{Variable: func(n string) string { return variables[n] }}}
		return a.socketPlaces()
	}
	all := map[string]string{"COLLOID_SOCKET": "/s", "COLLOID_DIR": "/d", "HOME": "/h"}
	for _, c := range []struct{ got, want []string }{
		{places("/f", all), []string{"/f"}},
		{places("", all), []string{"/s"}},
		{places("", map[string]string{"COLLOID_DIR": "/d"}), []string{"/d/run/colloid.sock", "/d/colloid.sock"}},
		{places("", map[string]string{"HOME": "/h"}),
			[]string{"/run/colloid/colloid.sock", "/h/.local/state/colloid/run/colloid.sock"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("places %q, want %q", c.got, c.want)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, arguments := range [][]string{{"nonsense"}, {"apply"}, {"apply", "-f"}, {"get"}, {"status", "--nope"},
		{"resolve", "a", "b"}, {"connect", "a b"}} {
		r := runCommand("", nil, arguments...)
		if r.exit != ExitUsage || !strings.HasPrefix(r.errors, "colloid: ") {
			t.Errorf("%q: exit %d, errors %q", arguments, r.exit, r.errors)
		}
	}
}

func TestHelpExitCodesAndCompletion(t *testing.T) {
	if r := runCommand("", nil, "help", "exit-codes"); r.exit != 0 || !strings.Contains(r.output, "no daemon answers") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := runCommand("", nil, "completion", shell); r.exit != 0 || !strings.Contains(r.output, "colloid") {
			t.Errorf("%s: exit %d", shell, r.exit)
		}
	}
	for _, arguments := range [][]string{{"help", "nope"}, {"help", "apply", "--nope"}, {"completion", "tcsh"}} {
		if r := runCommand("", nil, arguments...); r.exit != ExitUsage || r.output != "" {
			t.Errorf("%q: exit %d, output %.60q", arguments, r.exit, r.output)
		}
	}
	for _, arguments := range [][]string{{"help"}, {"help", "apply"}, {"completion"}, {"completion", "bash", "--help"}} {
		if r := runCommand("", nil, arguments...); r.exit != 0 || r.output == "" {
			t.Errorf("%q: exit %d, errors %q", arguments, r.exit, r.errors)
		}
	}
	d := newFake(t)
	d.hold(web2)
	if r := d.run("", "__complete", "get", "spr"); !strings.Contains(r.output, "spread.web") {
		t.Errorf("completion of keys: %q", r.output)
	}
}

func TestVersion(t *testing.T) {
	d := newFake(t)
	d.status.Cell.State = "active"
	if r := d.run("", "version"); r.exit != 0 || !strings.Contains(r.output, "meshd test, cell "+ownActor+", active") {
		t.Errorf("exit %d, output %q", r.exit, r.output)
	}
	if r := d.run("", "version", "-o", "json"); !strings.Contains(r.output, `"daemon": {`) {
		t.Errorf("output %q", r.output)
	}
	if r := runCommand("", map[string]string{"COLLOID_SOCKET": "/nonexistent"}, "version"); r.exit != 0 ||
		!strings.Contains(r.output, "meshd not running") {
		t.Errorf("without a daemon: exit %d, output %q", r.exit, r.output)
	}
	// One that is there and gives no answer is not called "not running".
	d.refuse[uds.CodeHello] = refusal{1, "too busy"}
	if r := d.run("", "version"); r.exit != 0 || !strings.Contains(r.output, "meshd not known: ") {
		t.Errorf("a daemon that does not answer: exit %d, output %q", r.exit, r.output)
	}
}

// fakePrograms is a directory with programs that do nothing.
func fakePrograms(t *testing.T) string {
	t.Helper()
	libexec := t.TempDir()
	for _, name := range []string{"meshd", "runnerd"} {
		if err := os.WriteFile(filepath.Join(libexec, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return libexec
}

func TestLauncherOptions(t *testing.T) {
	libexec := fakePrograms(t)
	a := &app{Environment: Environment{Errors: os.Stderr, Root: true,
		Variable: func(n string) string { return map[string]string{"COLLOID_LIBEXEC": libexec}[n] }}}
	a.run = runFlags{directory: "/srv/c", bind: "192.0.2.7", joins: []string{"seed#K", "[2001:db8::1]:5"}, user: "1234"}
	o, err := a.launcherOptions()
	if err != nil {
		t.Fatal(err)
	}
	want := "--directory /srv/c/meshd --socket /srv/c/run/colloid.sock --bind 192.0.2.7:12421 --join seed --join [2001:db8::1]:5"
	if got := strings.Join(o.Meshd.Arguments, " "); got != want {
		t.Errorf("meshd %s\nwant  %s", got, want)
	}
	if !slices.Equal(o.Meshd.Environment, []string{"COLLOID_JOIN_KEY=K"}) {
		t.Errorf("environment %q", o.Meshd.Environment)
	}
	c := o.Meshd.Confinement
	if c.Identity == nil || c.Identity.User != 1234 || !c.Bounded || len(c.Capabilities) != 0 || !c.NoNewPrivileges {
		t.Errorf("meshd's confinement is %+v", c)
	}
	if len(o.Helpers) != 1 || !o.Helpers[0].Confinement.Bounded || o.Helpers[0].Confinement.Identity != nil {
		t.Errorf("helpers %+v", o.Helpers)
	}
	for _, label := range []string{"rack", "rack=", "=a", "rack=a=b", "rack=a b", "rack=\x1b[31m"} {
		a.run.labels = []string{"zone=eu-1", label}
		if _, err := a.launcherOptions(); err == nil {
			t.Errorf("label %q was accepted: meshd would refuse it again and again, or no constraint could name it", label)
		}
	}
	a.run.labels = nil
	a.run.directory = "/srv/" + strings.Repeat("d", 100)
	if _, err := a.launcherOptions(); err == nil {
		t.Error("a directory was accepted in which no socket can be")
	}
	a.run.directory = "/srv/c"
	a.run.joins = []string{"a#K", "b#L"}
	if _, err := a.launcherOptions(); err == nil {
		t.Error("seeds of two clusters were accepted")
	}
	a.Root, a.run.joins = false, nil
	if _, err := a.launcherOptions(); err == nil {
		t.Error("--user was accepted without root")
	}
}

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:12421", "192.0.2.1:9": "192.0.2.1:9", "2001:db8::1": "[2001:db8::1]:12421",
		"[2001:db8::1]:9": "[2001:db8::1]:9", ":9": "[::]:9", "::": "[::]:12421",
	} {
		if got, err := parseEndpoint("--bind", text); err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "host", "192.0.2.1:0", "192.0.2.1:70000", ":"} {
		if got, err := parseEndpoint("--bind", text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

// What cannot be told to other cells is refused before a cell is started: meshd would stop at it (it did,
// with a panic, again and again).
func TestWhatACellSaysOfItselfIsChecked(t *testing.T) {
	one, two := "--advertise=192.0.2.1", "--label=zone=a"
	for want, flags := range map[string][]string{
		"every address is none":                {"--advertise", "0.0.0.0"},
		"none to be reached at":                {"--advertise", "::"},
		"name one":                             {"--advertise", "::ffff:0.0.0.0"},
		"address of many":                      {"--advertise", "224.0.0.1"},
		"of many machines":                     {"--advertise", "[ff02::1]:9"},
		"name one: want ADDRESS, ADDRESS:PORT": {"--advertise", "255.255.255.255"},
		"that is the address of":               {"--bind", "224.0.0.1"},
		"at most 4 addresses":                  {one, one, one, one, one},
		"has another already":                  {two, "--label=zone=b"},
		`--label "zone=a": a cell h`:           {two, two},
	} {
		r := runCommand("", map[string]string{"COLLOID_DIR": t.TempDir(), "COLLOID_LIBEXEC": fakePrograms(t)}, flags...)
		r.expectError(t, ExitUsage, want)
	}
}

// An option with nothing behind it is refused, whatever the command: a script's variable was not set.
func TestEmptyOptionsAreRefused(t *testing.T) {
	for _, arguments := range [][]string{
		{"--directory", ""}, {"--directory="}, {"--bind", ""}, {"--join", ""}, {"--advertise="}, {"--label", ""},
		{"--policy", ""}, {"--driver="}, {"--socket", "", "status"}, {"connect", "--directory", "", "host"},
		{"status", "--socket="},
	} {
		r := runCommand("", map[string]string{"COLLOID_DIR": t.TempDir()}, arguments...)
		r.expectError(t, ExitUsage, "is empty: give it a value or leave it out")
	}
}

// What runs on after a leave is named, with how to end it, and is no success.
func TestF8_LeaveNamesWhatRunsOn(t *testing.T) {
	d := newFake(t)
	d.status.Cell.State = "active"
	d.left = []uds.LeftInstance{{Key: "spread.q", Slot: 1, PID: 4242}, {Key: "spread.\x1bq"}}
	r := d.run("", "leave", "--force")
	r.expectError(t, ExitError, "2 instances still run here", "spread.q/1, process 4242: end it with `kill 4242`")
	if r.output != "" || strings.Contains(r.errors, "\x1b") {
		t.Errorf("%q %q", r.output, r.errors)
	}
	d.left = nil
	d.status.Cell.State = "active"
	d.run("", "leave", "--force", "--abandon-volumes").expect(t, 0, "left the cluster\n")
	if want := fmt.Sprintf("09 %q", "\x00\x1e\x03"); !slices.Contains(d.requests, want) {
		t.Errorf("no request %s in %q", want, d.requests)
	}
}

// Leaving is announced when it has begun: a refusal stands alone.
func TestLeaveAnnouncesNothingThatIsRefused(t *testing.T) {
	d := newFake(t)
	d.status.Cell.State = "active"
	d.refuse[uds.CodeLeave] = refusal{uds.ErrorPermission, "uid 5 may read but not change"}
	if r := d.run("", "leave"); r.exit != ExitError || strings.Count(r.errors, "\n") != 1 || strings.Contains(r.errors, "leaving") {
		t.Errorf("exit %d, %q", r.exit, r.errors)
	}
	delete(d.refuse, uds.CodeLeave)
	d.run("", "leave", "--force", "--drain", "5s").expect(t, 0, "left the cluster\n")
	if !slices.Contains(d.requests, `09 "\x00\x05\x01"`) {
		t.Errorf("requests %q", d.requests)
	}
}
