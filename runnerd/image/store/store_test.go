package store

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image/manifest"
)

// The library starts this binary again to unpack; the crash test starts it as the process itself.
func TestMain(m *testing.M) {
	if Reexec() {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == Argument {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func openStore(t *testing.T) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.afters.Wait()
		if err := unmountBelow(s.directory); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

// memory is a Source.
type memory map[manifest.Digest][]byte

func (m memory) Open(digest manifest.Digest) (io.ReadCloser, error) {
	text, ok := m[digest]
	if !ok {
		return nil, errors.New("no such blob")
	}
	return io.NopCloser(bytes.NewReader(text)), nil
}

func (m memory) add(text []byte) manifest.Digest {
	digest := manifest.Digest(sha256.Sum256(text))
	m[digest] = text
	return digest
}

// image writes the documents for layers that are already packed.
func (m memory) image(t testing.TB, layers ...[]byte) manifest.Digest {
	t.Helper()
	var descriptors []string
	var diffs []string
	for _, layer := range layers {
		digest := m.add(layer)
		descriptors = append(descriptors, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, manifest.TypeLayer, digest,
			len(layer)))
		diffs = append(diffs, fmt.Sprintf("%q", digest))
	}
	config := fmt.Sprintf(`{"architecture":%q,"os":"linux","config":{"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":[%s]}}`,
		runtime.GOARCH, strings.Join(diffs, ","))
	text := fmt.Sprintf(`{"schemaVersion":2,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[%s]}`,
		manifest.TypeConfig, m.add([]byte(config)), len(config), strings.Join(descriptors, ","))
	return m.add([]byte(text))
}

type item struct {
	tar.Header
	content string
}

func pack(t testing.TB, items ...item) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, i := range items {
		i.Size = int64(len(i.content))
		if i.Typeflag == 0 {
			i.Typeflag = tar.TypeReg
		}
		if i.Mode == 0 {
			i.Mode = 0o755
		}
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, i.content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name, content string) item { return item{tar.Header{Name: name}, content} }

func noProgress(int, int, int64) {}

func (s *Store) mustImport(t *testing.T, m memory, digest manifest.Digest) Image {
	t.Helper()
	image, _, err := s.Import(m, Wanted{References: []string{"example.org/x:1"}, Digest: digest, Architecture: runtime.GOARCH}, noProgress)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// ping has everything that a change of owner would lose.
func ping() item {
	i := item{tar.Header{Name: "bin/ping", Mode: 0o4755}, "elf"}
	i.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	return i
}

func owned(name string, uid, gid int) item {
	return item{tar.Header{Name: name, Uid: uid, Gid: gid, Mode: 0o640}, "of " + name}
}

// TestF139_OwnersInsideAndOutside holds that files of an image belong to the ids of the container, on kernels
// that map ids of mounts and on those that cannot, and that nothing of it reaches the shared layers.
func TestF139_OwnersInsideAndOutside(t *testing.T) {
	for name, fallback := range map[string]bool{"mapped": false, "copied": true} {
		t.Run(name, func(t *testing.T) {
			withoutMapping = fallback
			defer func() { withoutMapping = false }()
			s := openStore(t)
			m := memory{}
			digest := m.image(t, pack(t, owned("root", 0, 0), owned("app", 1000, 1001), ping()),
				pack(t, owned("last", 65534, 65534), file("etc/x", "upper")))
			s.mustImport(t, m, digest)
			const base, count = 5 << 16, 65536
			rootfs, err := s.Mount("web-0", digest, IDRange{base, count}, 0)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string][2]uint32{
				".": {base, base}, "root": {base, base}, "app": {base + 1000, base + 1001}, "last": {base + 65534, base + 65534},
				"etc/x": {base, base},
			} {
				stat := statOf(t, filepath.Join(rootfs, name))
				if stat.Uid != want[0] || stat.Gid != want[1] {
					t.Errorf("%s belongs to %d:%d, want %v", name, stat.Uid, stat.Gid, want)
				}
			}
			if stat := statOf(t, filepath.Join(rootfs, "bin/ping")); stat.Mode&unix.S_ISUID == 0 {
				t.Errorf("the set-user-id bit is lost: %o", stat.Mode)
			}
			value := make([]byte, 64)
			n, err := unix.Lgetxattr(filepath.Join(rootfs, "bin/ping"), "security.capability", value)
			// The kernel shows the root that it belongs to: 24 bytes, the last four are its id.
			if err != nil || n != 24 || binary.LittleEndian.Uint32(value[20:]) != base {
				t.Errorf("capabilities %x, %v", value[:max(0, n)], err)
			}
			writeInside(t, rootfs, base)
			if stat := statOf(t, filepath.Join(s.directory, "layers", s.chainOf(t, digest)[0], "diff/app")); stat.Uid != 1000 {
				t.Errorf("in the shared layer it belongs to %d", stat.Uid)
			}
			if stat := statOf(t, filepath.Dir(rootfs)); stat.Uid != base || stat.Mode&0o777 != 0o700 {
				t.Errorf("the way to the root belongs to %d, mode %o", stat.Uid, stat.Mode)
			}
		})
	}
}

// writeInside writes as the root of the container would.
func writeInside(t *testing.T, rootfs string, base int) {
	t.Helper()
	path := filepath.Join(rootfs, "made")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(path, base+7, base+7); err != nil {
		t.Fatal(err)
	}
	if stat := statOf(t, path); stat.Uid != uint32(base+7) {
		t.Errorf("a file that was made belongs to %d", stat.Uid)
	}
}

func (s *Store) chainOf(t *testing.T, digest manifest.Digest) []string {
	t.Helper()
	r, err := s.load(digest)
	if err != nil {
		t.Fatal(err)
	}
	return r.Chain
}

func statOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t)
}

