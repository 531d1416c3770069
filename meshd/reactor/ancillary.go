package reactor

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Control messages travel beside a datagram: the local address it was sent to or is to leave from
// (F34), and the number of datagrams the kernel has dropped on this socket so far (F29).
const (
	controlHeader = unix.SizeofCmsghdr
	packetInfo4   = 12 // interface index 4, local address 4, header address 4
	packetInfo6   = 20 // address 16, interface index 4
	// sendControlSize holds one packet info of either family and a segment size.
	sendControlSize = controlHeader + 24 + controlHeader + 8
	// receiveControlSize holds packet info, drop counter and segment size: 40, 24 and 24 bytes.
	receiveControlSize = 96
)

// The layout below is that of 64-bit kernels, the only ones supported.
const _ = uint(unix.SizeofCmsghdr-16) + uint(16-unix.SizeofCmsghdr)

// ancillary is what parseControl found.
type ancillary struct {
	local    netip.Addr
	drops    uint32
	hasDrops bool
	segment  int // size of the datagrams that came together, 0 = there is one
}

func parseControl(control []byte) (found ancillary) {
	for len(control) >= controlHeader {
		size := binary.NativeEndian.Uint64(control)
		if size < controlHeader || size > uint64(len(control)) {
			return found
		}
		level := int32(binary.NativeEndian.Uint32(control[8:]))
		kind := int32(binary.NativeEndian.Uint32(control[12:]))
		data := control[controlHeader:size]
		switch {
		case level == unix.SOL_SOCKET && kind == unix.SO_RXQ_OVFL && len(data) >= 4:
			found.drops, found.hasDrops = binary.NativeEndian.Uint32(data), true
		case level == unix.IPPROTO_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			found.segment = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= packetInfo4:
			found.local = netip.AddrFrom4([4]byte(data[4:8]))
		case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= packetInfo6:
			found.local = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		}
		control = control[min((size+7)&^7, uint64(len(control))):]
	}
	return found
}

// putControl writes the packet info that makes a datagram leave from local, and returns its size; 0
// when a socket of this family cannot use that address.
func putControl(dst []byte, family int, local netip.Addr) int {
	clear(dst[:sendControlSize])
	if family == unix.AF_INET6 {
		putControlHeader(dst, packetInfo6, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO)
		raw := local.As16()
		copy(dst[controlHeader:], raw[:])
		return unix.CmsgSpace(packetInfo6)
	}
	if !local.Is4() && !local.Is4In6() {
		return 0
	}
	putControlHeader(dst, packetInfo4, unix.IPPROTO_IP, unix.IP_PKTINFO)
	raw := local.Unmap().As4()
	copy(dst[controlHeader+4:], raw[:])
	return unix.CmsgSpace(packetInfo4)
}

// putSegment writes the size at which the kernel cuts a run into datagrams, and returns its own size.
func putSegment(dst []byte, size int) int {
	clear(dst[:controlHeader+8])
	putControlHeader(dst, 2, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(dst[controlHeader:], uint16(size))
	return controlHeader + 8
}

func putControlHeader(dst []byte, size, level, kind int) {
	binary.NativeEndian.PutUint64(dst, uint64(controlHeader+size))
	binary.NativeEndian.PutUint32(dst[8:], uint32(level))
	binary.NativeEndian.PutUint32(dst[12:], uint32(kind))
}
