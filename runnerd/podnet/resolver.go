package podnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// resolver is the sockets on which meshd answers the names of workloads. runnerd opens them, because meshd
// may neither bind low ports nor be reached by containers, and hands them over.
type resolver struct {
	sockets    []socket
	ranges     []netip.Prefix
	generation uint64 // of the bridge: sockets of an earlier one hear nothing
}

type socket struct {
	ipv6, stream bool
	file         *os.File
}

const (
	resolverPort    = 53
	resolverBacklog = 32
)

// Resolver says for which ranges of containers names are to be answered, and a number that changes with the
// sockets. It is empty while there is no network, or port 53 of the bridge is somebody else's.
func (n *Network) Resolver() (ranges []netip.Prefix, generation uint64) {
	n.resolverMutex.Lock()
	defer n.resolverMutex.Unlock()
	return n.resolver.ranges, n.resolver.generation
}

// ResolverSocket gives a copy of one of the sockets.
func (n *Network) ResolverSocket(ipv6, stream bool) (*os.File, error) {
	n.resolverMutex.Lock()
	defer n.resolverMutex.Unlock()
	for _, s := range n.resolver.sockets {
		if s.ipv6 == ipv6 && s.stream == stream {
			fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			return os.NewFile(uintptr(fd), s.file.Name()), nil
		}
	}
	return nil, errors.New("there is no such socket of the resolver now")
}

// openResolver binds the sockets. Without them containers ask the host's resolvers themselves.
func (n *Network) openResolver() {
	n.setResolver(resolver{})
	bridge, err := netlink.LinkByName(n.pool.bridge)
	if err != nil {
		return
	}
	fresh := resolver{ranges: n.prefixes(), generation: uint64(bridge.Attrs().Index)}
	for _, prefix := range fresh.ranges {
		for _, stream := range []bool{false, true} {
			address := addressOf(prefix, 1)
			file, err := bindResolver(n.pool.bridge, address, stream)
			if err != nil {
				n.options.Log.Printf("no names for containers: %v", err)
				fresh.close()
				return
			}
			fresh.sockets = append(fresh.sockets, socket{address.Is6(), stream, file})
		}
	}
	n.setResolver(fresh)
}

// setResolver replaces the sockets and closes those before.
func (n *Network) setResolver(r resolver) {
	n.resolverMutex.Lock()
	defer n.resolverMutex.Unlock()
	n.resolver.close()
	n.resolver = r
}

func (r *resolver) close() {
	for _, s := range r.sockets {
		s.file.Close()
	}
}

// bindResolver binds one socket to an address and to the bridge: nothing that comes another way gets there.
func bindResolver(bridge string, address netip.Addr, stream bool) (*os.File, error) {
	family, kind := unix.AF_INET, unix.SOCK_DGRAM
	if address.Is6() {
		family = unix.AF_INET6
	}
	if stream {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	steps := []error{
		// meshd goes on with the sockets of a runnerd that has died until it gets new ones.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.BindToDevice(fd, bridge),
	}
	if address.Is6() {
		steps = append(steps, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
		steps = append(steps, unix.Bind(fd, &unix.SockaddrInet6{Port: resolverPort, Addr: address.As16()}))
	} else {
		steps = append(steps, unix.Bind(fd, &unix.SockaddrInet4{Port: resolverPort, Addr: address.As4()}))
	}
	if stream {
		steps = append(steps, unix.Listen(fd, resolverBacklog))
	}
	if err := errors.Join(steps...); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind %s on %s: %w", netip.AddrPortFrom(address, resolverPort), bridge, err)
	}
	return os.NewFile(uintptr(fd), "resolver"), nil
}

// resolvers are what containers find in /etc/resolv.conf.
func (n *Network) resolvers() []netip.Addr {
	if ranges, _ := n.Resolver(); len(ranges) > 0 {
		var list []netip.Addr
		for _, prefix := range ranges {
			list = append(list, addressOf(prefix, 1))
		}
		return list
	}
	return hostResolvers("/etc/resolv.conf")
}

// resolversMax is how many a resolver library looks at.
const resolversMax = 3

// hostResolvers reads those of the host that a container can reach.
func hostResolvers(path string) []netip.Addr {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	return parseResolvers(file)
}

func parseResolvers(file io.Reader) (list []netip.Addr) {
	for lines := bufio.NewScanner(file); lines.Scan() && len(list) < resolversMax; {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil && !a.IsLoopback() && a.Zone() == "" {
			list = append(list, a)
		}
	}
	return list
}

// portsFree finds out whether somebody on the host listens on a port that is to be published: its
// connections would go to the container.
func portsFree(list []workload.Port) error {
	for _, port := range list {
		for _, family := range []int{unix.AF_INET6, unix.AF_INET} {
			if err := tryPort(family, port); errors.Is(err, unix.EADDRINUSE) {
				return fmt.Errorf("port %d/%s is in use on this host by another program", port.Host,
					protocolName(port.Protocol))
			}
		}
	}
	return nil
}

func tryPort(family int, port workload.Port) error {
	kind := unix.SOCK_STREAM
	if port.Protocol == workload.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_STREAM { // connections that ended a moment ago are no listener
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if family == unix.AF_INET {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(port.Host)})
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	return unix.Bind(fd, &unix.SockaddrInet6{Port: int(port.Host)})
}
