package swim

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

const (
	selfID = wire.CellID(100)
	peerA  = wire.CellID(200)
	peerB  = wire.CellID(300)
	peerC  = wire.CellID(400)
)

// bench is one detector whose messages are caught.
type bench struct {
	*Detector
	now       clock.Instant
	sent      []message
	claims    []statusOf
	told      []wire.CellID
	observed  []netip.AddrPort
	validated int
}

type message struct {
	to      wire.CellID
	kind    wire.Type
	nonce   uint32
	payload []byte
}

func addressOf(id wire.CellID) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(id / 100)}), wire.Port)
}

func newBench(ids ...wire.CellID) *bench {
	b := &bench{now: clock.Instant(time.Hour)}
	members := overlay.NewMembers(selfID)
	for _, id := range ids {
		members.Upsert(id).Address = addressOf(id)
	}
	b.Detector = New(Options{
		Self: selfID, Random: rand.New(rand.NewPCG(1, 1)), Members: members,
		Guard: overlay.NewGuard(rand.New(rand.NewPCG(1, 2))),
		Send: func(to wire.CellID, t wire.Type, nonce uint32, payload []byte) {
			b.sent = append(b.sent, message{to, t, nonce, append([]byte(nil), payload...)})
		},
		Claim: func(now clock.Instant, target wire.CellID, s state.CellStatus) {
			b.claims = append(b.claims, statusOf{at: now, by: selfID, target: target, status: s})
		},
		TellStatus: func(_ clock.Instant, to, _ wire.CellID) { b.told = append(b.told, to) },
		Observed: func(_ clock.Instant, _ wire.CellID, a netip.AddrPort) {
			b.observed = append(b.observed, a)
		},
		Validated: func(clock.Instant, *overlay.Member) { b.validated++ },
	})
	b.SetSelf(state.CellStatus{Life: state.Alive, Incarnation: 5})
	b.Tick(b.now)
	return b
}

// take returns and forgets what was sent.
func (b *bench) take() []message {
	sent := b.sent
	b.sent = nil
	return sent
}

func (b *bench) receive(from wire.CellID, t wire.Type, nonce uint32, payload []byte) {
	b.Receive(b.now, from, addressOf(from), wire.Header{Type: t, Sender: from, Nonce: nonce}, payload)
}

// probe runs to the next scheduled probe and returns it.
func (b *bench) probe(t *testing.T) message {
	t.Helper()
	for range 10 {
		b.now = b.Deadline()
		b.Tick(b.now)
		for _, m := range b.take() {
			if m.kind == wire.TypePing {
				return m
			}
		}
	}
	t.Fatal("no PING in ten deadlines")
	return message{}
}

// TestF23_PingIsNoObservation: forged PINGs with an address change nothing; a PONG to an outstanding
// nonce counts once, a PONG to no question never.
func TestF23_PingIsNoObservation(t *testing.T) {
	b := newBench(peerA)
	lie := wire.AppendPing(nil, netip.MustParseAddrPort("203.0.113.9:4444"))
	for nonce := range uint32(50) {
		b.receive(peerA, wire.TypePing, nonce, lie)
		b.receive(peerA, wire.TypePong, nonce, lie)
	}
	if len(b.observed) != 0 || b.validated != 0 {
		t.Fatalf("forged datagrams made %d observations, %d validations", len(b.observed), b.validated)
	}
	b.take()
	ping := b.probe(t)
	truth := netip.MustParseAddrPort("198.51.100.7:12421")
	for range 3 {
		b.receive(peerA, wire.TypePong, ping.nonce, wire.AppendPing(nil, truth))
	}
	if len(b.observed) != 1 || b.observed[0] != truth || b.validated != 1 {
		t.Fatalf("observed %v, validated %d times; want %v once", b.observed, b.validated, truth)
	}
}