// TestF147_ScratchSpaceIsLimited holds that what a container writes ends at its limit, on any file system.
func TestF147_ScratchSpaceIsLimited(t *testing.T) {
	s := openStore(t)
	m := memory{}
	digest := m.image(t, pack(t, file("etc/x", "lower")))
	s.mustImport(t, m, digest)
	rootfs, err := s.Mount("web-0", digest, IDRange{}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(rootfs, "etc/x")); err != nil || string(text) != "lower" {
		t.Errorf("%q, %v", text, err)
	}
	err = os.WriteFile(filepath.Join(rootfs, "fill"), make([]byte, 5<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("5 MiB into 4 MiB: %v", err)
	}
	for i := range 10000 {
		if err = os.WriteFile(filepath.Join(rootfs, fmt.Sprint("f", i)), nil, 0o600); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("10000 files into 4 MiB: %v", err)
	}
}

// TestMountIsIdempotent holds what the client promises of a root.
func TestMountIsIdempotent(t *testing.T) {
	s := openStore(t)
	m := memory{}
	digest, other := m.image(t, pack(t, file("a", "1"))), m.image(t, pack(t, file("a", "2")))
	s.mustImport(t, m, digest)
	s.mustImport(t, m, other)
	rootfs, err := s.Mount("web-0", digest, IDRange{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rootfs, "made"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := s.Mount("web-0", digest, IDRange{}, 0)
	if err != nil || again != rootfs {
		t.Errorf("%q, %v", again, err)
	}
	if _, err := os.Stat(filepath.Join(again, "made")); err != nil {
		t.Error("asking again lost what was written")
	}
	if _, err := s.Mount("web-0", other, IDRange{}, 0); err == nil {
		t.Error("a mounted root became that of another image")
	}
	if err := s.Remove(digest); err == nil || !strings.Contains(err.Error(), "in use here, instances: 1") {
		t.Errorf("an image in use was removed: %v", err)
	}
	for range 2 {
		if err := s.Unmount("web-0"); err != nil {
			t.Fatal(err)
		}
	}
	// What a reboot leaves: the directory, and nothing mounted. The next root begins anew.
	if rootfs, err = s.Mount("web-0", digest, IDRange{}, 0); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(rootfs, "made"), nil, 0o600)
	if err := unmountBelow(filepath.Dir(rootfs)); err != nil {
		t.Fatal(err)
	}
	if rootfs, err = s.Mount("web-0", digest, IDRange{}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(rootfs, "made")); err == nil {
		t.Error("a root that was not mounted any more kept what was written")
	}
	for name, ids := range map[string]IDRange{"../x": {}, "": {}, "web": {Base: 0, Count: 65536}, "web1": {Base: 1 << 31, Count: 1 << 31}} {
		if _, err := s.Mount(name, digest, ids, 0); err == nil {
			t.Errorf("name %q with %v was taken", name, ids)
		}
	}
}

// TestManyLayers holds that an image of the most layers can be mounted: paths of all of them would not fit
// into the page of mount data.
func TestManyLayers(t *testing.T) {
	s := openStore(t)
	m := memory{}
	var layers [][]byte
	for i := range manifest.LayersMax {
		layers = append(layers, pack(t, file(fmt.Sprint("f", i), "x"), file("top", fmt.Sprint(i))))
	}
	digest := m.image(t, layers...)
	s.mustImport(t, m, digest)
	rootfs, err := s.Mount("web-0", digest, IDRange{1 << 20, 65536}, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(rootfs, "top"))
	if err != nil || string(text) != fmt.Sprint(manifest.LayersMax-1) {
		t.Errorf("%q, %v", text, err)
	}
}

// everything lists what a store holds, without what is always there.
func (s *Store) everything(t *testing.T) (list []string) {
	t.Helper()
	for _, name := range []string{"layers", "images", "roots", "blobs"} {
		entries, err := os.ReadDir(filepath.Join(s.directory, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			list = append(list, name+"/"+entry.Name())
		}
	}
	return list
}

// TestF140_ARefusalLeavesNothing imports images that are wrong in one thing each.
func TestF140_ARefusalLeavesNothing(t *testing.T) {
	s := openStore(t)
	good := pack(t, file("good", "x"))
	for name, c := range map[string]struct {
		want  string
		build func(memory) manifest.Digest
	}{
		"hostile layer above a good one": {"layer 2 of 2: entry", func(m memory) manifest.Digest {
			return m.image(t, good, pack(t, file("fine", "x"), file("../../evil", "x")))
		}},
		"blob is another": {"blob has digest", func(m memory) manifest.Digest {
			digest := m.image(t, good)
			m[manifest.Digest(sha256.Sum256(good))] = pack(t, file("evil", "x"))
			return digest
		}},
		"blob is longer": {"blob has more than the", func(m memory) manifest.Digest {
			digest := m.image(t, good)
			m[manifest.Digest(sha256.Sum256(good))] = append(bytes.Clone(good), make([]byte, 1<<20)...)
			return digest
		}},
		"manifest is another": {"has the digest", func(m memory) manifest.Digest {
			digest, other := m.image(t, good), m.image(t, good, good)
			m[digest] = m[other]
			return digest
		}},
		"content is another": {"the configuration says", func(m memory) manifest.Digest {
			digest := m.image(t, good)
			wrong := manifest.Digest(sha256.Sum256(good)).String()
			var text string
			for d, blob := range m {
				if bytes.Contains(blob, []byte("diff_ids")) {
					text = strings.Replace(string(blob), wrong, "sha256:"+strings.Repeat("0", 64), 1)
					old := string(m[digest])
					made := strings.Replace(old, d.String(), m.add([]byte(text)).String(), 1)
					return m.add([]byte(made))
				}
			}
			return digest
		}},
		"other architecture": {"set arch in the workload", func(m memory) manifest.Digest {
			digest := m.image(t, good)
			for d, blob := range m {
				if bytes.Contains(blob, []byte("diff_ids")) {
					text := bytes.Replace(blob, []byte(runtime.GOARCH), []byte("s390x"), 1)
					return m.add(bytes.Replace(m[digest], []byte(d.String()), []byte(m.add(text).String()), 1))
				}
			}
			return digest
		}},
		"missing blob": {"no such blob", func(m memory) manifest.Digest {
			digest := m.image(t, good)
			delete(m, sha256.Sum256(good))
			return digest
		}},
	} {
		m := memory{}
		digest := c.build(m)
		_, _, err := s.Import(m, Wanted{Digest: digest, Architecture: runtime.GOARCH}, noProgress)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if left := s.everything(t); len(left) > 0 {
			t.Errorf("%s left %q", name, left)
		}
	}
}

// TestRecordsOfNobody holds that a damaged or half written record neither counts nor stops anything.
func TestRecordsOfNobody(t *testing.T) {
	s := openStore(t)
	m := memory{}
	digest := m.image(t, pack(t, file("a", "x")))
	s.mustImport(t, m, digest)
	other := filepath.Join(s.directory, "images", strings.Repeat("a", 64))
	os.WriteFile(other, []byte("{"), 0o600)
	os.WriteFile(filepath.Join(s.directory, "images", "new-123"), []byte("{}"), 0o600)
	if images, err := s.List(); err != nil || len(images) != 1 {
		t.Errorf("%v, %v", images, err)
	}
	_, _, err := s.Find(manifest.Digest(bytes.Repeat([]byte{0xaa}, 32)))
	if err == nil || !strings.Contains(err.Error(), "colloid image rm") {
		t.Errorf("%v", err)
	}
	if err := s.Remove(digest); err != nil {
		t.Error(err)
	}
	if left := s.everything(t); len(left) != 1 { // the damaged one, which rm removes
		t.Errorf("left %q", left)
	}
	text, _ := json.Marshal(manifest.Digest{})
	if string(text) != `"sha256:`+strings.Repeat("0", 64)+`"` {
		t.Errorf("%s", text)
	}
}
