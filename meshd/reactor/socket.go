package reactor

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// socket is a bound UDP socket with the options of F29, F30 and F34.
type socket struct {
	fd       int
	family   int
	bound    netip.AddrPort
	wildcard bool
	buffer   int
}

// openSocket binds. [::] falls back to IPv4 where there is no IPv6 (F34).
func openSocket(bind netip.AddrPort, receiveBuffer int) (socket, error) {
	address := bind.Addr()
	if address.Is4() || address.Is4In6() {
		return bindSocket(unix.AF_INET, netip.AddrPortFrom(address.Unmap(), bind.Port()), receiveBuffer)
	}
	s, err := bindSocket(unix.AF_INET6, bind, receiveBuffer)
	if err == nil || address != netip.IPv6Unspecified() || !withoutIPv6(err) {
		return s, err
	}
	return bindSocket(unix.AF_INET, netip.AddrPortFrom(netip.IPv4Unspecified(), bind.Port()), receiveBuffer)
}

func withoutIPv6(err error) bool {
	e, ok := err.(*socketError)
	return ok && (e.err == unix.EAFNOSUPPORT || e.err == unix.EADDRNOTAVAIL)
}

// socketError names the call and the address that failed.
type socketError struct {
	call string
	bind netip.AddrPort
	err  error
}

func (e *socketError) Error() string {
	hint := ""
	switch e.err {
	case unix.EADDRINUSE:
		hint = ": another program has this port, choose another one or stop it"
	case unix.EADDRNOTAVAIL:
		hint = ": no interface of this host has this address"
	case unix.EACCES:
		hint = ": ports below 1024 need privileges"
	}
	return fmt.Sprintf("reactor: %s for udp %v: %v%s", e.call, e.bind, e.err, hint)
}

func (e *socketError) Unwrap() error { return e.err }

func bindSocket(family int, bind netip.AddrPort, receiveBuffer int) (socket, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return socket{}, &socketError{"socket", bind, err}
	}
	s := socket{fd: fd, family: family, wildcard: bind.Addr().IsUnspecified()}
	if err := s.configure(receiveBuffer); err != nil {
		unix.Close(fd)
		return socket{}, &socketError{"setsockopt", bind, err}
	}
	if err := s.bind(bind); err != nil {
		unix.Close(fd)
		return socket{}, &socketError{"bind", bind, err}
	}
	return s, nil
}

func (s *socket) configure(receiveBuffer int) error {
	s.growBuffer(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	s.growBuffer(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, defaultSendBuffer)
	granted, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return err
	}
	s.buffer = granted / 2 // the kernel doubles the number for its own bookkeeping
	options := []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1},
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_PKTINFO, 1},
	}
	if s.family == unix.AF_INET6 {
		v6only := 1
		if s.wildcard {
			v6only = 0
		}
		options = append(options, []struct{ level, name, value int }{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1},
			// Prefer stable to temporary addresses as source: peers remember ours.
			{unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, ipv6PreferPublic},
		}...)
	}
	for _, option := range options {
		if s.family == unix.AF_INET6 && option.level == unix.IPPROTO_IP && option.name == unix.IP_PKTINFO {
			continue // an IPv6 socket reports mapped addresses in its own packet info
		}
		if err := unix.SetsockoptInt(s.fd, option.level, option.name, option.value); err != nil {
			return fmt.Errorf("option %d of level %d: %w", option.name, option.level, err)
		}
	}
	return nil
}

// ipv6PreferPublic is IPV6_PREFER_SRC_PUBLIC of RFC 5014.
const ipv6PreferPublic = 0x2

// growBuffer asks beyond the administrator's limit first, which needs CAP_NET_ADMIN, then within it.
// Getting less than asked for is no error: drops are counted.
func (s *socket) growBuffer(force, plain, bytes int) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, bytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, bytes)
	}
}

func (s *socket) bind(to netip.AddrPort) error {
	var name unix.Sockaddr
	if s.family == unix.AF_INET6 {
		name = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16(), ZoneId: scopeOf(to.Addr())}
	} else {
		name = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if err := unix.Bind(s.fd, name); err != nil {
		return err
	}
	actual, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	port := to.Port()
	switch a := actual.(type) {
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	}
	s.bound = netip.AddrPortFrom(to.Addr(), port)
	return nil
}
