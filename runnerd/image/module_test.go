package image

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"colloid.net/runnerd/image/imagetest"
)

// TestF84_ModulesFromRegistries holds that the digest is that of the module, whatever the tag leads to.
func TestF84_ModulesFromRegistries(t *testing.T) {
	r := imagetest.NewRegistry(t)
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.wasm.config.v0+json")
	artifact, err := mutate.AppendLayers(artifact, static.NewLayer([]byte(module), "application/wasm"))
	if err != nil {
		t.Fatal(err)
	}
	r.Push(t, "f:1", artifact)
	r.Push(t, "image:1", small(t, runtime.GOARCH, "x"))
	c := newClient(t, func(o *Options) { o.Hosts = hosts(r) })
	for reference, want := range map[string]string{
		"oci://" + r.Host + "/image:1": "no WebAssembly module",
		"oci://" + r.Host + "/gone:1":  "has no",
		"oci://../../x":                "no reference",
	} {
		if _, err := c.Module(testContext(t), reference, sha(module), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", reference, err, want)
		}
	}
	if _, err := c.Module(testContext(t), "oci://"+r.Host+"/f:1", sha("another"), nil); err == nil || !strings.Contains(err.Error(), "a module with the digest") {
		t.Errorf("another module: %v", err)
	}
	if left := c.remains(t); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	file, err := c.Module(testContext(t), "oci://"+r.Host+"/f:1", sha(module), nil)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
}
