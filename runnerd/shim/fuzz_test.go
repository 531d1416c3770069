package shim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

func configs() []*Config {
	return []*Config{
		{Directory: "/d", Arguments: []string{"/bin/x", "a"}, Environment: []string{"A=b"}, Identity: true, UID: 5, GID: 6},
		{Directory: "/d", Watch: true, Root: procfs.Process{PID: 7, StartTicks: 8}, Cgroup: []string{"/sys/fs/cgroup/a"}},
		{Directory: "/d", Spare: true, Sandbox: &sandbox.Config{
			Rootfs: "/r", UIDBase: 1 << 17, GIDBase: 1 << 17, Count: sandbox.IDCount, Hostname: "h", Init: true,
			Mounts: []sandbox.Mount{{Target: "/tmp", Tmpfs: true}}, StopSignal: 15,
		}},
	}
}

// FuzzParseConfig holds what a shim is told: it is carried out as it was written, or not at all.
func FuzzParseConfig(f *testing.F) {
	for _, c := range configs() {
		f.Add(c.record().Encode())
	}
	f.Add([]byte("directory \"/d\"\nversion \"" + configVersion + "\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		c, err := parseConfig(r)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if !reflect.DeepEqual(c.record().Encode(), r.Encode()) {
			t.Fatalf("%q became %q", r.Encode(), c.record().Encode())
		}
	})
}

// A number that is none was 0, and one of 33 bits lost the first: a program of user 4294967296 would have been root's.
func TestAConfigurationIsTakenWhollyOrNotAtAll(t *testing.T) {
	for _, c := range configs() {
		parsed, err := parseConfig(c.record())
		if err != nil || !bytes.Equal(parsed.record().Encode(), c.record().Encode()) {
			t.Errorf("%+v became %+v, %v", c, parsed, err)
		}
		for name, value := range map[string]string{"uid": "4294967296", "gid": "x", "identity": "True", "session": "07",
			"extra": "-1", "new_field": "1"} {
			r := c.record()
			r.Set(name, value)
			if parsed, err := parseConfig(r); err == nil {
				t.Errorf("%s %q is taken for %+v", name, value, parsed)
			}
		}
	}
}

// FuzzParseWord holds the one line that a shim says, and that nobody collects more than one buffer of it.
func FuzzParseWord(f *testing.F) {
	f.Add([]byte("ok 12 345\n"))
	f.Add([]byte("error the program is missing\n"))
	f.Add([]byte("ok 0 1\n"))
	f.Add([]byte("\n"))
	f.Add(bytes.Repeat([]byte("x"), 5000))
	f.Fuzz(func(t *testing.T, said []byte) {
		p, err := readWord(bufio.NewReaderSize(bytes.NewReader(said), 4096))
		if err != nil {
			if p != (procfs.Process{}) && !strings.HasPrefix(string(said), "ok ") || err.Error() == "" || len(err.Error()) > 4096 {
				t.Fatalf("%+v beside %q", p, err)
			}
			return
		}
		line, _, _ := strings.Cut(string(said), "\n")
		if word := fmt.Sprintf("ok %d %d", p.PID, p.StartTicks); p.PID <= 0 || len(word) > len(line) {
			t.Fatalf("%q became %q", line, word)
		}
	})
}

func FuzzParseMark(f *testing.F) {
	f.Add("12:345:/var/lib/x/instances/a")
	f.Add("-1:x:/a")
	f.Add("1:2")
	f.Fuzz(func(t *testing.T, value string) {
		p, directory, ok := parseMark(value)
		if !ok {
			return
		}
		if !strings.HasSuffix(value, ":"+directory) || p.PID < 0 || p.PID == 0 && p.StartTicks != 0 {
			t.Fatalf("%q became %+v in %q", value, p, directory)
		}
	})
}

// FuzzDescribeProcess: of what the runtime was told about a process nothing changes but its arguments and variables.
func FuzzDescribeProcess(f *testing.F) {
	f.Add([]byte(`{"args":["a"],"noNewPrivileges":true,"capabilities":{"bounding":["CAP_KILL"]}}`), "sh")
	f.Add([]byte("null"), "sh")
	f.Add([]byte("[]"), "sh")
	f.Fuzz(func(t *testing.T, text []byte, argument string) {
		described, err := describeProcess(text, []string{argument}, []string{"A=b"})
		if err != nil {
			if described != nil || !strings.Contains(err.Error(), fileProcess) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q, %q", described, err)
			}
			return
		}
		var before, after map[string]any
		if err := errors.Join(json.Unmarshal(text, &before), json.Unmarshal(described, &after)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"args", "env"} {
			delete(before, name)
			delete(after, name)
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q became %q", text, described)
		}
	})
}
