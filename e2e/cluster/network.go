package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNoLink means that cells without network namespaces have no link that could be cut.
var ErrNoLink = errors.New("cells on the loopback interface have no link to cut: run as root")

// network is where the cells of a cluster live.
type network interface {
	// address of cell number i, counted from 0.
	address(i int) netip.Addr
	// do runs f inside cell i.
	do(i int, f func() error) error
	// dial connects from the operator's place.
	dial(ctx context.Context, kind, address string) (net.Conn, error)
	// operator is the address of the operator's place.
	operator() netip.Addr
	// listen listens for TCP at the operator's place.
	listen(address string) (net.Listener, error)
	// setLink cuts or restores the link of cell i.
	setLink(i int, up bool) error
	// namespaceLink is what /proc/<pid>/ns/net of the cell's processes says, "" without namespaces.
	namespaceLink(i int) string
	// names of the namespaces: cells, then the switch.
	names() []string
	close() error
}

// loopback gives the cells addresses 127.0.0.1, 127.0.0.2, ... of the host.
type loopback struct{}

func (loopback) address(i int) netip.Addr       { return netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}) }
func (loopback) do(_ int, f func() error) error { return f() }
func (loopback) setLink(int, bool) error        { return ErrNoLink }
func (loopback) namespaceLink(int) string       { return "" }
func (loopback) names() []string                { return nil }
func (loopback) close() error                   { return nil }
func (loopback) operator() netip.Addr           { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
func (loopback) listen(address string) (net.Listener, error) {
	return net.Listen("tcp", address)
}
func (loopback) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, kind, address)
}

// freePort finds a UDP and TCP port that is free on the first cells of the loopback network,
// beginning with the wanted one.
func freePort(wanted, cells int) (int, error) {
	const tries = 200
	for port := wanted; port < wanted+tries; port++ {
		if portFree(port, cells) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port from %d to %d is free on 127.0.0.1 to 127.0.0.%d", wanted, wanted+tries-1, cells)
}

func portFree(port, cells int) bool {
	for i := range cells {
		address := net.JoinHostPort(loopback{}.address(i).String(), strconv.Itoa(port))
		datagrams, err := net.ListenPacket("udp", address)
		if err != nil {
			return false
		}
		datagrams.Close()
		stream, err := net.Listen("tcp", address)
		if err != nil {
			return false
		}
		stream.Close()
	}
	return true
}

// bridged is one namespace per cell and one for the bridge.
//
// The namespaces are named by files of the cluster's own directory. In /run/netns they would come under
// the rule of iproute2, which at its first use mounts that directory over itself and hides what is there.
type bridged struct {
	directory string // of the namespaces' files
	subnet    byte   // 10.77.<subnet>.0/24 or fd00:77:<subnet>::/64
	cells     int
	version6  bool
}

const (
	bridgeName   = "switch"
	cellLink     = "mesh0"
	switchHost   = 254
	bridgedCells = 200 // as many as the subnet has room for
)

// newBridged makes the namespaces, of IP version 6 alone or of version 4. On failure it removes what it made.
func newBridged(directory string, cells int, version6 bool) (*bridged, error) {
	if cells > bridgedCells {
		return nil, fmt.Errorf("%d cells asked, the bridge has room for %d", cells, bridgedCells)
	}
	b := &bridged{directory: directory, subnet: byte(os.Getpid()%250 + 1), cells: cells, version6: version6}
	if err := os.Mkdir(directory, 0o755); err != nil {
		return nil, err
	}
	if err := b.build(); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bridged) cellName(i int) string {
	return filepath.Join(b.directory, "cell-"+strconv.Itoa(i+1))
}

func (b *bridged) switchName() string { return filepath.Join(b.directory, "switch") }

func (b *bridged) names() []string {
	all := make([]string, 0, b.cells+1)
	for i := range b.cells {
		all = append(all, b.cellName(i))
	}
	return append(all, b.switchName())
}

func (b *bridged) address(i int) netip.Addr { return b.host(byte(i + 1)) }

func (b *bridged) host(number byte) netip.Addr {
	if b.version6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x77, 5: b.subnet, 15: number})
	}
	return netip.AddrFrom4([4]byte{10, 77, b.subnet, number})
}

func (b *bridged) prefix(host netip.Addr) netip.Prefix {
	if b.version6 {
		return netip.PrefixFrom(host, 64)
	}
	return netip.PrefixFrom(host, 24)
}

