package workload

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func someEnvironment() *Environment {
	return &Environment{
		Variables: []Variable{{"PASSWORD", "geheim"}, {"EMPTY", ""}},
		Files:     []File{{"/etc/app/key.pem", 0o400, []byte{0, 1, 2}}, {"/etc/app.conf", 0o444, nil}},
	}
}

func TestF83_EnvironmentRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := new(Environment)
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[A-Z_][A-Z0-9_]{0,20}`), 0, 8, rapid.ID[string]).
			Draw(t, "names") {
			e.Variables = append(e.Variables, Variable{name, rapid.StringMatching(`[ -~]{0,100}`).Draw(t, "value")})
		}
		for _, path := range rapid.SliceOfNDistinct(rapid.StringMatching(`/etc/[a-z]{1,20}`), 0, 4, rapid.ID[string]).
			Draw(t, "paths") {
			e.Files = append(e.Files, File{path, rapid.Uint16Range(0, 0o777).Draw(t, "mode"),
				rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "content")})
		}
		encoded, err := EncodeEnvironment(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEnvironment(encoded)
		if err != nil {
			t.Fatal(err)
		}
		again, err := EncodeEnvironment(got)
		if err != nil || !bytes.Equal(again, encoded) {
			t.Fatalf("%v: encoded anew as other bytes", err)
		}
	})
}

func TestF83_EnvironmentRefuses(t *testing.T) {
	// What docs/configuration.md says of the bytes that names take.
	for size, fits := range map[int]bool{EnvironmentSizeMax - 1 - 4 - len("P") - 6 - len("/f"): true, EnvironmentSizeMax - 1 - 4 - len("P") - 6 - len("/f") + 1: false} {
		e := &Environment{Variables: []Variable{{"P", strings.Repeat("x", size-1)}}, Files: []File{{Path: "/f", Content: []byte("y")}}}
		if _, err := EncodeEnvironment(e); (err == nil) != fits {
			t.Errorf("values of %d bytes: %v", size, err)
		}
	}
	for name, change := range map[string]func(*Environment){
		"zero byte":      func(e *Environment) { e.Variables[0].Value = "a\x00b" },
		"name":           func(e *Environment) { e.Variables[0].Name = "A B" },
		"twice":          func(e *Environment) { e.Variables[1].Name = "PASSWORD" },
		"file twice":     func(e *Environment) { e.Files[1].Path = e.Files[0].Path },
		"relative":       func(e *Environment) { e.Files[0].Path = "etc/x" },
		"upwards":        func(e *Environment) { e.Files[0].Path = "/etc/../x" },
		"root":           func(e *Environment) { e.Files[0].Path = "/" },
		"proc":           func(e *Environment) { e.Files[0].Path = "/proc/sys/x" },
		"device":         func(e *Environment) { e.Files[0].Path = "/dev" },
		"set-user-id":    func(e *Environment) { e.Files[0].Mode = 0o4755 },
		"below a file":   func(e *Environment) { e.Files[1].Path = "/etc/app/key.pem/x" },
		"too large":      func(e *Environment) { e.Files[0].Content = make([]byte, EnvironmentSizeMax) },
		"too many":       func(e *Environment) { e.Files = make([]File, EnvironmentFilesMax+1) },
		"large variable": func(e *Environment) { e.Variables[0].Value = strings.Repeat("x", EnvironmentSizeMax+1) },
	} {
		e := someEnvironment()
		change(e)
		if _, err := EncodeEnvironment(e); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if names := strings.Join(someEnvironment().Names(), "; "); strings.Contains(names, "geheim") ||
		!strings.Contains(names, "secret PASSWORD") || !strings.Contains(names, "/etc/app.conf mode=0444") {
		t.Errorf("names: %s", names)
	}
}

func FuzzDecodeEnvironment(f *testing.F) {
	encoded, err := EncodeEnvironment(someEnvironment())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add([]byte{1})
	f.Add([]byte{1, 2, 1, '/', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := DecodeEnvironment(raw)
		if err != nil {
			return
		}
		if again, err := EncodeEnvironment(e); err != nil || !bytes.Equal(again, raw) {
			t.Fatalf("%x became %x, %v", raw, again, err)
		}
	})
}

func TestF83_SourcesOfABlock(t *testing.T) {
	blocks, err := Parse("f", []byte(`spread x {
    process /bin/x
    env PLAIN value
    secret PASSWORD from file ./password
    secret TOKEN from env TOKEN
    secret EMPTY from literal ""
    file /etc/x.conf from file x.conf mode=0440
    file /etc/y.conf from literal "a\nb"
}`), ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Source{
		{Name: "PASSWORD", Origin: FromFile, From: "./password", Line: 4},
		{Name: "TOKEN", Origin: FromVariable, From: "TOKEN", Line: 5},
		{Name: "EMPTY", Origin: FromLiteral, Line: 6},
		{Path: "/etc/x.conf", Mode: 0o440, Origin: FromFile, From: "x.conf", Line: 7},
		{Path: "/etc/y.conf", Mode: FileModeDefault, Origin: FromLiteral, From: "a\nb", Line: 8},
	}
	if !reflect.DeepEqual(blocks[0].Sources, want) {
		t.Errorf("got %+v", blocks[0].Sources)
	}
	for statement, complaint := range map[string]string{
		"secret A-B from env X":                         "unexpected A-B",
		"secret A of env X":                             "unexpected of",
		"secret A from vault X":                         "unexpected vault",
		"secret A from env":                             "lacks an argument",
		"secret A from env X; secret A from env Y":      "given twice",
		"env A x; secret A from env X":                  "is a secret too",
		"file etc/x from file y":                        "unexpected etc/x",
		"file /proc/x from file y":                      "unexpected /proc/x",
		"file /etc/x from env y":                        "unexpected env",
		"file /etc/x from file y mode=9":                "unexpected mode=9",
		"file /etc/x from file y mode=4755":             "unexpected mode=4755",
		"file /x from file a; file /x from file b":      "given twice",
		"secret A from env X; env_digest " + zeros64(1): "besides secret or file",
	} {
		_, err := Parse("f", []byte("spread x { process /bin/x; "+statement+" }"), ParseOptions{})
		if err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%s: %v, want %q", statement, err, complaint)
		}
	}
}

func zeros64(first byte) string { return strings.Repeat("0", 63) + string('0'+first) }
