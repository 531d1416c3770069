package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"colloid.net/runnerd/image/manifest"
)

// FuzzParseRecord holds the file of an image: its layers are names of directories below the store and nothing else.
func FuzzParseRecord(f *testing.F) {
	id := strings.Repeat("0a", 32)
	f.Add([]byte(`{"references":["a"],"size":5,"chain":["` + id + `"],"manifest":"e30=","config":"e30="}`))
	f.Add([]byte(`{"chain":["../../etc"]}`))
	f.Add([]byte(`{"chain":[]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseRecord(text)
		if err != nil {
			if r != nil || strings.Contains(err.Error(), "%!") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%+v beside %q", r, err)
			}
			return
		}
		for _, id := range r.Chain {
			if len(id) != 64 || strings.ContainsAny(id, "/.") {
				t.Fatalf("layer %q", id)
			}
		}
		if len(r.Chain) == 0 || len(r.Chain) > manifest.LayersMax || r.Size < 0 {
			t.Fatalf("%+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := parseRecord(again); err != nil || !reflect.DeepEqual(second.Chain, r.Chain) ||
			string(second.Manifest) != string(r.Manifest) || !second.Created.Equal(r.Created) {
			t.Fatalf("%+v became %+v, %v", r, second, err)
		}
	})
}

// FuzzParseRoot holds the record of a root file system.
func FuzzParseRoot(f *testing.F) {
	f.Add([]byte(`{"digest":"sha256:` + strings.Repeat("0a", 32) + `","ids":{"base":131072,"count":65536},"disk_mib":100}`))
	f.Add([]byte(`{"digest":5}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseRoot(text)
		if err != nil {
			if d != (rootDescription{}) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%+v beside %q", d, err)
			}
			return
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if d.Digest == (manifest.Digest{}) { // a root without an image, which nobody writes
			return
		}
		if second, err := parseRoot(again); err != nil || second != d {
			t.Fatalf("%+v became %+v, %v", d, second, err)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"0", "123", "-5", "9223372036854775808", "1_0", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if size, err := parseSize(text); err == nil && (size < 0 || fmt.Sprint(size) != strings.TrimLeft(string(text), "0") && size != 0) {
			t.Fatalf("%q became %d", text, size)
		}
	})
}

// FuzzParseMounts: what is unmounted lies below the directory, each mount at most once per line.
func FuzzParseMounts(f *testing.F) {
	f.Add("36 35 98:0 / /s/roots/a/rootfs rw - overlay x rw\n37 35 0:5 / /s/roots/ab rw - tmpfs x rw\n", "/s/roots/a")
	f.Add("36 35 98:0 / /s/roots/a\\040b rw\n", "/s/roots")
	f.Fuzz(func(t *testing.T, text, directory string) {
		points := parseMounts(text, directory)
		if len(points) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d mounts in %q", len(points), text)
		}
		for _, point := range points {
			if !strings.HasPrefix(point, directory+"/") {
				t.Fatalf("%q is not below %q", point, directory)
			}
		}
	})
}

// A record without layers was called damaged for a reason that was none, and layers could be paths.
func TestADamagedRecordSaysWhy(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, text := range []string{`{}`, `{"chain":[]}`, `{"chain":["../x"]}`, `{"chain":["` + strings.ToUpper(id) + `"]}`,
		`{"chain":["` + id + `"],"size":-1}`, `{"chain":[` + strings.Repeat(`"`+id+`",`, 127) + `"` + id + `"]}`} {
		if r, err := parseRecord([]byte(text)); err == nil || strings.Contains(err.Error(), "%!") {
			t.Errorf("%.80s: %+v, %v", text, r, err)
		}
	}
}