// TestF23_PingReportsOnlyFreshAddresses: zero unless the peer was heard in the last 60 s.
func TestF23_PingReportsOnlyFreshAddresses(t *testing.T) {
	b := newBench(peerA)
	ping := b.probe(t)
	if observed, err := wire.ParsePing(ping.payload); err != nil || observed.IsValid() {
		t.Fatalf("first PING reports %v (%v), want nothing", observed, err)
	}
	b.receive(peerA, wire.TypePong, ping.nonce, wire.AppendPing(nil, netip.AddrPort{}))
	ping = b.probe(t)
	if observed, _ := wire.ParsePing(ping.payload); observed != addressOf(peerA) {
		t.Fatalf("PING reports %v, want %v", observed, addressOf(peerA))
	}
	m := b.members.Get(peerA)
	m.SourceHeard = b.now.Add(-observationLifetime - time.Second)
	b.receive(peerB, wire.TypePing, 1, wire.AppendPing(nil, netip.AddrPort{})) // a stranger changes nothing
	b.take()
	ping = b.probe(t)
	if observed, _ := wire.ParsePing(ping.payload); observed.IsValid() {
		t.Fatalf("PING reports %v after a minute of silence", observed)
	}
}

// TestPingIsAnswered: also a stranger's, with its source address, never with more bytes than came.
func TestPingIsAnswered(t *testing.T) {
	b := newBench(peerA)
	payload := wire.AppendPing(nil, netip.AddrPort{})
	b.receive(peerC, wire.TypePing, 77, payload)
	sent := b.take()
	if len(sent) != 1 || sent[0].to != peerC || sent[0].kind != wire.TypePong || sent[0].nonce != 77 ||
		len(sent[0].payload) != len(payload) {
		t.Fatalf("answer %+v", sent)
	}
	if observed, err := wire.ParsePing(sent[0].payload); err != nil || observed != addressOf(peerC) {
		t.Errorf("answer reports %v (%v), want %v", observed, err, addressOf(peerC))
	}
}

// TestF37_HelperUsesItsOwnAddress: the address in a PING_REQ has no effect; unknown targets, unknown
// requesters and too frequent requests are met with silence.
func TestF37_HelperUsesItsOwnAddress(t *testing.T) {
	b := newBench(peerA, peerB)
	b.take()
	forged := wire.Contact{ID: peerB, Address: netip.MustParseAddrPort("10.0.0.1:22")}
	b.receive(peerA, wire.TypePingReq, 9, wire.AppendPingReq(nil, forged))
	sent := b.take()
	if len(sent) != 1 || sent[0].kind != wire.TypePing || sent[0].to != peerB {
		t.Fatalf("helper sent %+v, want one PING to %v", sent, peerB)
	}
	if a := b.members.Get(peerB).Address; a != addressOf(peerB) {
		t.Errorf("the request changed the target's address to %v", a)
	}
	b.receive(peerB, wire.TypePong, sent[0].nonce, wire.AppendPing(nil, netip.AddrPort{}))
	sent = b.take()
	if len(sent) != 1 || sent[0].kind != wire.TypePingReqAck || sent[0].to != peerA || sent[0].nonce != 9 {
		t.Fatalf("helper answered %+v", sent)
	}
	if ack, err := wire.ParsePingReqAck(sent[0].payload); err != nil || !ack.Reachable || ack.Target != peerB {
		t.Errorf("acknowledgement %+v, %v", ack, err)
	}

	unknown := wire.AppendPingReq(nil, wire.Contact{ID: peerC, Address: addressOf(peerC)})
	b.receive(peerA, wire.TypePingReq, 10, unknown)
	b.receive(peerC, wire.TypePingReq, 11, wire.AppendPingReq(nil, forged))
	itself := wire.AppendPingReq(nil, wire.Contact{ID: peerA, Address: addressOf(peerA)})
	b.receive(peerA, wire.TypePingReq, 12, itself)
	if sent := b.take(); len(sent) != 0 {
		t.Errorf("requests that must be ignored led to %+v", sent)
	}
	for nonce := range uint32(100) {
		b.receive(peerA, wire.TypePingReq, 100+nonce, wire.AppendPingReq(nil, forged))
	}
	if sent := len(b.take()); sent > overlay.RequestsPerSecond {
		t.Errorf("%d probes for one requester at once, want at most %d", sent, overlay.RequestsPerSecond)
	}
}

