package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/runnerd/trust"
	"colloid.net/workload"
)

const digestA = "0000000000000000000000000000000000000000000000000000000000000001"

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("policy", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// self is a user that this test may run processes as.
func self() string { return fmt.Sprint(os.Geteuid()) }

func TestParseReadsEveryStatement(t *testing.T) {
	p := parse(t, `
# a comment
instances 7
cpu 1500m
memory 2gb
log_rate 64kb
port_min 80
meshd_user 123
process /usr/bin/hello {
    sha256 `+digestA+` `+strings.Repeat("ab", 32)+`
    user 1000 2000
    args any; env any
    port 8000-8999 53
}
process "/opt/with space" { sha256 any }
`)
	if p.Instances != 7 || p.CPUMillicores != 1500 || p.MemoryMiB != 2048 || p.LogRate != 64<<10 || p.PortMin != 80 ||
		p.MeshdUID != 123 || len(p.Processes) != 2 {
		t.Fatalf("%+v", p)
	}
	hello := p.process("/usr/bin/hello")
	if len(hello.Digests) != 2 || hello.Digests[0][31] != 1 || hello.AnyDigest || len(hello.Users) != 2 ||
		hello.Users[0] != (User{"1000", 1000, 1000}) || !hello.Arguments || !hello.Variables || len(hello.Ports) != 2 ||
		hello.Ports[0] != (Range{8000, 8999}) || hello.Ports[1] != (Range{53, 53}) {
		t.Fatalf("%+v", hello)
	}
	other := p.process("/opt/with space")
	if !other.AnyDigest || other.Arguments || other.Variables || len(other.Ports) != 0 {
		t.Fatalf("%+v", other)
	}
	if os.Geteuid() == 0 && other.Users[0].UID != nobody {
		t.Fatalf("without a user statement it runs as %v", other.Users[0])
	}
	if cpu, memory := p.Capacity(1000, 4096); cpu != 1000 || memory != 2048 {
		t.Fatal(cpu, memory)
	}
	if cpu, memory := Empty().Capacity(1000, 4096); cpu != 1000 || memory != 4096 {
		t.Fatal(cpu, memory)
	}
}

func TestParseRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for text, want := range map[string]string{
		"instance 7":                     "policy:1:1: unknown statement instance, expected process,",
		"instances":                      "instances has 0 arguments",
		"instances 1 2":                  "instances has 2 arguments",
		"instances -1":                   "expected a number, from 0 to 1024",
		"instances 1025":                 "from 0 to 1024",
		"instances 1m":                   "expected a number",
		"instances 1; instances 2":       "given twice",
		"cpu 4":                          "expected millicores as in 1500m",
		"cpu 0m":                         "from 1",
		"memory 4":                       "512mb",
		"memory 99999999gb":              "512mb",
		"port_min 65536":                 "a port",
		"meshd_user no-such-user":        "does not exist",
		"process":                        "needs a path and a block",
		"process /a":                     "needs a path and a block",
		"process a { sha256 any }":       "not a clean absolute path",
		"process /a/../b { sha256 any }": "not a clean absolute path",
		"process /a {}":                  "has no sha256",
		"process /a { sha256 12 }":       "64 hexadecimal digits",
		"process /a { sha256 any " + digestA + " }":            "expected one of both",
		"process /a { sha256 any }\nprocess /a { sha256 any }": "given twice",
		"process /a { sha256 any; args some }":                 "expected any or none",
		"process /a { sha256 any; env any; env any }":          "given twice",
		"process /a { sha256 any; port 9-8 }":                  "expected a port or a range",
		"process /a { sha256 any; port 0 }":                    "expected a port or a range",
		"process /a { sha256 any; port 65536 }":                "expected a port or a range",
		"process /a { sha256 any; user no-such-user }":         "does not exist",
		"process /a { sha256 any; user 4294967295 }":           "does not exist",
		"process /a { sha256 any; capabilities all }":          "unknown statement capabilities",
		"process /a { sha256 any; args }":                      "needs an argument",
	} {
		if _, err := Parse("policy", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, expected %q", text, err, want)
		}
	}
}

func TestF145_DefaultIsDeny(t *testing.T) {
	spec := &workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/true"}
	for _, p := range []*Policy{Empty(), parse(t, ""), parse(t, "process /bin/false { sha256 any }")} {
		if _, err := p.Check(spec); err == nil {
			t.Error("allowed by default")
		}
	}
	p := parse(t, "process /bin/true { sha256 any; user "+self()+" }")
	if _, err := p.Check(spec); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*workload.Spec){
		"arguments":   func(s *workload.Spec) { s.Arguments = []string{"x"} },
		"environment": func(s *workload.Spec) { s.Environment = []string{"A=b"} },
		"port":        func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 8000, Container: 8000}} },
		"user":        func(s *workload.Spec) { s.User = "somebody" },
		"volume":      func(s *workload.Spec) { s.Volumes = []workload.Volume{{Name: "a", MountPath: "/a"}} },
		"command":     func(s *workload.Spec) { s.Command = []string{"x"} },
		"module":      func(s *workload.Spec) { s.Runtime = workload.RuntimeWasm },
	} {
		changed := *spec
		change(&changed)
		if _, err := p.Check(&changed); err == nil {
			t.Errorf("%s allowed by default", name)
		}
	}
}

