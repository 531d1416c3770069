package crdt

import (
	"encoding/binary"

	"colloid.net/meshd/wire"
)

// FrameBudgetMin is the least budget that holds any single entry.
const FrameBudgetMin = wire.RecordHeadSize + wire.EntryHeaderSize + wire.ValueMax +
	wire.DotSize + wire.NameMax

// Frames yields the register of name as records of at most budget bytes (AE_STATE form) and at most
// wire.FrameContextMax context actors, until yield returns false (F43). Each record carries some of
// the entries, with exactly their actors as context; actors without an entry come last. So each
// record is by itself a valid older state of the register: losing, repeating or reordering them can
// only delay. The record is valid during the call; the store must not be changed meanwhile. It panics
// if budget is below FrameBudgetMin.
func (s *Store) Frames(name []byte, budget int, yield func(*wire.Record) bool) {
	r, found := s.Get(name)
	if !found {
		return
	}
	s.FramesOf(r, budget, yield)
}

// FramesOf is Frames for a register that the caller has found already.
func (s *Store) FramesOf(r Register, budget int, yield func(*wire.Record) bool) {
	if budget < FrameBudgetMin {
		panic("crdt: frame budget cannot hold an entry")
	}
	room := budget - wire.RecordHeadSize - len(r.Name())
	lone := r.ContextCount() - r.EntryCount() // actors without an entry
	sent := 0
	entries := r.Entries()
	for first := true; first || len(entries) > 0 || sent < lone; first = false {
		frame := &s.frame // not a local variable: yield would drive it to the heap
		*frame = wire.Record{KeyHash: r.KeyHash(), Name: r.Name()}
		size := 0
		rest := entries
		for len(rest) > 0 && frame.EntryCount < wire.FrameContextMax {
			_, _, after, _ := wire.NextEntry(rest)
			if size+len(rest)-len(after)+wire.DotSize > room {
				break
			}
			size += len(rest) - len(after) + wire.DotSize
			frame.EntryCount++
			rest = after
		}
		frame.Entries = entries[: len(entries)-len(rest) : len(entries)-len(rest)]
		entries = rest
		take := 0
		if len(entries) == 0 {
			take = min(lone-sent, wire.FrameContextMax-frame.EntryCount, (room-size)/wire.DotSize)
		}
		s.context = appendFrameContext(s.context[:0], r, frame.Entries, sent, sent+take)
		sent += take
		frame.Context = s.context
		if len(frame.Context) > 0 && !yield(frame) {
			return
		}
	}
}

// appendFrameContext appends the context of the actors of chosen, and of the actors without an entry
// in r from number low up to number high.
func appendFrameContext(dst []byte, r Register, chosen []byte, low, high int) []byte {
	all := r.Entries()
	lone := 0
	for rest := r.Context(); len(rest) > 0; rest = rest[wire.DotSize:] {
		actor := binary.BigEndian.Uint64(rest)
		for len(all) > 0 && binary.BigEndian.Uint64(all) < actor {
			_, _, all, _ = wire.NextEntry(all)
		}
		for len(chosen) > 0 && binary.BigEndian.Uint64(chosen) < actor {
			_, _, chosen, _ = wire.NextEntry(chosen)
		}
		if len(all) > 0 && binary.BigEndian.Uint64(all) == actor {
			if len(chosen) > 0 && binary.BigEndian.Uint64(chosen) == actor {
				dst = append(dst, rest[:wire.DotSize]...)
			}
			continue
		}
		if lone >= low && lone < high {
			dst = append(dst, rest[:wire.DotSize]...)
		}
		lone++
	}
	return dst
}