// TestF37_PunchedTargetNeedsAnOpenMapping: a helper that was not in touch lately keeps silent.
func TestF37_PunchedTargetNeedsAnOpenMapping(t *testing.T) {
	b := newBench(peerA, peerB)
	m := b.members.Get(peerB)
	open := false
	b.options.Direct = func(clock.Instant, *overlay.Member) bool { return open }
	request := wire.AppendPingReq(nil, wire.Contact{ID: peerB, Address: m.Address})
	b.take()
	b.receive(peerA, wire.TypePingReq, 1, request)
	if sent := b.take(); len(sent) != 0 {
		t.Errorf("cold helper sent %+v", sent)
	}
	open = true
	b.receive(peerA, wire.TypePingReq, 2, request)
	if sent := b.take(); len(sent) != 1 {
		t.Errorf("warm helper sent %+v, want one PING", sent)
	}
}

// TestF37_RefusalIsNoEvidence: helpers that say "unreachable" do not make a suspicion any shorter.
func TestF37_RefusalIsNoEvidence(t *testing.T) {
	b := newBench(peerA, peerB, peerC)
	b.ProbeNow(b.now, peerA)
	refusal := wire.AppendPingReqAck(nil, wire.PingReqAck{Target: peerA})
	for _, m := range b.take() {
		if m.kind == wire.TypePingReq {
			for range 20 {
				b.receive(m.to, wire.TypePingReqAck, m.nonce, refusal)
			}
		}
	}
	p := b.peers[peerA]
	if p.failed != 0 || p.accusers != 0 || len(b.claims) != 0 || p.phase != phaseRounds {
		t.Errorf("refusals led to failed %d, accusers %d, claims %v", p.failed, p.accusers, b.claims)
	}
}

// TestF64_NobodySpeaksForAnother: PINGs and any other datagrams of a DEAD cell are answered with its
// register, at most twice a second, and never with an ALIVE.
func TestF64_NobodySpeaksForAnother(t *testing.T) {
	b := newBench(peerA, peerB)
	verdict := state.CellStatus{Life: state.Dead, Incarnation: 3, Claimants: []wire.CellID{peerB}}
	b.StatusChanged(b.now, peerA, verdict)
	for range 1000 {
		b.receive(peerA, wire.TypePing, 1, wire.AppendPing(nil, netip.AddrPort{}))
		b.Heard(b.now, peerA)
		b.now = b.now.Add(time.Millisecond)
	}
	if len(b.told) < 1 || len(b.told) > 3 {
		t.Errorf("told %d times in a second", len(b.told))
	}
	if len(b.claims) != 0 {
		t.Errorf("claims %v", b.claims)
	}
}

// TestF63_Refutation: every accusation of self is answered with a higher incarnation, a stale register
// with the present one, GONE with nothing.
func TestF63_Refutation(t *testing.T) {
	status := func(life state.Life, incarnation uint32) state.CellStatus {
		return state.CellStatus{Life: life, Incarnation: incarnation}
	}
	none := state.CellStatus{}
	for _, c := range []struct {
		name   string
		self   state.Life
		heard  state.CellStatus
		answer state.CellStatus
	}{
		{"suspect", state.Alive, status(state.Suspect, 5), status(state.Alive, 6)},
		{"dead", state.Alive, status(state.Dead, 9), status(state.Alive, 10)},
		{"leaver accused", state.Leaving, status(state.Suspect, 5), status(state.Leaving, 6)},
		{"stale", state.Alive, status(state.Dead, 2), status(state.Alive, 5)},
		{"own words", state.Alive, status(state.Alive, 5), none},
		{"earlier run got further", state.Alive, status(state.Alive, 8), none},
		{"earlier run left", state.Alive, status(state.Leaving, 8), status(state.Alive, 9)},
		{"leaving is new", state.Leaving, status(state.Alive, 8), status(state.Leaving, 8)},
		{"gone", state.Alive, status(state.Gone, 5), none},
		{"last incarnation", state.Alive, status(state.Dead, math.MaxUint32), none},
	} {
		b := newBench(peerA)
		b.SetSelf(state.CellStatus{Life: c.self, Incarnation: 5})
		b.StatusChanged(b.now, selfID, c.heard)
		var got state.CellStatus
		if len(b.claims) == 1 {
			got = b.claims[0].status
		}
		if len(b.claims) > 1 || got.Life != c.answer.Life || got.Incarnation != c.answer.Incarnation {
			t.Errorf("%s: claims %v, want %v(%d)", c.name, b.claims, c.answer.Life, c.answer.Incarnation)
		}
		if c.answer.Life != 0 && !c.answer.Outranks(c.heard) {
			t.Errorf("%s: the expected answer does not outrank the accusation", c.name)
		}
	}
}

