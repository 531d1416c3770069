package nat

import (
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/overlay"
	"colloid.net/meshd/wire"
)

// A coordinator names both sides as it sees them, whatever the request says, and only for cells it is in
// touch with (F35, F37).
func TestF35_F37_CoordinatorNamesWhatItSees(t *testing.T) {
	b := newBench("198.51.100.1:12421")
	asker := b.member(1, "203.0.113.1:1000", wire.ReachPunched, self)
	target := b.member(2, "203.0.113.2:2000", wire.ReachPunched, self)
	request := wire.PunchReq{Target: wire.Contact{ID: 2, Address: at("10.9.9.9:22")}, Rendezvous: 77}
	payload := wire.AppendPunchReq(nil, request)
	b.Receive(b.now, asker, at("203.0.113.1:1001"), wire.Header{Type: wire.TypePunchReq}, payload)
	if sent := b.take(); len(sent) != 0 {
		t.Fatalf("coordinates for a target it has no open way to: %+v", sent)
	}
	b.Heard(b.now, target)
	b.Receive(b.now, asker, at("203.0.113.1:1001"), wire.Header{Type: wire.TypePunchReq}, payload)
	sent := b.take()
	if len(sent) != 1 {
		t.Fatalf("sent %+v", sent)
	}
	toTarget, err := wire.ParsePunchReq(sent[0].payload, wire.Options{})
	if err != nil || sent[0].to != 2 || toTarget.Target.Address != at("203.0.113.1:1001") || toTarget.Rendezvous != 77 {
		t.Errorf("to the target: %+v, %v", toTarget, err)
	}
	accepted := wire.PunchReq{Target: wire.Contact{ID: 1, Address: at("10.9.9.9:22"), Flags: wire.PunchAccept}, Rendezvous: 77}
	b.Receive(b.now, target, at("203.0.113.2:2001"), wire.Header{Type: wire.TypePunchReq}, wire.AppendPunchReq(nil, accepted))
	if sent = b.take(); len(sent) != 1 {
		t.Fatalf("after the target took part: %+v", sent)
	}
	toAsker, err := wire.ParsePunchReq(sent[0].payload, wire.Options{})
	if err != nil || sent[0].to != 1 || toAsker.Target.Address != at("203.0.113.2:2001") || toAsker.Target.ID != 2 ||
		toAsker.Target.Flags != wire.PunchStart || toAsker.Rendezvous != 77 {
		t.Errorf("to the asker: %+v, %v", toAsker, err)
	}
	for range 100 {
		b.Receive(b.now, asker, at("203.0.113.1:1001"), wire.Header{Type: wire.TypePunchReq}, payload)
	}
	if sent := b.take(); len(sent) > overlay.RequestsPerSecond {
		t.Errorf("%d messages for one asker in a moment", len(sent))
	}
	b.now = b.now.Add(time.Minute)
	target.Heard = b.now // through a relay: that says nothing about its mapping
	b.Receive(b.now, asker, netip.AddrPort{}, wire.Header{Type: wire.TypePunchReq}, payload)
	b.Receive(b.now, asker, at("203.0.113.1:1001"), wire.Header{Type: wire.TypePunchReq}, payload)
	if sent := b.take(); len(sent) != 0 {
		t.Errorf("coordinates without a fresh exchange: %+v", sent)
	}
}
