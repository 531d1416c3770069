package reactor

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzParseControl holds what the kernel says beside a datagram. It writes these bytes, but a parser that
// cannot run away needs no trust: what stands in front of a message changes nothing of it, and an address
// that was found can be written.
func FuzzParseControl(f *testing.F) {
	var control [sendControlSize]byte
	f.Add(control[:putControl(control[:], unix.AF_INET6, netip.IPv6Loopback())])
	f.Add(control[:putControl(control[:], unix.AF_INET, netip.MustParseAddr("127.0.0.1"))])
	f.Add([]byte{})
	f.Add(make([]byte, receiveControlSize))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, control []byte) {
		found := parseControl(control)
		if len(control) < unix.CmsgLen(0) && found != (ancillary{}) {
			t.Fatalf("%+v of %d bytes", found, len(control))
		}
		foreign := make([]byte, unix.CmsgSpace(4))
		putControlHeader(foreign, 4, unix.SOL_SOCKET, unix.SO_TIMESTAMP)
		if again := parseControl(append(foreign, control...)); again != found {
			t.Fatalf("%+v, behind another message %+v", found, again)
		}
		if !found.local.IsValid() {
			return
		}
		family := unix.AF_INET6
		if found.local.Is4() {
			family = unix.AF_INET
		}
		var room [sendControlSize]byte
		if again := parseControl(room[:putControl(room[:], family, found.local)]); again.local != found.local {
			t.Fatalf("%v is written as %v", found.local, again.local)
		}
	})
}