// TestF62_OnlyPredecessorsJoinAtOnce: a cell far away on the ring does not probe on hearsay.
func TestF62_OnlyPredecessorsJoinAtOnce(t *testing.T) {
	var ids []wire.CellID
	for id := wire.CellID(200); id <= 2000; id += 100 {
		ids = append(ids, id)
	}
	for _, id := range ids {
		b := newBench(ids...)
		b.take()
		accusation := state.CellStatus{Life: state.Suspect, Incarnation: 1, Claimants: []wire.CellID{2000}}
		b.StatusChanged(b.now, id, accusation)
		pings := 0
		for _, m := range b.take() {
			if m.kind == wire.TypePing {
				pings++
			}
		}
		want := 0
		if id <= 600 { // 200 to 600 have self (100) among their five predecessors
			want = 1
		}
		if pings != want {
			t.Errorf("accusation of %d: %d PINGs at once, want %d", id, pings, want)
		}
		if len(b.claims) != 0 {
			t.Errorf("accusation of %d: claims on hearsay %v", id, b.claims)
		}
	}
}

// TestF62_OnlookerLooksInTheEnd: a cell that only heard of a suspicion looks for itself when it is
// overdue and nobody has declared the target DEAD, and still claims nothing on hearsay.
func TestF62_OnlookerLooksInTheEnd(t *testing.T) {
	var ids []wire.CellID
	for id := wire.CellID(200); id <= 2000; id += 100 {
		ids = append(ids, id)
	}
	b := newBench(ids...)
	accusation := state.CellStatus{Life: state.Suspect, Incarnation: 1, Claimants: []wire.CellID{300}}
	b.StatusChanged(b.now, 1500, accusation)
	p := b.peers[1500]
	if p.phase != phaseOnlooker {
		t.Fatalf("phase %d after an accusation far away", p.phase)
	}
	const grace = onlookerDelayMax + probeTimeoutMin
	if wait := p.next.Sub(b.now); wait < suspicionTimeout || wait > suspicionTimeout+grace {
		t.Errorf("looks after %v", wait)
	}
	accusation.Claimants = []wire.CellID{300, 400, 500}
	b.StatusChanged(b.now, 1500, accusation)
	if wait := p.next.Sub(b.now); wait < suspicionFloor || wait > suspicionFloor+grace {
		t.Errorf("looks after %v with three accusers", wait)
	}
	b.take()
	b.schedule.next = p.next.Add(time.Second) // no scheduled probe comes in between
	b.now, b.lastEntry = p.next, p.next
	b.Tick(b.now)
	sent := b.take()
	if len(sent) != 1+indirectProbeCount || sent[0].kind != wire.TypePing || sent[0].to != 1500 {
		t.Errorf("sent %+v, want a full round", sent)
	}
	if len(b.claims) != 0 {
		t.Errorf("claims %v", b.claims)
	}
}

// TestF65_QuietAfterAPause: no DEAD until two scheduled probes have passed.
func TestF65_QuietAfterAPause(t *testing.T) {
	b := newBench(peerA)
	b.now = b.Deadline().Add(time.Minute)
	b.Tick(b.now)
	p := b.peer(peerA)
	for i := range quietRounds {
		if b.mayBury(b.now, p) {
			t.Errorf("DEAD allowed %d probes after a pause", i)
		}
		b.probe(t)
	}
	if !b.mayBury(b.now, p) {
		t.Error("DEAD still forbidden after two probes")
	}
}

