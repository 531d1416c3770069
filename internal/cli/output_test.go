package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fullDevice is a real device on which every write fails with ENOSPC.
func fullDevice(t *testing.T) *os.File {
	t.Helper()
	file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func (d *fakeDaemon) into(output io.Writer, arguments ...string) result {
	var errors strings.Builder
	exit := Main(context.Background(), arguments, Environment{
		Input: strings.NewReader(web2), Output: output, Errors: &errors,
		Variable: func(name string) string { return map[string]string{"COLLOID_SOCKET": d.path}[name] },
	})
	return result{exit: exit, errors: errors.String()}
}

// What cannot be written is a failure of every command, said once, and never success (data loss of `export
// >file`).
func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	full := fullDevice(t)
	for _, arguments := range []string{"export", "get spread.web", "version", "diff -f -", "apply -f -", "status", "status -o json",
		"status --metrics", "status --watch", "cells", "cells -o json", "explain spread.web", "completion bash", "help",
		"--help", "--version", "exit-codes", "lock", "connect host", "get spread.web -o json", "top --help", "leave"} {
		t.Run(arguments, func(t *testing.T) {
			d := newFake(t)
			d.status = sampleStatus(d)
			d.hold(web2)
			done := make(chan result, 1)
			go func() { done <- d.into(full, strings.Fields(arguments)...) }()
			select {
			case r := <-done:
				if r.exit != ExitError || strings.Count(r.errors, "colloid: standard output: no space left on device\n") != 1 ||
					strings.Contains(r.errors, "see colloid help") {
					t.Errorf("exit %d, %q", r.exit, r.errors)
				}
			case <-time.After(10 * time.Second):
				t.Error("does not end")
			}
		})
	}
}

// A reader that left is nothing to talk about.
func TestAReaderThatLeftEndsTheCommandQuietly(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer write.Close()
	if r := d.into(write, "export"); r.exit != ExitError || r.errors != "" {
		t.Errorf("exit %d, %q", r.exit, r.errors)
	}
}

// It is noticed also while there is nothing to write.
func TestAReaderThatLeftEndsWhatIsQuiet(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	o := newOutput(write)
	ctx, stop := o.while(t.Context())
	defer stop()
	select {
	case <-ctx.Done():
		t.Fatal("ended while somebody reads")
	case <-time.After(readerLook + 200*time.Millisecond):
	}
	read.Close()
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("goes on for nobody")
	}
	var text strings.Builder
	if exit := report(&text, o.check(nil)); exit != ExitError || text.String() != "" {
		t.Errorf("exit %d, %q", exit, text.String())
	}
}

// An error of the command is still said, and the one of its output is not said twice.
func TestOutputErrorsHideNoOtherError(t *testing.T) {
	o := newOutput(failingWriter{})
	_, err := o.Write([]byte("x"))
	if !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	var text strings.Builder
	if exit := report(&text, o.check(fail(ExitConflict, "changed"))); exit != ExitError ||
		text.String() != "colloid: changed\ncolloid: standard output: input/output error\n" {
		t.Errorf("exit %d, %q", exit, text.String())
	}
	text.Reset()
	if report(&text, o.check(fail(ExitError, "write: %w", err))); text.String() != "colloid: standard output: input/output error\n" {
		t.Errorf("%q", text.String())
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, unix.EIO }

// An empty argument is a variable of a script that is not set, and not the working directory.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	d := newFake(t)
	d.hold(web2)
	for _, arguments := range [][]string{{"cp", "", "web/0:x"}, {"cp", "web/0:x", ""}, {"get", ""}, {"explain", ""}, {"logs", ""},
		{"top", ""}, {"drain", ""}, {"uncordon", ""}, {"forget", ""}, {"delete", ""}, {"export", ""}, {"connect", ""},
		{"rollout", "undo", ""}, {"rollout", "status", ""}, {"wasm", "invoke", ""}, {"image", "pull", ""}, {"image", "rm", ""},
		{"resolve", "", "--take", "1"}, {"exec", "", "--", "sh"}, {"exec", "web/0", "--", ""}, {"apply", "-f", ""},
		{"logs", "web", "--since", ""}, {"apply", "-f", "-", "--set", ""}, {"--socket", "", "status"}, {"diff", "-f", ""},
		{"delete", "spread.web", ""}} {
		if _, errors, code := d.words(arguments...); code != ExitUsage || errors == "" {
			t.Errorf("%q: exit %d, %q", arguments, code, errors)
		}
	}
	if len(d.requests) != 0 || d.writes != 0 {
		t.Errorf("the daemon was asked: %q", d.requests)
	}
}
