package cell

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// nowhere is a network and a disk that take everything and do nothing.
type nowhere struct{}

func (nowhere) Send(netip.AddrPort, []byte)      {}
func (nowhere) AppendWrite(uint64, []byte)       {}
func (nowhere) SaveSnapshot(uint64, []byte)      {}
func (nowhere) SavePeers(uint64, []wire.Contact) {}
func (nowhere) SaveCluster(uint64, Cluster)      {}
func (nowhere) SaveJoining(uint64, []byte)       {}
func (nowhere) SaveRecovered(uint64)             {}
func (nowhere) SaveIncarnation(uint64, uint32)   {}
func (nowhere) DiscardIdentity(uint64)           {}

func lonely(t testing.TB) *Cell {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	c := New(Config{
		Self: 7, Incarnation: 1, SecretHash: 9, Random: random, Network: nowhere{}, Storage: nowhere{},
		Entropy: func(p []byte) {
			for i := range p {
				p[i] = byte(random.Uint32())
			}
		},
	})
	c.Start(clock.Instant(time.Hour))
	return c
}

// H: a cell counts if it has a contact, is alive, suspect or leaving, and neither degraded, ephemeral nor
// on hold; a leaving or cordoned one keeps what it runs and gets nothing new (F68).
func TestF68_WhoIsInH(t *testing.T) {
	c := lonely(t)
	base := func() *cellView {
		return &cellView{
			id: 8, hasContact: true, hasStatus: true, hasCapacity: true,
			status: state.CellStatus{Life: state.Alive, Incarnation: 1},
		}
	}
	cases := []struct {
		name   string
		change func(v *cellView)
		want   health
	}{
		{"alive", func(*cellView) {}, healthFull},
		{"suspect counts as what it hides", func(v *cellView) { v.status.Life = state.Suspect }, healthFull},
		{"leaving", func(v *cellView) { v.status.Life = state.Leaving }, healthKeep},
		{"dead", func(v *cellView) { v.status.Life = state.Dead }, healthOut},
		{"gone", func(v *cellView) { v.status.Life = state.Gone }, healthOut},
		{"without status", func(v *cellView) { v.hasStatus = false }, healthOut},
		{"without contact", func(v *cellView) { v.hasContact = false }, healthOut},
		{"degraded", func(v *cellView) { v.contact.Flags = state.FlagDegraded }, healthOut},
		{"ephemeral", func(v *cellView) { v.contact.Flags = state.FlagEphemeral }, healthOut},
		{"cordoned", func(v *cellView) { v.capacity.Cordoned = true }, healthKeep},
		{"on hold", func(v *cellView) { v.heldUntil = c.now + 1 }, healthHeld},
		{"after the hold", func(v *cellView) { v.heldUntil = c.now }, healthFull},
	}
	for _, test := range cases {
		view := base()
		test.change(view)
		if got := c.healthOf(view); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
	self := base()
	self.id, self.status.Life = 7, state.Dead
	if c.healthOf(self) != healthFull {
		t.Error("a cell must count on itself whatever others wrote of it")
	}
	c.phase = Leaving
	if c.healthOf(self) != healthKeep {
		t.Error("a leaving cell takes nothing new")
	}
}

// A cell that was out of H for longer than a refuted accusation is held back 10 s, longer each time it
// does so again, and forgiven after ten quiet minutes (F64).
func TestF64_ReadmissionHoldDoubles(t *testing.T) {
	c := lonely(t)
	view := &cellView{id: 8, hasContact: true, hasStatus: true}
	c.views.cells[8], c.views.ids = view, append(c.views.ids, 8)
	absence := func(length time.Duration) time.Duration {
		view.status.Life = state.Dead
		c.trackHolds()
		c.now = c.now.Add(length)
		view.status.Life = state.Alive
		c.trackHolds()
		if view.heldUntil <= c.now {
			return 0
		}
		hold := view.heldUntil.Sub(c.now)
		c.now = view.heldUntil
		if next := c.trackHolds(); next != clock.Never || view.heldUntil != 0 {
			t.Fatalf("the hold does not end: %v", next)
		}
		return hold
	}
	if hold := absence(time.Second); hold != 0 {
		t.Errorf("a second's absence costs %v", hold)
	}
	want := []time.Duration{10, 20, 40, 80, 160, 300, 300}
	for i, seconds := range want {
		if hold := absence(time.Minute); hold != seconds*time.Second {
			t.Errorf("absence %d: hold %v, want %v", i+1, hold, seconds*time.Second)
		}
	}
	c.now = c.now.Add(flapMemory + time.Second)
	if hold := absence(time.Minute); hold != 10*time.Second {
		t.Errorf("after ten quiet minutes: hold %v", hold)
	}
}
