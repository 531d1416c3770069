package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/wire"
)

// A member may tell a cell in PINGs, and in PONGs that nobody asked for, that it was seen at any address: what it
// knows of its own address and class stays the same (F23).
func TestF23_ForgedPingsChangeNoClass(t *testing.T) {
	for kind, want := range map[NATKind]wire.Reach{Public: wire.ReachPublic, PortRestricted: wire.ReachPunched} {
		w := formBehind(t, 1, []NATKind{Public, Public, Public, kind}, NetworkOptions{})
		run(t, w, time.Minute)
		victim := w.Node(3)
		before := victim.cell.Finding()
		if before.Reach != want {
			t.Fatalf("%v: %v before, want %v", kind, before.Reach, want)
		}
		random := rand.New(rand.NewPCG(23, 23))
		// A member whom the router, if there is one, lets in. It has stopped, so that its counters are free.
		liar := w.Node(1)
		liar.Pause()
		forged := seal.NewSealer(liar.disk.cluster.Key, liar.ID(), 200)
		unsealed := metricOf(t, victim, "colloid_datagrams_unsealed_total")
		for nonce := range uint32(600) {
			lie := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(random.Uint32()), byte(random.Uint32())}), 4444)
			header := wire.Header{Type: wire.TypePing, Sender: liar.ID(), Nonce: nonce, PayloadLength: wire.PingSize}
			if nonce%2 == 1 {
				header.Type = wire.TypePong
			}
			datagram := wire.AppendPing(wire.AppendHeader(make([]byte, 0, wire.DatagramMax), header), lie)
			w.network.schedule(liar.Index, liar.Address, victim, forged.Seal(datagram))
			run(t, w, 50*time.Millisecond)
		}
		if now := metricOf(t, victim, "colloid_datagrams_unsealed_total"); now != unsealed {
			t.Fatalf("%v of the forged datagrams were not even opened", now-unsealed)
		}
		if after := victim.cell.Finding(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%v: %+v became %+v", kind, before, after)
		}
	}
}

// metricOf is one of the figures that a cell gives.
func metricOf(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	var status uds.Status
	n.Command(cell.Request{Code: uds.CodeStatus, Payload: []byte{1}}, func(r cell.Response) {
		if err := json.Unmarshal(r.Payload, &status); err != nil {
			t.Fatal(err)
		}
	})
	for _, m := range status.Metrics {
		if m.Name == name {
			return m.Value
		}
	}
	t.Fatalf("no metric %s in %+v", name, status.Metrics)
	return 0
}
