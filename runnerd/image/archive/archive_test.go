package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"colloid.net/runnerd/image/manifest"
)

type file struct{ name, content, link string }

func pack(t testing.TB, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: 0o644}
		if f.link != "" {
			header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, f.link, 0
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, f.content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func read(archive []byte) (*Archive, error) {
	return Read(bytes.NewReader(archive), int64(len(archive)))
}

const dockerList = `[{"Config":"config.json","RepoTags":["example.org/x:1"],"Layers":["a/layer.tar","b/layer.tar"]}]`

// TestDockerArchive holds that layers are found behind links, and that the same image has the same digest.
func TestDockerArchive(t *testing.T) {
	archive := pack(t, file{name: "manifest.json", content: dockerList}, file{name: "config.json", content: "{}"},
		file{name: "a/layer.tar", content: "content of a layer"}, file{name: "b/layer.tar", link: "../a/layer.tar"})
	a, err := read(archive)
	if err != nil || len(a.Images) != 1 || !slices.Equal(a.Images[0].References, []string{"example.org/x:1"}) {
		t.Fatalf("%+v, %v", a, err)
	}
	text, err := a.Open(a.Images[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := io.ReadAll(text)
	d, err := manifest.Parse(raw)
	if err != nil || len(d.Layers) != 2 || d.Layers[0] != d.Layers[1] {
		t.Fatalf("%s: %+v, %v", raw, d, err)
	}
	if want := manifest.Digest(sha256.Sum256([]byte("content of a layer"))); d.Layers[0].Digest != want {
		t.Errorf("layer %s, want %s", d.Layers[0].Digest, want)
	}
	layer, err := a.Open(d.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if content, _ := io.ReadAll(layer); string(content) != "content of a layer" {
		t.Errorf("%q", content)
	}
	if again, err := read(archive); err != nil || again.Images[0].Digest != a.Images[0].Digest {
		t.Errorf("%+v, %v", again.Images, err)
	}
}

// TestAnImageHasAllItsNames holds that each name of an image in an archive counts, whoever wrote it.
func TestAnImageHasAllItsNames(t *testing.T) {
	tags := func(list string) string { return strings.Replace(dockerList, `"example.org/x:1"`, list, 1) }
	files := []file{{name: "config.json", content: "{}"}, {name: "a/layer.tar", content: "x"}, {name: "b/layer.tar", content: "y"}}
	digest := manifest.Digest(sha256.Sum256(nil))
	named := func(name string) string {
		return fmt.Sprintf(`{"digest":%q,"annotations":{"org.opencontainers.image.ref.name":%q}}`, digest, name)
	}
	want := []string{"app:3", "app:4"}
	for name, archive := range map[string][]byte{
		"tags":          pack(t, append(files, file{name: "manifest.json", content: tags(`"app:3","app:4","app:3","\u001b[2J"`)})...),
		"image twice":   pack(t, append(files, file{name: "manifest.json", content: strings.TrimSuffix(tags(`"app:3"`), "]") + "," + strings.TrimPrefix(tags(`"app:4"`), "[")})...),
		"layout":        pack(t, file{name: "oci-layout"}, file{name: "index.json", content: `{"manifests":[` + named("app:3") + "," + named("app:4") + "]}"}),
		"layout, again": pack(t, file{name: "oci-layout"}, file{name: "index.json", content: `{"manifests":[` + named("app:3") + "," + named("app:3") + "," + named("app:4") + "]}"}),
	} {
		a, err := read(archive)
		if err != nil || len(a.Images) != 1 || !slices.Equal(a.Images[0].References, want) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	var many []string
	for i := range NamesMax + 1 {
		many = append(many, fmt.Sprintf(`"app:%d"`, i))
	}
	if _, err := read(pack(t, append(files, file{name: "manifest.json", content: tags(strings.Join(many, ","))})...)); err == nil ||
		!strings.Contains(err.Error(), "65 names") {
		t.Errorf("%v", err)
	}
}

// TestF140_NamesInArchivesAreNoPaths holds that nothing in an archive leads to a file of the host.
func TestF140_NamesInArchivesAreNoPaths(t *testing.T) {
	config := file{name: "config.json", content: "{}"}
	for name, c := range map[string]struct {
		want  string
		files []file
	}{
		"layer of the host":  {"has no", []file{{name: "manifest.json", content: strings.Replace(dockerList, "a/layer.tar", "../../../../etc/passwd", 1)}, config}},
		"config of the host": {"has no", []file{{name: "manifest.json", content: strings.Replace(dockerList, "config.json", "/etc/passwd", 1)}}},
		"link to the host":   {"has no", []file{{name: "manifest.json", content: dockerList}, config, {name: "a/layer.tar", link: "/etc/passwd"}}},
		"links in a circle":  {"has no", []file{{name: "manifest.json", content: dockerList}, config, {name: "a/layer.tar", link: "../b/layer.tar"}, {name: "b/layer.tar", link: "../a/layer.tar"}}},
		"manifest is a link": {"neither an OCI layout", []file{{name: "manifest.json", link: "/etc/passwd"}}},
		"no image":           {"no image", []file{{name: "manifest.json", content: "[]"}}},
		"nonsense":           {"invalid character", []file{{name: "manifest.json", content: "x"}}},
		"many images":        {"257 images", []file{{name: "manifest.json", content: "[" + strings.Repeat("{},", 256) + "{}]"}}},
		"many layers":        {"128 layers", []file{config, {name: "manifest.json", content: fmt.Sprintf(`[{"Config":"config.json","Layers":[%s"x"]}]`, strings.Repeat(`"x",`, 127))}}},
		"large manifest":     {"expected at most", []file{{name: "manifest.json", content: strings.Repeat(" ", manifest.DocumentMax+1)}}},
		"layout, bad digest": {"no sha256", []file{{name: "oci-layout"}, {name: "index.json", content: `{"manifests":[{"digest":"sha256:../../x"}]}`}}},
	} {
		if _, err := read(pack(t, c.files...)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	digest := manifest.Digest(sha256.Sum256(nil))
	a, err := read(pack(t, file{name: "oci-layout"}, file{name: "index.json",
		content: fmt.Sprintf(`{"manifests":[{"digest":%q,"annotations":{"org.opencontainers.image.ref.name":"x\u001b[2J"}}]}`, digest)}))
	if err != nil || len(a.Images[0].References) != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := a.Open(digest); err == nil || !strings.Contains(err.Error(), "lacks blob") {
		t.Errorf("%v", err)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	if _, err := Open(pipe); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("%v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(pack(f, file{name: "manifest.json", content: dockerList}, file{name: "config.json", content: "{}"},
		file{name: "a/layer.tar", content: "x"}, file{name: "b/layer.tar", link: "../a/layer.tar"}))
	f.Add(pack(f, file{name: "oci-layout"}, file{name: "index.json", content: `{"manifests":[]}`}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		a, err := read(archive)
		if err != nil {
			return
		}
		for _, image := range a.Images {
			if content, err := a.Open(image.Digest); err == nil {
				if text, _ := io.ReadAll(content); len(text) > len(archive)+4096 {
					t.Fatalf("%d bytes out of %d", len(text), len(archive))
				}
			}
		}
	})
}
