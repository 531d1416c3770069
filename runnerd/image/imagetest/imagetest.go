// Package imagetest makes images and registries for tests: real ones, small, in this process.
//
// Nouns. An image is built from layers given as entries of a tar; Busybox is one that can run a shell,
// from the host's static busybox or, without one, a program of this package. A Registry is
// go-containerregistry's over TLS on loopback, with a wrapper through which a test makes it hostile.
package imagetest

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"debug/elf"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Tar writes entries as they are, also such as no tool would write. A zero Mode becomes 0644 or 0755.
func Tar(t testing.TB, entries ...tar.Header) []byte { return TarWith(t, nil, entries...) }

// TarWith is Tar with the content of files by name.
func TarWith(t testing.TB, content map[string]string, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, header := range entries {
		text := content[header.Name]
		if header.Typeflag == 0 || header.Typeflag == tar.TypeReg {
			header.Typeflag, header.Size = tar.TypeReg, int64(len(text))
		}
		if header.Mode == 0 {
			header.Mode = 0o644
			if header.Typeflag == tar.TypeDir {
				header.Mode = 0o755
			}
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text[:min(int64(len(text)), header.Size)]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Image makes an image for this architecture out of uncompressed layers.
func Image(t testing.TB, architecture string, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture, file.OS, file.Config = architecture, "linux", config
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		image, err = mutate.AppendLayers(image, static.NewLayer(layer, types.OCIUncompressedLayer))
		if err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// busyboxes are where a static busybox may be.
var busyboxes = []string{"/bin/busybox", "/usr/bin/busybox"}

// Shell is a static program that can do what busybox can, and its name: "busybox", or "tool" for the
// program of this package, which knows sh -c 'exec ...' not at all.
var shell = sync.OnceValues(func() ([]byte, string) {
	for _, path := range busyboxes {
		text, err := os.ReadFile(path)
		if err == nil && isStatic(text) {
			return text, "busybox"
		}
	}
	return nil, ""
})

// isStatic reports whether a program needs no loader.
func isStatic(text []byte) bool {
	file, err := elf.NewFile(bytes.NewReader(text))
	return err == nil && !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// Busybox is an image with a shell, /etc/passwd with users root and app (1000), and a set-user-id file.
// On a host without a static busybox it holds a program built from Go, /bin/true alone.
func Busybox(t testing.TB, architecture string, config v1.Config) v1.Image {
	t.Helper()
	text, name := shell()
	content := map[string]string{
		"etc/passwd":   "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n",
		"etc/group":    "root:x:0:\napp:x:1000:\nextra:x:2000:app\n",
		"home/app/own": "of app\n", "bin/setuid": "no program",
	}
	entries := []tar.Header{
		{Typeflag: tar.TypeDir, Name: "./"},
		{Typeflag: tar.TypeDir, Name: "bin/"}, {Typeflag: tar.TypeDir, Name: "etc/"}, {Typeflag: tar.TypeDir, Name: "dev/"},
		{Typeflag: tar.TypeDir, Name: "proc/"}, {Typeflag: tar.TypeDir, Name: "sys/"},
		{Typeflag: tar.TypeDir, Name: "root/", Mode: 0o700},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, {Typeflag: tar.TypeDir, Name: "home/"},
		{Typeflag: tar.TypeDir, Name: "home/app/", Uid: 1000, Gid: 1000, Mode: 0o750},
		{Name: "etc/passwd"}, {Name: "etc/group"}, {Name: "home/app/own", Uid: 1000, Gid: 1000, Mode: 0o600},
		{Name: "bin/setuid", Mode: 0o4755},
	}
	if name == "busybox" {
		content["bin/busybox"] = string(text)
		entries = append(entries, tar.Header{Name: "bin/busybox", Mode: 0o755})
		for _, applet := range strings.Fields("sh true false cat ls sleep id env echo touch dd mount ps httpd nc wget yes " +
			"stat test mkdir mknod ping ip chown chmod rm kill hostname pwd printf head grep") {
			entries = append(entries, tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777})
		}
	} else {
		content["bin/true"] = string(buildTrue(t))
		entries = append(entries, tar.Header{Name: "bin/true", Mode: 0o755})
	}
	return Image(t, architecture, config, TarWith(t, content, entries...))
}

// HasShell reports whether Busybox has a shell.
func HasShell() bool { _, name := shell(); return name != "" }

func buildTrue(t testing.TB) []byte {
	t.Helper()
	directory := t.TempDir()
	source := filepath.Join(directory, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", "build", "-o", filepath.Join(directory, "true"), source)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	text, err := os.ReadFile(filepath.Join(directory, "true"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Registry is a registry on loopback.
type Registry struct {
	Host   string // 127.0.0.1:PORT
	Name   string // localhost:PORT, the same
	CA     []byte // PEM of the certificate to trust
	server *httptest.Server
	mutex  sync.Mutex
	wrap   func(http.Handler) http.Handler
	log    []string
}

// NewRegistry starts one with TLS; it ends with the test.
func NewRegistry(t testing.TB) *Registry { return start(t, true) }

// NewPlainRegistry starts one that speaks plain HTTP.
func NewPlainRegistry(t testing.TB) *Registry { return start(t, false) }

func start(t testing.TB, secure bool) *Registry {
	t.Helper()
	r := &Registry{}
	plain := registry.New(registry.Logger(discard()))
	handler := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mutex.Lock()
		wrap := r.wrap
		r.log = append(r.log, q.Method+" "+q.URL.Path+" "+q.Header.Get("Range"))
		r.mutex.Unlock()
		if wrap != nil {
			wrap(plain).ServeHTTP(w, q)
			return
		}
		plain.ServeHTTP(w, q)
	})
	if secure {
		r.server = httptest.NewUnstartedServer(handler)
		r.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}}
		r.server.StartTLS()
		r.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.TLS.Certificates[0].Certificate[0]})
	} else {
		r.server = httptest.NewServer(handler)
	}
	r.server.Config.ErrorLog = discard()
	r.Host = r.server.Listener.Addr().String()
	r.Name = strings.Replace(r.Host, "127.0.0.1", "localhost", 1)
	t.Cleanup(r.server.Close)
	return r
}

// Wrap puts a handler around the registry, nil for none. It takes effect with the next request.
func (r *Registry) Wrap(wrap func(http.Handler) http.Handler) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.wrap = wrap
}

// Requests gives what was asked so far: method, path and range.
func (r *Registry) Requests() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]string(nil), r.log...)
}

// Push stores an image and gives its digest. repository has no host; it may have a tag.
func (r *Registry) Push(t testing.TB, repository string, image v1.Image) v1.Hash {
	t.Helper()
	if err := remote.Write(r.reference(t, repository), image, remote.WithTransport(r.server.Client().Transport)); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// PushIndex stores an index with all it refers to.
func (r *Registry) PushIndex(t testing.TB, repository string, index v1.ImageIndex) v1.Hash {
	t.Helper()
	err := remote.WriteIndex(r.reference(t, repository), index, remote.WithTransport(r.server.Client().Transport))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func (r *Registry) reference(t testing.TB, repository string) name.Reference {
	t.Helper()
	var options []name.Option
	if r.CA == nil {
		options = append(options, name.Insecure)
	}
	reference, err := name.ParseReference(r.Host+"/"+repository, options...)
	if err != nil {
		t.Fatal(err)
	}
	return reference
}
