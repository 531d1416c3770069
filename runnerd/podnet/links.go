package podnet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interfaceInside is the name of a container's interface.
const interfaceInside = "eth0"

// portName is the host's end of a container's veth pair.
func portName(bridge, name string) string {
	hash := sha256.Sum256([]byte(bridge + " " + name))
	return "col" + hex.EncodeToString(hash[:6])
}

// macOf makes a hardware address of an IPv4 address: locally administered, and the same after a restart.
func macOf(a netip.Addr) net.HardwareAddr {
	four := a.As4()
	return net.HardwareAddr{0x02, 0xc0, four[0], four[1], four[2], four[3]}
}

// linkLocal is the address that the kernel makes of a hardware address (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

// markOf is the hardware address of the bridge of a state directory. The bridge is known by it: a name or
// an alias of its own could only be given after it was made.
func markOf(directory string) net.HardwareAddr {
	hash := fnv.New32a()
	hash.Write([]byte(directory))
	return net.HardwareAddr(hash.Sum([]byte{0x02, 0xc1}))
}

func (n *Network) isOurs(bridge netlink.Link) bool {
	return bridge.Type() == "bridge" && bytes.Equal(bridge.Attrs().HardwareAddr, markOf(n.options.Directory))
}

// ensureBridge makes the bridge, or finds it, and puts it right.
func (n *Network) ensureBridge() (netlink.Link, error) {
	bridge, err := netlink.LinkByName(n.pool.bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		bridge, err = n.makeBridge()
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", n.pool.bridge, err)
	}
	if !n.isOurs(bridge) {
		return nil, &Refusal{fmt.Sprintf("interface %s exists already and is not this cell's: give containers another one "+
			"with pod_bridge NAME", n.pool.bridge)}
	}
	for _, prefix := range n.prefixes() {
		address := &netlink.Addr{IPNet: network(prefix, 1), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(bridge, address); err != nil {
			return nil, fmt.Errorf("give bridge %s the address %s: %w", n.pool.bridge, address.IPNet, err)
		}
	}
	if err := set(ofBridge(n.pool.bridge)); err != nil {
		return nil, err
	}
	if mtu := uplinkMTU(); bridge.Attrs().MTU != mtu {
		_ = netlink.LinkSetMTU(bridge, mtu) // each port has the right one
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bring bridge %s up: %w", n.pool.bridge, err)
	}
	return bridge, nil
}

func (n *Network) makeBridge() (netlink.Link, error) {
	no := false // without snooping neighbour discovery needs no querier
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = n.pool.bridge, uplinkMTU()
	// A bridge without an address of its own takes that of a port, and changes it when the port goes.
	attributes.HardwareAddr = markOf(n.options.Directory)
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &no}); err != nil {
		return nil, fmt.Errorf("make it: %w", err)
	}
	return netlink.LinkByName(n.pool.bridge)
}

// network gives the address with a number as netlink wants it, with the length of the range.
func network(p netip.Prefix, number int) *net.IPNet {
	a := addressOf(p, number)
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(p.Bits(), a.BitLen())}
}

// uplinkMTU is the size of packets on the way out: what leaves must fit there without fragments.
func uplinkMTU() int {
	const ethernet = 1500
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, route := range routes {
			if !isDefault(route) {
				continue
			}
			if link, err := netlink.LinkByIndex(route.LinkIndex); err == nil && link.Attrs().MTU >= 1280 {
				return min(link.Attrs().MTU, 65535)
			}
		}
	}
	return ethernet
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// inUse names a route of the host that a range would take something from, "" if there is none.
func (n *Network) inUse(p netip.Prefix, bridge string) string {
	family, own := netlink.FAMILY_V4, -1
	if p.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	if link, err := netlink.LinkByName(bridge); err == nil {
		own = link.Attrs().Index
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return ""
	}
	for _, route := range routes {
		if isDefault(route) || route.LinkIndex == own {
			continue
		}
		a, _ := netip.AddrFromSlice(route.Dst.IP)
		ones, _ := route.Dst.Mask.Size()
		if other := netip.PrefixFrom(a.Unmap(), ones); other.Overlaps(p) {
			return other.String()
		}
	}
	return ""
}

// namespacePath is where the network namespace of a container is pinned.
func (n *Network) namespacePath(name string) string {
	return filepath.Join(n.options.Directory, directoryNamespaces, name)
}

const directoryNamespaces = "netns"

// inNamespace runs something on a thread that is in another network namespace: a new one if path is "".
func inNamespace(path string, call func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if path == "" {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				result <- fmt.Errorf("make a network namespace: %w", err)
				return
			}
			result <- call()
			return
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		result <- call()
	}()
	return <-result
}

// makeNamespace makes the namespace of a container and pins it at its path.
func (n *Network) makeNamespace(name string) error {
	path := n.namespacePath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", filepath.Dir(path), err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	file.Close()
	return inNamespace("", func() error {
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin a network namespace at %s: %w", path, err)
		}
		return set(ofContainer())
	})
}

