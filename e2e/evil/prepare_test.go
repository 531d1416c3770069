package evil

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// TestF132_HostilePreparations asks for everything to be made ready that no policy here allows, for what is no module, for
// what lies where a registry must not be asked, and for far too much at a time. Each is denied or answered with why, nothing
// runs and nothing is left.
func TestF132_HostilePreparations(t *testing.T) {
	v := newVictim(t)
	listed := v.write("listed.wasm", "\x00asm garbage", 0o644)
	unlisted := v.write("unlisted.wasm", "\x00asm garbage", 0o644)
	script := v.write("script.wasm", "#!/bin/sh\necho ran > "+v.marker+"\n", 0o755)
	pipe := filepath.Join(v.base, "pipe.wasm")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	client := v.run(fmt.Sprintf("wasm { module %s %s %s; url any }\n", listed, script, pipe) + v.listed("args any"))
	module := func(image string) *workload.Spec {
		text, _ := os.ReadFile(strings.TrimPrefix(image, "file://"))
		if len(text) == 0 {
			text = []byte("x")
		}
		return &workload.Spec{Runtime: workload.RuntimeWasm, Replicas: 1, Image: image, ImageDigest: sha256.Sum256(text), MemoryMiB: 16}
	}
	for n, path := range []string{unlisted, v.canary} {
		id := client.Prepare(fmt.Sprintf("wasm.denied%d", n), 0, module("file://"+path))
		client.Await(id, denied)
		if client.Prepared(id) != 0 {
			t.Errorf("%s was prepared", path)
		}
	}
	answered := func(key string, spec *workload.Spec) {
		t.Helper()
		id := client.Prepare(key, 0, spec)
		reason := client.AwaitPrepared(id, 1)
		if reason == "" || strings.ContainsAny(reason, "\n\x1b") || client.Instance(id) != nil {
			t.Errorf("%s: %q", spec.Image, reason)
		}
	}
	answered("wasm.garbage", module("file://"+listed))
	answered("wasm.script", module("file://"+script))
	spec := module("file:///dev/null")
	spec.Image = "file://" + pipe
	answered("wasm.pipe", spec)
	spec = module("file:///dev/null")
	spec.Image = "https://169.254.169.254/latest/meta-data"
	answered("wasm.inside", spec)
	for n := range 300 { // far more than wait
		s := module("file:///dev/null")
		s.Image = fmt.Sprintf("https://127.0.0.1:1/%d", n)
		client.Prepare(fmt.Sprintf("wasm.many%d", n), 0, s)
	}
	client.Close()
	if left, _ := filepath.Glob(filepath.Join(v.Directory, "preparations", "*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	v.stillServes()
	for _, pattern := range []string{"wasm-cache/*/*/*", "images/modules/sha256-*"} {
		if left, _ := filepath.Glob(filepath.Join(v.Directory, pattern)); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	}
}
