package crdt

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"colloid.net/meshd/wire"
)

// healthName is a typical key: 30 characters.
func healthName(i int) []byte {
	return fmt.Appendf(nil, "health.%016x.cpu.%02d", uint64(i)*0x9e3779b97f4a7c15|1, i%100)
}

func healthRecord(s *Store, i int, sequence uint64, value []byte) wire.Record {
	name := healthName(i)
	dot := wire.Dot{Actor: wire.CellID(uint64(i)*0x9e3779b97f4a7c15 | 1), Sequence: sequence}
	return wire.Record{KeyHash: s.Hash(name), Name: name, EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, value), Context: wire.AppendDot(nil, dot)}
}

func fill(s *Store, count int) {
	random := rand.New(rand.NewPCG(1, 2))
	value := make([]byte, 40)
	for i := range count {
		r := healthRecord(s, i, 1, value[:15+random.IntN(26)])
		if outcome := s.Merge(&r); !outcome.Changed {
			panic("not merged")
		}
	}
}

// BenchmarkMergeHealthDelta merges deltas that each supersede the value of one of 50,000 keys. The
// records lie one behind the other, as in receive buffers.
func BenchmarkMergeHealthDelta(b *testing.B) {
	const keys = 50_000
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	fill(s, keys)
	var payload []byte
	value := make([]byte, 40)
	for i := range keys {
		r := healthRecord(s, i*7919%keys, 1, value[:15+i%26])
		payload = wire.AppendStateRecord(payload, &r)
	}
	b.ReportAllocs()
	b.ResetTimer()
	rest := payload
	sequence := uint64(1)
	var r wire.Record
	for range b.N {
		if len(rest) == 0 || sequence == 1 {
			rest = payload
			sequence++
		}
		rest, _ = wire.NextStateRecord(rest, &r)
		putSequence(&r, sequence)
		if outcome := s.Merge(&r); !outcome.Changed {
			b.Fatal("not changed")
		}
	}
}

func putSequence(r *wire.Record, sequence uint64) {
	for i := range 8 {
		r.Entries[8+i] = byte(sequence >> (56 - 8*i))
		r.Context[8+i] = byte(sequence >> (56 - 8*i))
	}
}

func BenchmarkMergeKnownDelta(b *testing.B) {
	const keys = 50_000
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2})
	fill(s, keys)
	r := healthRecord(s, 17, 1, nil)
	b.ReportAllocs()
	for range b.N {
		s.Merge(&r)
	}
}

func BenchmarkMemoryMillionKeys(b *testing.B) {
	for range b.N {
		s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2, KeysMax: 1_000_000})
		fill(s, 1_000_000)
		s.Root()
		b.ReportMetric(float64(s.MemoryBytes())/1e6, "MB")
		b.ReportMetric(float64(s.MemoryBytes())/float64(s.Len()), "B/key")
	}
}

func BenchmarkSnapshot100k(b *testing.B) {
	s := New(Options{Self: 1, HashKey0: 1, HashKey1: 2, KeysMax: 100_000})
	fill(s, 100_000)
	var data []byte
	b.Run("save", func(b *testing.B) {
		for range b.N {
			data = s.AppendSnapshot(data[:0])
		}
	})
	b.Run("load", func(b *testing.B) {
		for range b.N {
			if err := s.LoadSnapshot(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("rehash", func(b *testing.B) {
		for range b.N {
			for leaf := range Leaves {
				s.merkle.touch(leaf)
			}
			s.Root()
		}
	})
}