// removeNamespace unpins the namespace of a container. What runs in it keeps it alive.
func (n *Network) removeNamespace(name string) error {
	path := n.namespacePath(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unpin network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// plug connects a container's namespace to the bridge.
func (n *Network) plug(bridge netlink.Link, name string, l lease) error {
	path := n.namespacePath(name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = portName(n.pool.bridge, name), bridge.Attrs().MTU
	// One message makes the pair, moves one end and connects the other: nothing in between can be left.
	attributes.MasterIndex = bridge.Attrs().Index
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attributes, PeerName: interfaceInside, PeerNamespace: netlink.NsFd(fd),
		PeerHardwareAddr: macOf(addressOf(n.pool.ipv4, l.number)), PeerMTU: uint32(attributes.MTU),
	})
	if err != nil {
		return fmt.Errorf("make the interface %s of a container: %w", attributes.Name, err)
	}
	port, err := netlink.LinkByName(attributes.Name)
	if err != nil {
		return err
	}
	// The host itself has no use for the port, and no address to defend on it.
	_ = set([]sysctl{{"ipv6/conf/" + attributes.Name + "/disable_ipv6", "1"}})
	// Where br_netfilter is at work, a container's connection to a port that it publishes itself is
	// translated within the bridge, and has to leave by the port that it came from.
	if err := netlink.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("let %s send back: %w", attributes.Name, err)
	}
	if err := netlink.LinkSetUp(port); err != nil {
		return fmt.Errorf("bring %s up: %w", attributes.Name, err)
	}
	return inNamespace(path, func() error { return n.configure(l) })
}

// carrierPatience is longer than the kernel takes to notice that an interface has a carrier: nothing as a
// rule, and up to a second when it noticed another one just before. Until then the interface drops what it
// is to send, and a container's first packets are lost.
const carrierPatience = 1200 * time.Millisecond

func awaitCarriers(bridge, port, namespace string, deadline time.Time) {
	await := func(name string) {
		for ; time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return
			}
			if link.Attrs().OperState == netlink.OperUp {
				// The kernel shows the state a moment before the interface sends, and a bridge's port a moment
				// before it forwards, all under one lock. This takes it, so it returns when that is done.
				_ = netlink.LinkSetUp(link)
				return
			}
		}
	}
	_ = inNamespace(namespace, func() error { await(interfaceInside); return nil })
	await(port)
	await(bridge) // with its first port it gets a carrier itself
}

// awaitAddresses waits until the kernel takes packets to the IPv6 addresses of a container and of its bridge. It shows an
// address at once, but a worker of its own enters the route to it a little later, on a busy machine many milliseconds. What
// arrives until then, as the first answer of a neighbour, is dropped, and the first connection takes a second longer.
func awaitAddresses(l Lease, gateway netip.Addr, deadline time.Time) {
	await := func(address netip.Addr) {
		for ; time.Now().Before(deadline) && !isLocal(address); time.Sleep(time.Millisecond) {
		}
	}
	_ = inNamespace(l.Namespace, func() error { await(l.IPv6); return nil })
	await(gateway)
}

// isLocal reports whether packets to an address end in this network namespace.
func isLocal(address netip.Addr) bool {
	routes, err := netlink.RouteGet(address.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// configure gives a container its addresses and routes, from within.
func (n *Network) configure(l lease) error {
	loopback, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(loopback)
	}
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	inside, err := netlink.LinkByName(interfaceInside)
	if err != nil {
		return err
	}
	for _, prefix := range n.prefixes() {
		address := &netlink.Addr{IPNet: network(prefix, l.number), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(inside, address); err != nil {
			return fmt.Errorf("give a container the address %s: %w", address.IPNet, err)
		}
	}
	if err := netlink.LinkSetUp(inside); err != nil {
		return fmt.Errorf("bring %s of a container up: %w", interfaceInside, err)
	}
	for _, prefix := range n.prefixes() {
		everything := net.IPNet{IP: make(net.IP, prefix.Addr().BitLen()/8), Mask: net.CIDRMask(0, prefix.Addr().BitLen())}
		route := &netlink.Route{
			LinkIndex: inside.Attrs().Index, Gw: addressOf(prefix, 1).AsSlice(), Dst: &everything,
		}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("give a container the default route by %s: %w", route.Gw, err)
		}
	}
	return nil
}

// unplug removes the pair of a container.
func unplug(bridge, name string) error { return removeLink(portName(bridge, name)) }

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if errors.Is(err, unix.ENODEV) { // it went with its namespace meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// strayPorts are ports of the bridge that no lease knows.
func (n *Network) strayPorts() []string {
	bridge, err := netlink.LinkByName(n.pool.bridge)
	if err != nil || !n.isOurs(bridge) {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for name := range n.pool.leases {
		known[portName(n.pool.bridge, name)] = true
	}
	var list []string
	for _, link := range links {
		if a := link.Attrs(); a.MasterIndex == bridge.Attrs().Index && !known[a.Name] && link.Type() == "veth" {
			list = append(list, a.Name)
		}
	}
	return list
}
