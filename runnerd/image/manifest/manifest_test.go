package manifest

import (
	"fmt"
	"strings"
	"testing"
)

var zero = Digest{}.String()

func layer(mediaType string, size int64) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, zero, size)
}

func manifest(config string, layers ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"config":%s,"layers":[%s]}`, config, strings.Join(layers, ","))
}

func configOf(mediaType string) string { return layer(mediaType, 10) }

// TestF140_ManifestsAreReadStrictly holds which documents are refused, and why.
func TestF140_ManifestsAreReadStrictly(t *testing.T) {
	config := configOf(TypeConfig)
	for text, want := range map[string]string{
		``:                                   "not understood",
		`{}`:                                 "schema 0",
		`null`:                               "schema 0",
		`{"schemaVersion":1,"fsLayers":[]}`:  "schema 1",
		`{"schemaVersion":2}`:                "no configuration",
		`{"schemaVersion":2,"manifests":[]}`: "lists 0 manifests",
		`{"schemaVersion":2,"manifests":[],"layers":[]}`:     "at once",
		`{"schemaVersion":2,"mediaType":"x","manifests":[]}`: `media type "x"`,
		manifest(config): "lists 0 layers",
		manifest(config, strings.Repeat(layer(TypeLayer, 1)+",", LayersMax)+layer(TypeLayer, 1)):              "lists 128 layers",
		manifest(config, layer("text/html", 1)):                                                               `layer 1 has media type "text/html"`,
		manifest(config, layer("application/vnd.oci.image.layer.nondistributable.v1.tar", 1)):                 "layer 1 has media type",
		manifest(config, layer(TypeLayer, 0)):                                                                 "0 bytes",
		manifest(config, layer(TypeLayer, -1)):                                                                "-1 bytes",
		manifest(config, layer(TypeLayer, LayerSizeMax+1)):                                                    "bytes, expected 1 to",
		manifest(config, layer(TypeLayer, LayerSizeMax), layer(TypeLayer, LayerSizeMax), layer(TypeLayer, 1)): "layers have more than",
		manifest(configOf("application/vnd.cncf.helm.config.v1+json"), layer(TypeLayer, 1)):                   "no container image",
		manifest(layer(TypeConfig, DocumentMax+1), layer(TypeLayer, 1)):                                       "configuration has",
		manifest(config, strings.Replace(layer(TypeLayer, 1), "sha256:0", "sha512:0", 1)):                     "no sha256",
		manifest(config, strings.Replace(layer(TypeLayer, 1), "sha256:0", "sha256:../", 1)):                   "no sha256",
		strings.Repeat(" ", DocumentMax+1):                                                                    "more than",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s: %v, want %q", text, err, want)
		}
	}
	for _, good := range []string{
		manifest(config, layer(TypeLayer, 1), layer(TypeLayer+"+gzip", 1), layer(TypeLayer+"+zstd", 1)),
		manifest(configOf(TypeDockerConfig), layer(TypeDockerLayer+".gzip", 1)),
		manifest(configOf("application/vnd.wasm.config.v0+json"), layer(TypeWasm, 1)),
	} {
		if _, err := Parse([]byte(good)); err != nil {
			t.Errorf("%.120s: %v", good, err)
		}
	}
}

func entry(architecture, variant string, number byte) Descriptor {
	return Descriptor{Digest: Digest{number}, Platform: &Platform{Architecture: architecture, OS: "linux", Variant: variant}}
}

// TestF77_SelectByArchitecture holds which entry of an index a processor gets.
func TestF77_SelectByArchitecture(t *testing.T) {
	d := &Document{Manifests: []Descriptor{
		{Digest: Digest{9}}, entry("amd64", "v3", 1), entry("amd64", "", 2), entry("arm64", "v8", 3), entry("arm", "v7", 4),
		{Digest: Digest{5}, Platform: &Platform{Architecture: "s390x", OS: "windows"}},
	}}
	for architecture, want := range map[string]byte{"amd64": 2, "arm64": 3, "arm": 0, "s390x": 0, "": 0} {
		got, err := d.Select(architecture)
		if (err == nil) != (want != 0) || got.Digest[0] != want {
			t.Errorf("%s: %d, %v", architecture, got.Digest[0], err)
		}
	}
	if got := fmt.Sprint(d.Architectures()); got != "[amd64 arm arm64]" {
		t.Errorf("architectures %s", got)
	}
}

func TestF140_ConfigurationsAreReadStrictly(t *testing.T) {
	good := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["` + zero + `"]},"config":{"Env":["A=b"]}}`
	config, diffs, _, err := ParseConfig([]byte(good), 1)
	if err != nil || len(diffs) != 1 || config.Environment[0] != "A=b" {
		t.Errorf("%+v, %v", config, err)
	}
	for change, want := range map[[2]string]string{
		{`"linux"`, `"windows"`}:                                 "operating system",
		{`"layers"`, `"squashfs"`}:                               "of type",
		{`["` + zero + `"]`, `[]`}:                               "names 0 layers, the manifest 1",
		{`A=b`, `A=\u0000`}:                                      "zero byte",
		{`"A=b"`, `"` + strings.Repeat("x", wordsSizeMax) + `"`}: "expected at most",
		{`"A=b"`, strings.Repeat(`"x",`, wordsMax) + `"x"`}:      "words of",
		// Few bytes, and six times as many in a message from one process to another.
		{`"A=b"`, `"` + strings.Repeat(`\u0001`, wordsSizeMax/5) + `"`}: "expected at most",
		{`sha256:0`, `md5:0`}: "no sha256",
	} {
		_, _, _, err := ParseConfig([]byte(strings.Replace(good, change[0], change[1], 1)), 1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", change, err, want)
		}
	}
}

func TestDigestsHaveOneForm(t *testing.T) {
	for _, bad := range []string{"", "sha256:", zero[1:], zero + "0", strings.ToUpper(zero), "sha512:" + zero[7:], "sha256:" + strings.Repeat("A", 64)} {
		if d, err := ParseDigest(bad); err == nil {
			t.Errorf("%q became %s", bad, d)
		}
	}
	if d, err := ParseDigest("sha256:" + strings.Repeat("ab", 32)); err != nil || d.String() != "sha256:"+strings.Repeat("ab", 32) {
		t.Errorf("%s, %v", d, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(manifest(configOf(TypeConfig), layer(TypeLayer, 1))))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[` + layer(TypeManifest, 3) + `]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if (len(d.Manifests) > 0) == (len(d.Layers) > 0) || len(d.Layers) > LayersMax || d.Size() > ImageSizeMax {
			t.Fatalf("%+v", d)
		}
		_, _ = d.Select("amd64")
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["` + zero + `"]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, diffs, _, err := ParseConfig(text, 1)
		if err == nil && (len(diffs) != 1 || c.OS != "linux" || len(c.Environment) > wordsMax) {
			t.Fatalf("%+v", c)
		}
	})
}
