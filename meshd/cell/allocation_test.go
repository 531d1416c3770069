package cell

import (
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// voice is another cell that speaks to the one under test.
type voice struct {
	t       testing.TB
	to      *Cell
	id      wire.CellID
	address netip.AddrPort
	sealer  *seal.Sealer
	nonce   uint32
	counter uint64
	entry   []byte
	context []byte
	payload []byte
	buffer  []byte
}

func newVoice(t testing.TB, to *Cell, id wire.CellID) *voice {
	return &voice{
		t: t, to: to, id: id, sealer: seal.NewSealer(to.cluster.Key, id, 1), counter: 1 << wire.CounterBits,
		address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(id)}), wire.Port),
		buffer:  make([]byte, 0, wire.DatagramMax), payload: make([]byte, 0, wire.PayloadMax),
	}
}

// delta tells the cell a fresh write.
func (v *voice) delta(now clock.Instant, name, value []byte) {
	v.counter++
	v.nonce++
	dot := wire.Dot{Actor: v.id, Sequence: v.counter}
	v.entry = wire.AppendEntry(v.entry[:0], dot, value)
	v.context = wire.AppendDot(v.context[:0], dot)
	record := wire.Record{
		KeyHash: v.to.store.Hash(name), Name: name, EntryCount: 1, Entries: v.entry, Context: v.context,
	}
	v.payload = wire.AppendDelta(v.payload[:0], &record)
	header := wire.Header{
		Type: wire.TypeDelta, PayloadLength: uint16(len(v.payload)), Sender: v.id, Nonce: v.nonce,
	}
	datagram := v.sealer.Seal(append(wire.AppendHeader(v.buffer[:0], header), v.payload...))
	v.to.Receive(now, v.address, datagram)
}

func (v *voice) introduce(now clock.Instant) {
	v.delta(now, []byte(state.ContactKey(v.id)), state.AppendCellContact(nil, state.CellContact{
		SecretHash: uint64(v.id), Candidates: []state.Candidate{{Address: v.address}},
	}))
	v.delta(now, []byte(state.StatusKey(v.id)), state.AppendCellStatus(nil, state.CellStatus{
		Life: state.Alive, Incarnation: 1, Claimants: []wire.CellID{v.id},
	}))
}

// One datagram through the whole cell: opened, parsed, merged, acknowledged, passed on to three others,
// all without a heap allocation (RES-1, F128).
func TestRES1_F128_ReceiveMergeForwardAllocatesNothing(t *testing.T) {
	c := lonely(t)
	now := clock.Instant(time.Hour)
	var voices []*voice
	for id := wire.CellID(20); id < 26; id++ {
		v := newVoice(t, c, id)
		v.introduce(now)
		voices = append(voices, v)
	}
	if c.members.Len() != len(voices) {
		t.Fatalf("%d members", c.members.Len())
	}
	name := []byte(state.LoadKey(20, state.LoadCPU))
	value := state.AppendLoad(nil, 0)
	before := c.gossip.Stats().Sent
	round := func() {
		now = now.Add(25 * time.Millisecond) // within the allowance of one actor (F18)
		value[1] = (value[1] + 1) % 100
		voices[0].delta(now, name, value)
		c.gossip.Tick(now)
	}
	for range 400 {
		round()
	}
	if sent := c.gossip.Stats().Sent - before; sent < 400 {
		t.Fatalf("only %d forwarded", sent)
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations per datagram", n)
	}
}

func BenchmarkReceiveMergeForward(b *testing.B) {
	c := lonely(b)
	now := clock.Instant(time.Hour)
	var voices []*voice
	for id := wire.CellID(20); id < 26; id++ {
		v := newVoice(b, c, id)
		v.introduce(now)
		voices = append(voices, v)
	}
	name := []byte(state.LoadKey(20, state.LoadCPU))
	value := state.AppendLoad(nil, 0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(25 * time.Millisecond)
		value[1] = (value[1] + 1) % 100
		voices[0].delta(now, name, value)
		c.gossip.Tick(now)
	}
}