// TestContainersWithinTheirBounds is the shipped default of decision D2 and what a host may change of it.
func TestContainersWithinTheirBounds(t *testing.T) {
	spec := &workload.Spec{Runtime: workload.RuntimeOCI, Image: "registry.example/web", Replicas: 1}
	permit, err := Empty().Check(spec)
	if err != nil || permit.String() != "container registry.example/web" || len(permit.Containers.Capabilities) > 0 {
		t.Fatalf("%v, %v", permit, err)
	}
	for name, change := range map[string]func(*workload.Spec){
		"low port": func(s *workload.Spec) { s.Ports = []workload.Port{{Host: 80, Container: 80}} },
		"loader":   func(s *workload.Spec) { s.Environment = []string{"LD_PRELOAD=/x"} },
		"zero":     func(s *workload.Spec) { s.Command = []string{"a\x00b"} },
		"probe":    func(s *workload.Spec) { s.Health.Kind = workload.HealthExec },
	} {
		changed := *spec
		change(&changed)
		if _, err := Empty().Check(&changed); err == nil {
			t.Errorf("%s allowed by default", name)
		}
	}
	if _, err := parse(t, "containers none").Check(spec); err == nil {
		t.Error("allowed against the policy")
	}
	p := parse(t, "containers any\nruntime /usr/bin/runc\nbind media /srv/media read_only\nbind data /srv/data\n"+
		"capability NET_RAW CAP_SYS_NICE\nallow_unlimited\n")
	permit, err = p.Check(spec)
	if err != nil || permit.Containers.Runtime != "/usr/bin/runc" || len(permit.Containers.Capabilities) != 2 ||
		!p.AllowUnlimited {
		t.Errorf("%+v, %v", permit, err)
	}
	if b, found := permit.Containers.Bind("media"); !found || b.Path != "/srv/media" || !b.ReadOnly {
		t.Errorf("%+v", b)
	}
	for _, text := range []string{
		"containers some", "runtime runc", "bind media", "bind media /etc", "bind media /", "bind media srv",
		"bind media /srv rw", "bind media /srv/../etc", "capability SYS_ADMIN", "capability ALL", "allow_unlimited yes",
		"bind a /srv/a\nbind a /srv/b",
	} {
		if _, err := Parse("policy", []byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestF145_RootOnlyWhereListed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run processes as others")
	}
	p := parse(t, "process /a { sha256 any }\nprocess /b { sha256 any; user 1000 root }")
	for _, c := range []struct {
		path, user string
		uid        int64 // -1 = denied
	}{{"/a", "", nobody}, {"/a", "root", -1}, {"/a", "0", -1}, {"/b", "", 1000}, {"/b", "root", 0}, {"/b", "0", 0}, {"/b", "1001", -1}} {
		permit, err := p.Check(&workload.Spec{Runtime: workload.RuntimeProcess, Image: c.path, User: c.user})
		if (err != nil) != (c.uid < 0) || err == nil && int64(permit.User.UID) != c.uid {
			t.Errorf("%s as %q: %+v, %v", c.path, c.user, permit.User, err)
		}
	}
}

func TestF145_VariablesThatChangeLoadedCodeNeverPass(t *testing.T) {
	for _, name := range []string{"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_", "GLIBC_TUNABLES", "GCONV_PATH",
		"MALLOC_CHECK_", "PORT", "PORT_0", "COLLOID_CELL", "", "1A", "A-B"} {
		if err := checkVariables([]string{name + "=x"}); err == nil {
			t.Errorf("%q passes", name)
		}
	}
	if err := checkVariables([]string{"LDX=1", "PATH=/x", "PORTAL=1", "_=2"}); err != nil {
		t.Error(err)
	}
	if err := checkVariables([]string{"A"}); err == nil {
		t.Error("a variable without value passes")
	}
}

func TestDigests(t *testing.T) {
	one, two := [32]byte{31: 1}, [32]byte{31: 2}
	process := parse(t, "process /a { sha256 "+digestA+" }").process("/a")
	for _, c := range []struct {
		file, wanted [32]byte
		ok           bool
	}{{one, [32]byte{}, true}, {one, one, true}, {one, two, false}, {two, [32]byte{}, false}, {two, two, false}} {
		if err := process.Accepts(c.file, c.wanted); (err == nil) != c.ok {
			t.Errorf("%x wanted %x: %v", c.file[31], c.wanted[31], err)
		}
	}
}

func TestF132_LoadInsistsOnATrustedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy")
	if _, err := Load(path, trust.Own()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := os.WriteFile(path, []byte("instances 3"), 0o644); err != nil {
		t.Fatal(err)
	}
	if p, err := Load(path, trust.Own()); err != nil || p.Instances != 3 {
		t.Errorf("%v, %v", p, err)
	}
	os.Chmod(path, 0o666)
	if _, err := Load(path, trust.Own()); err == nil {
		t.Error("a file that all may write was taken")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("instances 7\nprocess /a { sha256 any; port 1-2; user 0 }"))
	f.Add([]byte("cpu 1m\nmemory 1gb\nlog_rate 0\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("policy", text)
		if err != nil {
			return
		}
		for _, process := range p.Processes {
			if len(process.Users) == 0 || len(process.Digests) == 0 && !process.AnyDigest {
				t.Fatalf("%+v", process)
			}
		}
	})
}