func (b *bridged) build() error {
	for _, name := range b.names() {
		if err := createNamespace(name); err != nil {
			return fmt.Errorf("create network namespace %s: %w", name, err)
		}
	}
	hub, err := openNamespace(b.switchName())
	if err != nil {
		return err
	}
	defer hub.close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := hub.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge: %w", err)
	}
	if err := hub.configure(bridge, b.prefix(b.host(switchHost))); err != nil {
		return err
	}
	for i := range b.cells {
		if err := b.plug(hub, bridge, i); err != nil {
			return fmt.Errorf("connect %s: %w", b.cellName(i), err)
		}
	}
	return nil
}

// plug connects cell i with the bridge.
func (b *bridged) plug(hub *namespace, bridge netlink.Link, i int) error {
	cell, err := openNamespace(b.cellName(i))
	if err != nil {
		return err
	}
	defer cell.close()
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: b.port(i)},
		PeerName:  cellLink, PeerNamespace: netlink.NsFd(int(cell.handle)),
	}
	if err := hub.LinkAdd(pair); err != nil {
		return err
	}
	if err := hub.LinkSetMaster(pair, bridge); err != nil {
		return err
	}
	if err := hub.LinkSetUp(pair); err != nil {
		return err
	}
	link, err := cell.LinkByName(cellLink)
	if err != nil {
		return err
	}
	return cell.configure(link, b.prefix(b.address(i)))
}

func (b *bridged) port(i int) string { return "port" + strconv.Itoa(i+1) }

func (b *bridged) setLink(i int, up bool) error {
	hub, err := openNamespace(b.switchName())
	if err != nil {
		return err
	}
	defer hub.close()
	link, err := hub.LinkByName(b.port(i))
	if err != nil {
		return err
	}
	if up {
		return hub.LinkSetUp(link)
	}
	return hub.LinkSetDown(link)
}

func (b *bridged) namespaceLink(i int) string {
	inode, err := namespaceInode(b.cellName(i))
	if err != nil {
		return ""
	}
	return "net:[" + strconv.FormatUint(inode, 10) + "]"
}

func (b *bridged) do(i int, f func() error) error { return InNamespace(b.cellName(i), f) }

func (b *bridged) dial(ctx context.Context, kind, address string) (connection net.Conn, err error) {
	// A socket keeps the namespace it was made in; only its making needs the thread.
	errDial := InNamespace(b.switchName(), func() error {
		connection, err = new(net.Dialer).DialContext(ctx, kind, address)
		return err
	})
	return connection, errDial
}

func (b *bridged) operator() netip.Addr { return b.host(switchHost) }

func (b *bridged) listen(address string) (listener net.Listener, err error) {
	errListen := InNamespace(b.switchName(), func() error {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, errListen
}

func (b *bridged) close() error {
	var problems []error
	for _, name := range b.names() {
		if err := deleteNamespace(name); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// namespace is a netlink handle inside a named network namespace.
type namespace struct {
	*netlink.Handle
	handle netns.NsHandle
}

func openNamespace(name string) (*namespace, error) {
	handle, err := netns.GetFromPath(name)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	requests, err := netlink.NewHandleAt(handle)
	if err != nil {
		return nil, errors.Join(err, handle.Close())
	}
	return &namespace{Handle: requests, handle: handle}, nil
}

func (n *namespace) close() {
	n.Close()
	n.handle.Close()
}

// configure gives a link its address and brings it and the loopback interface up.
func (n *namespace) configure(link netlink.Link, prefix netip.Prefix) error {
	address, err := netlink.ParseAddr(prefix.String())
	if err != nil {
		return err
	}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD // usable at once
	}
	if err := n.AddrAdd(link, address); err != nil {
		return err
	}
	if err := n.LinkSetUp(link); err != nil {
		return err
	}
	local, err := n.LinkByName("lo")
	if err != nil {
		return err
	}
	return n.LinkSetUp(local)
}

// InNamespace runs f on a thread of its own inside a network namespace; the thread ends with it. A socket stays
// where it was made.
func InNamespace(name string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		handle, err := netns.GetFromPath(name)
		if err != nil {
			result <- fmt.Errorf("network namespace %s: %w", name, err)
			return
		}
		defer handle.Close()
		if err := netns.Set(handle); err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", name, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// createNamespace makes a network namespace and binds it to a new file.
func createNamespace(path string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread is inside the new namespace afterwards and ends
		result <- bindNewNamespace(path)
	}()
	return <-result
}

func bindNewNamespace(path string) error {
	handle, err := netns.New()
	if err != nil {
		return err
	}
	defer handle.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	return unix.Mount(own, path, "bind", unix.MS_BIND, "")
}

// deleteNamespace removes a namespace's mount and file; one that does not exist is no error.
func deleteNamespace(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // no file, or no mount on it
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func namespaceInode(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}
