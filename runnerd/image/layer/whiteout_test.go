package layer

import (
	"archive/tar"
	"bytes"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// filtered gives the names that come out, marks included.
func filtered(t *testing.T, entries ...entry) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := Filter(&out, bytes.NewReader(pack(t, entries...)), Limits{}); err != nil {
		return err.Error()
	}
	return strings.Join(names(t, out.Bytes()), " ")
}

// TestF140_WhiteoutsRemoveNothingOfTheirOwnLayer, wherever they stand: what a layer both removes and has, it has, and
// nothing of what was there below.
func TestF140_WhiteoutsRemoveNothingOfTheirOwnLayer(t *testing.T) {
	bin, mark := directory("bin"), file(".wh.bin", "")
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"mark first":                {[]entry{mark, bin, file("bin/a", "")}, "bin/ bin/a bin/.wh..wh..opq"},
		"mark last":                 {[]entry{bin, file("bin/a", ""), mark}, "bin/ bin/a bin/.wh..wh..opq"},
		"without the directory":     {[]entry{mark, file("bin/x/a", "")}, "bin/x/a bin/.wh..wh..opq"},
		"a file":                    {[]entry{mark, file("bin", "")}, "bin"},
		"a file, mark last":         {[]entry{file("bin", ""), mark}, "bin"},
		"a symbolic link":           {[]entry{mark, link(tar.TypeSymlink, "bin", "usr/bin")}, "bin"},
		"twice":                     {[]entry{mark, mark}, ".wh.bin"},
		"of a file that became one": {[]entry{file("bin", ""), mark, bin}, "bin bin/ bin/.wh..wh..opq"},
		"a directory after a file":  {[]entry{file("bin", ""), bin}, "bin bin/ bin/.wh..wh..opq"},
		"below one":                 {[]entry{mark, file("bin/.wh.a", "")}, ".wh.bin"},
		"below one, the other way":  {[]entry{file("bin/x/.wh.a", ""), file("bin/.wh..wh..opq", ""), mark}, ".wh.bin"},
		"below one that is there":   {[]entry{mark, bin, file("bin/.wh.a", "")}, "bin/ bin/.wh..wh..opq bin/.wh.a"},
		"through a later link": {[]entry{file("bin/.wh.a", ""), link(tar.TypeSymlink, "bin", "/")},
			`entry "bin/.wh.a" leads through "bin", which is a symbolic link`},
	} {
		if got := filtered(t, c.entries...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestF140_ImpliedDirectoriesCount: each is made, so each is one of those that a layer may have.
func TestF140_ImpliedDirectoriesCount(t *testing.T) {
	deep := pack(t, file(strings.Repeat("a/", 100)+"b", ""), file(strings.Repeat("a/", 100)+"c", ""))
	for limit, fits := range map[int]bool{102: true, 101: false} {
		_, err := Filter(io.Discard, bytes.NewReader(deep), Limits{EntriesMax: limit})
		if (err == nil) != fits || err != nil && !strings.Contains(err.Error(), "more than 101 entries") {
			t.Errorf("%d: %v", limit, err)
		}
	}
}

// under reports whether a name is another one or below it.
func under(name, other string) bool { return name == other || strings.HasPrefix(name, other+"/") }

// TestF140_WhiteoutsMeanWhatTheSpecificationSays: what an overlay shows of the filtered layer above one that has
// everything is what the specification says of the layer as it came.
func TestF140_WhiteoutsMeanWhatTheSpecificationSays(t *testing.T) {
	var lower []string
	for _, a := range []string{"a", "b"} {
		lower = append(lower, a)
		for _, b := range []string{"a", "b"} {
			lower = append(lower, a+"/"+b, a+"/"+b+"/a", a+"/"+b+"/b")
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		pick := rapid.StringMatching(`([ab]/){0,2}(\.wh\.[ab]|\.wh\.\.wh\.\.opq|[ab]|[ab]/)`)
		var entries []entry
		directories := map[string]bool{} // what is both, one after the other, no tool writes
		for _, name := range rapid.SliceOfN(pick, 1, 7).Draw(rt, "names") {
			plain := strings.TrimSuffix(name, "/")
			if is, known := directories[plain]; known && is != (plain != name) {
				continue
			}
			if directories[plain] = plain != name; directories[plain] {
				entries = append(entries, directory(name))
			} else {
				entries = append(entries, file(name, ""))
			}
		}
		var out bytes.Buffer
		if _, err := Filter(&out, bytes.NewReader(pack(t, entries...)), Limits{}); err != nil {
			return
		}
		got, want := shownByOverlay(rt, lower, out.Bytes()), shownBySpecification(lower, entries)
		if !slices.Equal(got, want) {
			rt.Fatalf("%v, want %v", got, want)
		}
	})
}

// shownBySpecification: a mark removes what is below, and then the layer is laid upon it.
func shownBySpecification(lower []string, entries []entry) []string {
	shown := map[string]bool{}
	for _, name := range lower {
		shown[name] = true
	}
	for _, e := range entries {
		directory, base := path.Split(e.Name)
		hidden, mark := strings.CutPrefix(base, whiteoutPrefix)
		for name := range shown {
			if base == whiteoutOpaque && strings.HasPrefix(name, directory) || base != whiteoutOpaque && mark && under(name, directory+hidden) {
				delete(shown, name)
			}
		}
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name, "/")
		if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
			continue
		}
		for other := range shown { // a file takes the place of a directory
			if e.Typeflag == tar.TypeReg && strings.HasPrefix(other, name+"/") {
				delete(shown, other)
			}
		}
		for ; name != "."; name = path.Dir(name) {
			shown[name] = true
		}
	}
	return slices.Sorted(keys(shown))
}

// shownByOverlay unpacks as the library does, and merges as an overlay does.
func shownByOverlay(t *rapid.T, lower []string, text []byte) []string {
	upper, device, opaque := map[string]byte{}, map[string]bool{}, map[string]bool{}
	r := tar.NewReader(bytes.NewReader(text))
	for header, err := r.Next(); err == nil; header, err = r.Next() {
		name := strings.TrimSuffix(header.Name, "/")
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if device[parent] || upper[parent] == tar.TypeReg {
				t.Fatalf("%q leads through %q", name, parent)
			}
			upper[parent] = tar.TypeDir
		}
		hidden, mark := strings.CutPrefix(path.Base(name), whiteoutPrefix)
		switch {
		case path.Base(name) == whiteoutOpaque:
			opaque[path.Dir(name)] = true
		case mark:
			hidden = path.Join(path.Dir(name), hidden)
			if upper[hidden] != 0 || device[hidden] {
				t.Fatalf("a mark where %q is", hidden)
			}
			device[hidden] = true
		default:
			for other := range upper {
				if header.Typeflag == tar.TypeReg && strings.HasPrefix(other, name+"/") {
					delete(upper, other)
				}
			}
			upper[name] = header.Typeflag
		}
	}
	shown := map[string]bool{}
	for name := range upper {
		shown[name] = true
	}
	for _, name := range lower {
		hidden := opaque["."] || device[name]
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			hidden = hidden || device[parent] || opaque[parent] || upper[parent] == tar.TypeReg
		}
		if !hidden {
			shown[name] = true
		}
	}
	return slices.Sorted(keys(shown))
}

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for name := range m {
			if !yield(name) {
				return
			}
		}
	}
}
