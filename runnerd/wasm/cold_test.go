package wasm

import (
	"context"
	"testing"
)

// BenchmarkColdStart is what a worker does between its start and its first invocation, with the module in
// its cache: check it, verify the cache, load the compiled code, make an instance. The start of the
// process and its sandbox are not in it. `make bench` shows it as wasm_cold_ms.
func BenchmarkColdStart(b *testing.B) {
	settings := &Settings{
		Workload: "test", Capabilities: allCapabilities, MemoryPages: 256,
		CacheDirectory: b.TempDir(), CacheKey: []byte("key"),
	}
	binary := fixture(b, "grow_table")
	load := func() {
		w := newWorker(settings, b.Output())
		if err := w.open(context.Background(), binary, false); err != nil {
			b.Fatal(err)
		}
		if _, err := w.instantiate(context.Background(), [32]byte{}); err != nil {
			b.Fatal(err)
		}
		w.engine.runtime.Close(context.Background())
	}
	load() // compiles
	for b.Loop() {
		load()
	}
}
