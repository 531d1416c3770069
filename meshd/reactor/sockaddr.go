package reactor

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// nameSize is the size of the larger of the two address structures (sockaddr_in6).
const nameSize = 28

const name4Size = 16

// putName writes the socket address for a socket of the given family and returns its size, 0 when the
// family cannot reach it. An IPv6 socket takes IPv4 addresses in their mapped form.
func putName(dst []byte, family int, to netip.AddrPort) int {
	address := to.Addr()
	switch {
	case !address.IsValid() || to.Port() == 0:
		return 0
	case family == unix.AF_INET6:
		binary.NativeEndian.PutUint16(dst, unix.AF_INET6)
		binary.BigEndian.PutUint16(dst[2:], to.Port())
		binary.NativeEndian.PutUint32(dst[4:], 0)
		raw := address.As16()
		copy(dst[8:24], raw[:])
		binary.NativeEndian.PutUint32(dst[24:], scopeOf(address))
		return nameSize
	case address.Is4() || address.Is4In6():
		binary.NativeEndian.PutUint16(dst, unix.AF_INET)
		binary.BigEndian.PutUint16(dst[2:], to.Port())
		raw := address.Unmap().As4()
		copy(dst[4:8], raw[:])
		clear(dst[8:name4Size])
		return name4Size
	}
	return 0
}

// parseName is the reverse of putName. IPv4 addresses come out unmapped.
func parseName(name []byte) (netip.AddrPort, bool) {
	if len(name) < name4Size {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(name[2:])
	switch binary.NativeEndian.Uint16(name) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port), true
	case unix.AF_INET6:
		if len(name) < nameSize {
			return netip.AddrPort{}, false
		}
		address := netip.AddrFrom16([16]byte(name[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(name[24:]); scope != 0 && address.IsLinkLocalUnicast() {
			address = address.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(address, port), true
	}
	return netip.AddrPort{}, false
}

// scopeOf turns a zone, a number or an interface's name, into the kernel's scope id; 0 if unknown.
func scopeOf(address netip.Addr) uint32 {
	zone := address.Zone()
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	return 0
}
