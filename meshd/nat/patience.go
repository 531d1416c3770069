package nat

import (
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// classPatience is how long a cell may take to find out its class, from when it knows two members that can tell where
// they see it. It takes about 8 s, seldom 20.
const classPatience = 30 * time.Second

// searchClassPatience takes its place where the other one of the two uses another port for each destination: if the class
// that is not known turns out to be PUNCHED, they search, and an attempt before that would be in vain.
const searchClassPatience = time.Minute

// patienceFor is how long the class of one cell is waited for by another one of a known class.
func patienceFor(known wire.Reach) time.Duration {
	if known == wire.ReachRelayed {
		return searchClassPatience
	}
	return classPatience
}

// pending reports whether this cell is still finding out its class, and the other side is not one that anybody reaches.
func (t *Traversal) pending(now clock.Instant, m *overlay.Member) bool {
	// What a neighbour on the own network says tells nothing about the way to one beyond the router.
	unjudged := t.Class() == wire.ReachUnknown || t.scope().private() && globalOf(m.Candidates).IsValid() && t.privateOnly()
	return unjudged && m.Reach != wire.ReachPublic && (t.begun == 0 || now.Sub(t.begun) < patienceFor(m.Reach))
}

// tickPatience notes when this cell began to find out its class, and anew when it knows a second observer: the first
// alone cannot tell what the router does.
func (t *Traversal) tickPatience(now clock.Instant) {
	if t.begun == 0 {
		t.begun = now
	}
	if t.observers >= 2 || t.Class() != wire.ReachUnknown {
		return
	}
	t.observers = 0
	t.options.Members.Each(func(m *overlay.Member) bool {
		if m.InService() && m.Heard != 0 && !m.NeedsHelp() && m.Address.IsValid() &&
			scopeOf(m.Address.Addr()) == t.scope() {
			t.observers++
		}
		return t.observers < 2
	})
	if t.observers >= 2 {
		t.begun = now
	}
}

// seekEvery is how often another member is asked where it sees this cell while its class is not known, seekSlow after the time
// that finding it out may take.
const (
	seekEvery = 1500 * time.Millisecond
	seekSlow  = 30 * time.Second
)

// seekObserver asks one more member where it sees this cell, while it takes another observer to judge the router: in the
// first seconds a cell may have nobody to talk to but the one that it joined through. This does not wait for dial-backs, which
// may be settled long before anybody knows what the router does with ports.
func (t *Traversal) seekObserver(now clock.Instant, v *view) {
	if t.Class() != wire.ReachUnknown || v.at == 0 || v.agreed > 0 || v.differed >= votesDiffer ||
		!t.translated() && v.missed == 0 || t.begun == 0 || !t.seekDue.Reached(now) {
		return
	}
	t.seekDue = now.Add(seekEvery)
	if now.Sub(t.begun) >= classPatience {
		t.seekDue = now.Add(seekSlow)
	}
	var found [1]*overlay.Member
	for _, m := range t.options.Members.Random(t.options.Random, 1, found[:0], func(m *overlay.Member) bool {
		return !m.InService() || !m.Address.IsValid() || m.NeedsHelp() || !t.direct(now, m) || t.suspected(m.ID) ||
			m.Address.Addr() == v.observer || scopeOf(m.Address.Addr()) != t.scope()
	}) {
		t.ask(now, m.ID, m.Address)
	}
}
