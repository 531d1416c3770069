package reactor

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAncillary holds what the kernel says beside a datagram: the address it came to is one of the family, and what is
// written for the way back reads as it was.
func FuzzAncillary(f *testing.F) {
	var control [sendControlSize]byte
	f.Add(control[:putControl(control[:], unix.AF_INET6, netip.IPv6Loopback())])
	f.Add(control[:putControl(control[:], unix.AF_INET, netip.MustParseAddr("127.0.0.1"))])
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, control []byte) {
		found := parseControl(control)
		again := parseControl(append([]byte{}, control...))
		if found != again {
			t.Fatalf("%+v and %+v", found, again)
		}
		if len(control) < unix.CmsgLen(0) && found != (ancillary{}) {
			t.Fatalf("%+v of %d bytes", found, len(control))
		}
	})
}
