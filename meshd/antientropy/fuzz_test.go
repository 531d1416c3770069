package antientropy

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

var fuzzTypes = [...]wire.Type{wire.TypeAEBegin, wire.TypeAEState, wire.TypeAEEnd, wire.TypeDeltaAck,
	wire.TypeAEMerkleReq, wire.TypeAEMerkleResp, wire.TypeAEVector, wire.TypePing}

// FuzzReceive feeds messages of verified but arbitrary peers. Nothing may panic, a message may not
// cause more than a bounded number of others, everything must come to rest, and a session with an
// honest peer must work afterwards.
//
// The input is a list of messages: selector 1 (type, peer, nonce, wait), length 2, payload.
func FuzzReceive(f *testing.F) {
	for _, corpus := range recorded() {
		f.Add(corpus, true)
		f.Add(corpus, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, start bool) {
		n := newNetwork(t, 1, 1)
		p := n.cells[1]
		load(p.store, 20, 1)
		p.write("spread.deleted", "v")
		p.write("spread.deleted", "")
		sent, last := 0, uint32(0)
		n.tap = func(_, _ wire.CellID, _ wire.Type, nonce uint32, _ []byte) bool {
			sent++
			last = nonce
			return true
		}
		if start {
			p.sessions.Start(n.now, 2, false)
		}
		for messages := 0; len(data) >= 3 && messages < 200; messages++ {
			selector, size := data[0], int(binary.BigEndian.Uint16(data[1:]))
			data = data[3:]
			payload := data[:min(size, len(data), wire.PayloadMax)]
			data = data[len(payload):]
			nonce := uint32(selector) & 0x10 << 4
			if selector&0x20 != 0 {
				nonce = last
			}
			if selector&0x40 != 0 {
				n.now = n.now.Add(50 * time.Millisecond)
				p.sessions.Tick(n.now)
			}
			from := wire.CellID(2 + selector>>3&1)
			sent = 0
			header := wire.Header{Type: fuzzTypes[selector&7], Sender: from, Nonce: nonce}
			p.sessions.Receive(n.now, from, header, payload)
			if sent > requestRangesMax+slotsMax+2 {
				t.Fatalf("%d messages in reply to one", sent)
			}
		}
		end := n.now.Add(12 * time.Minute)
		for steps := 0; n.step(end); steps++ {
			if steps > 200_000 {
				t.Fatal("does not come to rest")
			}
		}
		if p.sessions.Deadline() != clock.Never {
			t.Fatal("still waiting for something after 12 minutes")
		}
		n.tap = nil
		honest := n.add(9)
		honest.sessions.Start(n.now, 1, true)
		n.settle(12 * time.Minute)
		if honest.bootstrap != 1 || honest.store.Root() != p.store.Root() {
			t.Fatal("a session with an honest peer does not work any more")
		}
	})
}

// recorded returns what a cell receives in real sessions, in the form of the fuzz input.
func recorded() (all [][]byte) {
	for _, initiator := range []wire.CellID{1, 2} {
		n := &network{t: quiet{}, random: rand.New(rand.NewPCG(1, 1)), now: 1, delay: time.Millisecond,
			cells: map[wire.CellID]*peer{}}
		n.add(1)
		n.add(2)
		load(n.cells[1].store, 20, 1)
		load(n.cells[2].store, 25, 1)
		for i := range 80 {
			dot := wire.AppendDot(nil, wire.Dot{Actor: wire.CellID(5000 + i), Sequence: 1})
			n.cells[2].store.RaiseStable(dot)
		}
		var trace []byte
		n.tap = func(_, to wire.CellID, kind wire.Type, nonce uint32, payload []byte) bool {
			if to == 1 {
				for i, known := range fuzzTypes {
					if known == kind {
						trace = append(trace, byte(i)|0x20, byte(len(payload)>>8), byte(len(payload)))
						trace = append(trace, payload...)
					}
				}
			}
			return false
		}
		n.cells[initiator].sessions.Start(n.now, 3-initiator, false)
		for n.step(clock.Never - 1) {
		}
		all = append(all, trace)
	}
	return all
}

// quiet stands in for a test while seeds are made.
type quiet struct{ testing.TB }

func (quiet) Fatalf(format string, arguments ...any) { panic(fmt.Sprintf(format, arguments...)) }
