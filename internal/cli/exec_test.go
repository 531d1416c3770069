package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// Input goes as far as the host says. Before it has said anything it is little, and of a host that never
// does, all.
func TestInputKeepsToWhatTheHostTakes(t *testing.T) {
	a := newAllowance()
	if n := a.take(attach.InputFirst + 1000); n != attach.InputFirst {
		t.Fatalf("%d bytes at first", n)
	}
	taken := make(chan int)
	go func() { taken <- a.take(5000) }()
	select {
	case n := <-taken:
		t.Fatalf("%d bytes more", n)
	case <-time.After(50 * time.Millisecond):
	}
	a.raise(attach.InputFirst + 300)
	if n := <-taken; n != 300 {
		t.Fatalf("%d bytes within the limit", n)
	}
	go func() { taken <- a.take(5000) }()
	select {
	case n := <-taken:
		t.Fatalf("%d bytes beyond the limit", n)
	case <-time.After(allowancePatience + 200*time.Millisecond): // that a host of an earlier version says nothing is another thing
	}
	a.raise(1 << 20)
	if n := <-taken; n != 5000 {
		t.Fatalf("%d bytes", n)
	}
	a = newAllowance()
	a.take(attach.InputFirst)
	if n := a.take(5000); n != 5000 {
		t.Fatalf("%d bytes to a host that says nothing", n)
	}
}

// Nothing that ends, stops or faults this command is passed on, and everything that people send programs is.
func TestSignalsThatArePassedOn(t *testing.T) {
	list := passed()
	for _, signal := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
		unix.SIGALRM, syscall.Signal(34), syscall.Signal(attach.SignalMax)} {
		if !slices.Contains(list, signal) {
			t.Errorf("%v is missing", signal)
		}
	}
	for _, signal := range []os.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG, unix.SIGSEGV, unix.SIGTSTP,
		unix.SIGCONT, unix.SIGTTOU, syscall.Signal(32), syscall.Signal(33)} {
		if slices.Contains(list, signal) {
			t.Errorf("%v is passed on", signal)
		}
	}
}

// What was refused before it began is a refusal, and the rest is lost.
func TestRefusedIsNotLost(t *testing.T) {
	busy := &uds.ReplyError{Errno: uds.ErrorBusy, Text: "32 clients"}
	for _, c := range []struct {
		err      error
		accepted bool
		exit     int
	}{
		{busy, false, ExitError}, {busy, true, exitLost}, {io.EOF, false, exitLost}, {errors.New("x"), false, exitLost},
		{&uds.ReplyError{Errno: uds.ErrorTimeout}, false, exitLost}, {&uds.ReplyError{Errno: uds.ErrorPermission}, false, ExitError},
	} {
		if exit := lostOrRefused(c.err, c.accepted); exit != c.exit {
			t.Errorf("%v, %v: %d", c.err, c.accepted, exit)
		}
	}
}

// Names that people and other machines chose say nothing to a terminal, whatever prints them.
func TestNamesDoNotSpeakToTheTerminal(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	d.status = sampleStatus(d)
	const evil = "no\nsuch\x1b[31m\x07\u202e"
	for _, arguments := range [][]string{{"apply", "-f", evil}, {"diff", "-f", evil}, {"get", evil}, {"cp", "./" + evil, "web/0:x"},
		{"cp", "web/0:x", "/nowhere/" + evil + "/x"}, {"logs", evil}, {"logs", "web@" + evil}, {"drain", evil}, {"forget", evil}, {evil},
		{"status", "--" + evil}, {"status", "-o", evil}, {"help", evil}, {"connect", evil}, {"--socket", "/" + evil, "status"},
		{"apply", "-f", "-", "--set", evil}, {"apply", "-f", "-", "--set", evil + "=1"}, {"logs", "web", "--since", evil}, {"explain", evil},
		{"exec", evil, "--", "sh"}, {"--driver", evil, "--directory", t.TempDir()}} {
		r := d.run("", arguments...)
		if r.exit == 0 || strings.ContainsFunc(r.errors, func(c rune) bool { return c != '\n' && c != '\t' && printable(string(c)) != string(c) }) {
			t.Errorf("%q: exit %d, %q", arguments, r.exit, r.errors)
		}
		for line := range strings.Lines(r.errors) {
			if strings.HasPrefix(strings.TrimPrefix(line, "colloid: "), "such") {
				t.Errorf("%q makes a line: %q", arguments, r.errors)
			}
		}
	}
	var text bytes.Buffer
	a := &app{Environment: Environment{Output: &text, Errors: &text}}
	a.talk("colloid: %s", evil)
	a.data("%s is empty", evil)
	a.talk("# it is\n%s", "two\x1b\nlines")
	if want := "colloid: no?such?[31m??\nno?such?[31m?? is empty\n# it is\ntwo?\nlines\n"; text.String() != want {
		t.Errorf("%q", text.String())
	}
}

