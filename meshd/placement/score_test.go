package placement

import (
	"encoding/binary"
	"testing"

	"github.com/dchest/siphash"
	"pgregory.net/rapid"

	"colloid.net/meshd/wire"
)

const (
	testKey0 = 0x0706050403020100
	testKey1 = 0x0f0e0d0c0b0a0908
)

// These values are part of the protocol: a cell that computes others runs other workloads than its
// peers believe.
func TestF80_GoldenVectors(t *testing.T) {
	for _, v := range []struct {
		key   uint64
		cell  wire.CellID
		index uint16
		score uint64
	}{
		{0, 1, 0, 0x292e6fe8a4d839f5},
		{0x0123456789abcdef, 0xfedcba9876543210, 0, 0x8295877cf3ebba12},
		{0x0123456789abcdef, 0xfedcba9876543210, 1, 0x86de14e33b4e9965},
		{0x0123456789abcdef, 0xfedcba9876543210, 0x0102, 0x1572732dfdac348f},
		{0xfedcba9876543210, 0x0123456789abcdef, 0, 0x34c8b085ea50cc73},
		{0xffffffffffffffff, 0xfffffffffffffffe, 0xffff, 0xa5034148eeedde0b},
	} {
		if got := NewPlanner(testKey0, testKey1).Score(v.key, v.cell, v.index); got != v.score {
			t.Errorf("score(%x, %s, %d) = %x, want %x", v.key, v.cell, v.index, got, v.score)
		}
	}
}

func TestF80_ScoreIsSipHashOfTheConcatenation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k0, k1 := rapid.Uint64().Draw(t, "k0"), rapid.Uint64().Draw(t, "k1")
		key, cell := rapid.Uint64().Draw(t, "key"), rapid.Uint64().Draw(t, "cell")
		index := rapid.Uint16().Draw(t, "index")
		var raw [18]byte
		binary.BigEndian.PutUint64(raw[:], key)
		binary.BigEndian.PutUint64(raw[8:], cell)
		binary.BigEndian.PutUint16(raw[16:], index)
		want := siphash.Hash(k0, k1, raw[:])
		if got := NewPlanner(k0, k1).Score(key, wire.CellID(cell), index); got != want {
			t.Fatalf("score %x, want %x", got, want)
		}
	})
}

func BenchmarkScore(b *testing.B) {
	s, sum := absorbKey(testKey0, testKey1, 77), uint64(0)
	last := indexBlock(0)
	for i := 0; b.Loop(); i++ {
		sum += s.finish(uint64(i), last)
	}
	_ = sum
}
