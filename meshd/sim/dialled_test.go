package sim

import (
	"net/netip"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
)

// A name may stand for several addresses of which not all answer. What is remembered of the seed is the one it
// answered at (BOOT-2).
func TestBOOT2_TheAddressThatAnsweredIsRemembered(t *testing.T) {
	w := world(t, Options{Seed: 3, Cells: 2})
	seed, joiner := w.Node(0), w.Node(1)
	seed.Boot()
	joiner.Boot()
	run(t, w, time.Second)
	nobody := netip.MustParseAddrPort("10.9.9.9:12421")
	request := cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{nobody, seed.Address}}
	var reply *cell.Response
	joiner.Command(request, func(r cell.Response) { reply = &r })
	until(t, w, 5*time.Second, "the directory remembers the seed", func() bool { return len(joiner.disk.peers) > 0 })
	if address := joiner.disk.peers[0].Address; address != seed.Address {
		t.Errorf("the seed is remembered at %v, it answered at %v", address, seed.Address)
	}
	until(t, w, 20*time.Second, "the join ends", func() bool { return reply != nil })
	if reply.Status != uds.OK {
		t.Errorf("%+v", reply)
	}
}
