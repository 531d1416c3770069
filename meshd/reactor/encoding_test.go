package reactor

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func address4Or6(t *rapid.T) netip.Addr {
	if rapid.Bool().Draw(t, "v6") {
		raw := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "raw"))
		return netip.AddrFrom16(raw).Unmap()
	}
	return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "raw")))
}

func TestNamesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		to := netip.AddrPortFrom(address4Or6(t), rapid.Uint16Range(1, 65535).Draw(t, "port"))
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			var name [nameSize]byte
			n := putName(name[:], family, to)
			if n == 0 {
				if family == unix.AF_INET6 || to.Addr().Is4() {
					t.Fatalf("family %d refuses %v", family, to)
				}
				continue
			}
			if back, ok := parseName(name[:n]); !ok || back != to {
				t.Fatalf("%v became %v", to, back)
			}
		}
	})
}

func TestControlRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		local := address4Or6(t)
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			var control [sendControlSize + 24]byte
			n := putControl(control[:], family, local)
			if n == 0 {
				continue
			}
			putControlHeader(control[n:], 4, unix.SOL_SOCKET, unix.SO_RXQ_OVFL)
			binary.NativeEndian.PutUint32(control[n+controlHeader:], 77)
			want := local
			if family == unix.AF_INET {
				// The kernel fills in the header's address; what is sent is the local one.
				copy(control[controlHeader+8:], control[controlHeader+4:controlHeader+8])
			}
			found := parseControl(control[:n+24])
			if found.local != want || found.drops != 77 || !found.hasDrops {
				t.Fatalf("%v became %+v", local, found)
			}
		}
	})
}

func TestLinkLocalKeepsItsZone(t *testing.T) {
	var name [nameSize]byte
	to := netip.MustParseAddrPort("[fe80::1%3]:12421")
	if back, ok := parseName(name[:putName(name[:], unix.AF_INET6, to)]); !ok || back != to {
		t.Errorf("%v became %v", to, back)
	}
	if scopeOf(netip.MustParseAddr("fe80::1%no-such-interface")) != 0 {
		t.Error("an unknown interface has a scope")
	}
	if scopeOf(netip.MustParseAddr("::1%lo")) == 0 {
		t.Error("lo has no scope")
	}
}

func FuzzParseName(f *testing.F) {
	var name [nameSize]byte
	f.Add(name[:putName(name[:], unix.AF_INET6, netip.MustParseAddrPort("[::1]:5"))])
	f.Add(name[:putName(name[:], unix.AF_INET, netip.MustParseAddrPort("127.0.0.1:5"))])
	f.Fuzz(func(t *testing.T, name []byte) {
		if from, ok := parseName(name); ok && (!from.Addr().IsValid() || from.Addr().Is4In6()) {
			t.Errorf("%x: %v", name, from)
		}
	})
}

// The table answers only for what it was told, whatever collides.
func TestRoutesAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		routes, err := newRouteTable()
		if err != nil {
			t.Fatal(err)
		}
		defer routes.free()
		truth := map[netip.AddrPort]netip.Addr{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(t, "host")}),
				rapid.Uint16Range(1, 50).Draw(t, "port"))
			local := netip.AddrFrom4([4]byte{10, 1, 0, rapid.Byte().Draw(t, "local")})
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				routes.remember(peer, local)
				truth[peer] = local
			case 1:
				routes.forget(peer)
				delete(truth, peer)
			case 2:
				if got, ok := routes.lookup(peer); ok && got != truth[peer] {
					t.Fatalf("%v: %v, want %v", peer, got, truth[peer])
				}
			}
		}
		for peer, local := range truth {
			routes.remember(peer, local)
			if got, ok := routes.lookup(peer); !ok || got != local {
				t.Fatalf("%v: %v, want %v", peer, got, local)
			}
		}
	})
}
