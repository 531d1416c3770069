package main

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"colloid.net/meshd/crdt"
	"colloid.net/meshd/wire"
)

// hash keys of the stores under measurement; any pair does.
const hash0, hash1 = 11, 22

func newStore(self wire.CellID, keys int) *crdt.Store {
	return crdt.New(crdt.Options{Self: self, HashKey0: hash0, HashKey1: hash1, KeysMax: uint32(keys)})
}

// healthKey is the name of a typical key: 30 bytes.
func healthKey(i int) []byte {
	return fmt.Appendf(nil, "health.%016x.contact", uint64(i)*0x9e3779b97f4a7c15+1)
}

// put merges one write of a cell into a store, with a value of 40 bytes.
func put(store *crdt.Store, name []byte, actor wire.CellID, sequence uint64) {
	var value [40]byte
	binary.BigEndian.PutUint64(value[:], sequence)
	dot := wire.Dot{Actor: actor, Sequence: sequence}
	record := wire.Record{
		KeyHash: store.Hash(name), Name: name, EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, value[:]), Context: wire.AppendDot(nil, dot),
	}
	if outcome := store.Merge(&record); outcome.Rejected {
		panic("bench: record rejected")
	}
}

func fill(store *crdt.Store, keys int) {
	for i := range keys {
		put(store, healthKey(i), wire.CellID(i%1000+1000), uint64(i+1))
	}
}

func measureStore() {
	var allocations float64
	bench("merge_ops_s", medianOf(func() float64 {
		result := testing.Benchmark(benchmarkMerge)
		allocations = float64(result.AllocsPerOp())
		return float64(result.N) / result.T.Seconds()
	}))
	bench("merge_allocs", allocations)
	memory := func(keys int) float64 {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		store := newStore(1, keys)
		fill(store, keys)
		runtime.GC()
		runtime.ReadMemStats(&after)
		heap := float64(after.HeapAlloc - before.HeapAlloc)
		return max(heap, float64(store.MemoryBytes()))
	}
	bench("bytes_per_key", memory(100_000)/100_000)
	bench("million_keys_mb", memory(1_000_000)/(1<<20))
	store := newStore(1, 100_000)
	fill(store, 100_000)
	var snapshot []byte
	bench("snapshot_100k_ms", medianOf(func() float64 {
		begin := time.Now()
		snapshot = store.AppendSnapshot(snapshot[:0])
		return milliseconds(begin)
	}))
	bench("load_100k_ms", medianOf(func() float64 {
		fresh := newStore(1, 100_000)
		begin := time.Now()
		must(fresh.LoadSnapshot(snapshot))
		return milliseconds(begin)
	}))
}

// benchmarkMerge parses and merges deltas of keys that are there, as a cell does all day.
func benchmarkMerge(b *testing.B) {
	const keys = 1000
	store := newStore(1, keys)
	fill(store, keys)
	payloads := make([][]byte, keys)
	var sequence uint64 = 1 << wire.CounterBits
	var value [40]byte
	for i := range payloads {
		name := healthKey(i)
		dot := wire.Dot{Actor: wire.CellID(i%1000 + 1000), Sequence: sequence}
		record := wire.Record{
			KeyHash: store.Hash(name), Name: name, EntryCount: 1,
			Entries: wire.AppendEntry(nil, dot, value[:]), Context: wire.AppendDot(nil, dot),
		}
		payloads[i] = wire.AppendDelta(nil, &record)
	}
	var record wire.Record
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		payload := payloads[i%keys]
		if i%keys == 0 {
			sequence++
		}
		// A delta's dot stands behind its key hash, and once more in its context of one.
		binary.BigEndian.PutUint64(payload[16:], sequence)
		binary.BigEndian.PutUint64(payload[wire.DeltaHeadSize+8:], sequence)
		if err := wire.ParseDelta(payload, &record); err != nil {
			b.Fatal(err)
		}
		if !store.Merge(&record).Changed {
			b.Fatal("the delta was old")
		}
	}
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }
