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