// TestNoAddressNoVerdict: a member that this cell has no address for is neither probed nor accused.
func TestNoAddressNoVerdict(t *testing.T) {
	b := newBench(peerA, peerB)
	b.members.Get(peerA).Address = netip.AddrPort{}
	accusation := state.CellStatus{Life: state.Suspect, Incarnation: 1, Claimants: []wire.CellID{peerB}}
	b.StatusChanged(b.now, peerA, accusation)
	b.ProbeNow(b.now, peerA)
	for range 20 {
		b.now = b.Deadline()
		b.Tick(b.now)
		for _, m := range b.take() {
			if m.to == peerA {
				t.Fatalf("sent %v to a member without an address", m.kind)
			}
		}
	}
	for _, c := range b.claims {
		if c.target == peerA {
			t.Errorf("claimed %v", c)
		}
	}
}

// TestDetectorAllocatesNothing: probe, PONG and PING in steady state.
func TestDetectorAllocatesNothing(t *testing.T) {
	b := newBench(peerA, peerB)
	var last message
	b.options.Send = func(to wire.CellID, kind wire.Type, nonce uint32, payload []byte) {
		last = message{to: to, kind: kind, nonce: nonce}
	}
	payload := wire.AppendPing(nil, addressOf(selfID))
	b.options.Observed = nil
	round := func() {
		b.now = b.Deadline()
		b.Tick(b.now)
		b.receive(last.to, wire.TypePong, last.nonce, payload)
		b.receive(peerA, wire.TypePing, 4, payload)
		b.Heard(b.now, peerB)
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations per probe, want 0", n)
	}
}

// TestTimingKeepsThePromise adds up the constants: worst case from crash to DEAD without loss.
func TestTimingKeepsThePromise(t *testing.T) {
	if worst := slotInterval + probeTimeoutMin + suspicionTimeout; worst > 7500*time.Millisecond {
		t.Errorf("without confirmations %v, promised 7.5 s", worst)
	}
	if worst := slotInterval + probeTimeoutMin + suspicionFloor; worst > 4500*time.Millisecond {
		t.Errorf("with confirmations %v, promised 4.5 s", worst)
	}
	others := (1+accusationRounds)*probeTimeoutMin + probeTimeoutMin
	if others > probeTimeoutMin+suspicionFloor {
		t.Errorf("further accusers need until %v, the floor ends earlier", others)
	}
	if nonceLifetime < stretchedTimeoutMax || indirectProbeCount != 3 || suspicionAccusers >= predecessorsMax {
		t.Error("constants contradict each other")
	}
}

// FuzzReceive feeds arbitrary datagrams and statuses to a detector: it must not panic, its lists must
// stay bounded and consistent, and it must claim nothing about others on the word of datagrams alone.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 2, 1, 1, 1, 1})
	f.Add(append([]byte{10, 1, 2, 3, 4}, make([]byte, 28)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBench(peerA, peerB, peerC)
		ids := []wire.CellID{peerA, peerB, peerC, selfID, 999}
		for len(data) >= 4 {
			kind, who, size, wait := data[0], ids[int(data[1])%len(ids)], int(data[2])%48, data[3]
			data = data[4:]
			payload := data[:min(size, len(data))]
			data = data[len(payload):]
			b.now = b.now.Add(time.Duration(wait) * 10 * time.Millisecond)
			nonce := uint32(wait)
			if len(b.sent) > 0 && kind%2 == 0 {
				nonce = b.sent[int(wait)%len(b.sent)].nonce
			}
			switch {
			case kind < 16:
				b.receive(who, wire.Type(kind), nonce, payload)
			case kind < 32:
				life := state.Life(kind%5) + 1
				status := state.CellStatus{Life: life, Incarnation: uint32(size), Claimants: ids[:wait%4]}
				b.StatusChanged(b.now, who, status)
			case kind < 40:
				b.Heard(b.now, who)
			case kind < 44:
				b.ProbeNow(b.now, who)
			case kind < 46:
				b.members.Remove(who)
				b.Forget(who)
			case kind < 48:
				if m := b.members.Upsert(who); m != nil {
					m.Address = addressOf(who)
				}
			default:
				b.Tick(b.now)
			}
			b.Deadline()
			if len(b.active) > 8 || len(b.relays) > relaysMax || b.rounds > len(b.active) {
				t.Fatalf("active %d, relays %d, rounds %d", len(b.active), len(b.relays), b.rounds)
			}
		}
	})
}