// An error names what the operator named, once.
func TestErrorsOfCopiesNameThingsOnce(t *testing.T) {
	for text, want := range map[string]string{
		"write rnd: no space left on device": "no space left on device", "create rnd: x": "x", "rnd: permission denied": "permission denied",
		"write d/rnd: no space left on device": "write d/rnd: no space left on device", "the archive is broken": "the archive is broken",
	} {
		if got := withoutName(errors.New(text), "rnd"); got != want {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

// What is named must be something that can be copied.
func TestCopyRefusesWhatCannotBeCopied(t *testing.T) {
	d := newFake(t)
	directory := t.TempDir()
	if err := unix.Mkfifo(directory+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	os.Symlink("nowhere", directory+"/dangling")
	os.Symlink("pipe", directory+"/link")
	for name, want := range map[string]string{"pipe": "a pipe or a device", "link": "a pipe or a device", "dangling": "no such file",
		"absent": "no such file"} {
		r := d.run("", "cp", directory+"/"+name, "web/0:x")
		if r.exit != ExitUsage || !strings.Contains(r.errors, want) || strings.Count(r.errors, directory) != 1 {
			t.Errorf("%s: exit %d, %q", name, r.exit, r.errors)
		}
	}
}

// What the copy's own descriptors lead to is written to where others write to it as well, and never replaced.
func TestCopyIntoOwnDescriptors(t *testing.T) {
	path := t.TempDir() + "/log"
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, directory := range []string{"/proc/self/fd/", "/dev/fd/"} {
		io.WriteString(file, "before ")
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 8, Mode: 0o644})
		io.WriteString(w, "content ")
		w.Close()
		to, err := openTarget(directory + strconv.Itoa(int(file.Fd())))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.receive(&archive); err != nil {
			t.Error(err)
		}
		to.close()
	}
	io.WriteString(file, "after")
	if text, err := os.ReadFile(path); string(text) != "before content before content after" {
		t.Errorf("%q, %v", text, err)
	}
	for name, want := range map[string]int{"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2, "/dev/fd/7": 7, "/dev/fd/x": -1,
		"/dev/fd/7/x": -1, "/dev/fd": -1, "stdout": -1, "/proc/self/fd/99999999999": -1} {
		if number, own := ownDescriptor(name); own != (want >= 0) || own && number != want {
			t.Errorf("%s: %d, %v", name, number, own)
		}
	}
}

// A daemon that refuses a connection has said why, also where that is noticed by a write that fails.
func TestRefusedConnectionsSayWhy(t *testing.T) {
	path := t.TempDir() + "/s"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if connection, err := listener.Accept(); err == nil {
			_, _ = connection.Write(uds.AppendError(nil, uds.ErrorBusy, "160 clients are connected already: close one"))
			connection.Close()
		}
	}()
	s := &session{path: path}
	streams, err := dialStreams(s)
	if err != nil {
		t.Fatal(err)
	}
	defer streams.close()
	<-closed
	_, err = streams.open(uds.StreamExec, 1, "spread.web", nil, &attach.Request{Key: "spread.web", Arguments: []string{"sh"}})
	var text strings.Builder
	if exit := report(&text, s.explain("web/0", err)); exit != ExitError || !strings.Contains(text.String(), "close one") {
		t.Errorf("exit %d, %q", exit, text.String())
	}

	// A write that fails before that was read.
	late := &multiplexer{over: make(chan struct{})}
	go func() {
		time.Sleep(50 * time.Millisecond)
		late.broken = &uds.ReplyError{Errno: uds.ErrorBusy, Text: "close one"}
		close(late.over)
	}()
	if err := late.reason(unix.EPIPE); err == nil || err.Error() != "close one" {
		t.Errorf("%v", err)
	}
}

// A terminal takes control-D for the end only at the beginning of a line: behind half a line it takes two,
// of which the host sends one.
func TestTheEndOfInputReachesATerminal(t *testing.T) {
	for input, want := range map[string]string{"half": "half\x04", "line\n": "line\n", "": ""} {
		for _, terminal := range []bool{true, false} {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				x := &execution{
					app: &app{Environment: Environment{Input: strings.NewReader(input)}}, allowance: newAllowance(),
					request: &attach.Request{Terminal: terminal}, frames: attach.NewWriter(server),
				}
				x.passInput()
			}()
			var got []byte
			for reader := attach.NewReader(client); ; {
				kind, payload, err := reader.Next()
				if err != nil || kind == attach.KindInputEnd {
					break
				}
				got = append(got, payload...)
			}
			if expected := want; terminal && string(got) != expected || !terminal && string(got) != input {
				t.Errorf("%q, terminal %v: %q", input, terminal, got)
			}
		}
	}
}

// A name with a slash in the end means a directory, so no file takes it.
func TestCopyMakesNoFileOfADirectorysName(t *testing.T) {
	d := newFake(t)
	directory := t.TempDir()
	r := d.run("", "cp", "web/0:x", directory+"/absent/")
	if r.exit != ExitUsage || !strings.Contains(r.errors, "no such directory") {
		t.Errorf("exit %d, %q", r.exit, r.errors)
	}
}

// What is no file is not recommended to be made one's own.
func TestOperatorKeyIsAFile(t *testing.T) {
	for _, path := range []string{"/dev/null", t.TempDir()} {
		a := &app{Environment: Environment{Variable: func(name string) string {
			return map[string]string{environmentOperatorKey: path}[name]
		}}}
		if _, err := a.operatorKey(); err == nil || !strings.Contains(err.Error(), "is no file") ||
			strings.Contains(err.Error(), "chmod") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
