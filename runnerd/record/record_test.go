package record

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEncodeAndParseAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Record{}
		for range rapid.IntRange(0, 20).Draw(t, "lines") {
			r.Add(rapid.StringMatching(`[a-z_]{1,8}`).Draw(t, "name"), rapid.String().Draw(t, "value"))
		}
		got, err := Parse(r.Encode())
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%v became %v, %v", r, got, err)
		}
	})
}

func TestSaveReplacesAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for i := range int64(3) {
		r := Record{}
		r.SetInt("n", i-1)
		r.SetUint("u", 1<<63)
		if err := Save(path, r); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil || got.Int("n") != i-1 || got.Uint("u") != 1<<63 || got.Int("absent") != 0 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 1 {
		t.Fatalf("%d files left", len(entries))
	}
}

func TestLoadFollowsNoLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Fatal("link was followed")
	}
	if err := os.Symlink("elsewhere", path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, nil); err == nil {
		t.Fatal("link was followed for writing")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("pid \"12\"\nenv \"A=b\\n\"\nenv \"C=\"\n"))
	f.Add([]byte("pid `12`\n"))
	f.Add([]byte(strings.Repeat("a \"\"\n", 100)))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(r.Encode())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%q: %v, %v", text, again, err)
		}
	})
}
