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

// namespaces are the network namespaces of a cluster: one for each cell, one with the bridge that connects
// them, and whatever more a kind of network wants.
//
// They are named by files of the cluster's own directory. In /run/netns they would come under the rule of
// iproute2, which at its first use mounts that directory over itself and hides what is there.
type namespaces struct {
	directory string
	all       []string
}

const (
	bridgeName = "switch"
	cellLink   = "mesh0"
	switchHost = 254 // of the operator's address, on the bridge
)

// open makes the directory, and fill makes what is in it. On failure what was made is removed.
func (n *namespaces) open(directory string, fill func() error) error {
	n.directory = directory
	if err := os.Mkdir(directory, 0o755); err != nil {
		return err
	}
	if err := fill(); err != nil {
		return errors.Join(err, n.close())
	}
	return nil
}

func (n *namespaces) path(name string) string { return filepath.Join(n.directory, name) }

func (n *namespaces) cellName(i int) string { return n.path("cell-" + strconv.Itoa(i+1)) }

func (n *namespaces) switchName() string { return n.path("switch") }

func (n *namespaces) names() []string { return n.all }

func (n *namespaces) create(name string) (*namespace, error) {
	if err := createNamespace(name); err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	n.all = append(n.all, name)
	return openNamespace(name)
}

// createSwitch makes the namespace with the bridge, where the operator has an address.
func (n *namespaces) createSwitch(operator netip.Prefix) (*namespace, netlink.Link, error) {
	hub, err := n.create(n.switchName())
	if err != nil {
		return nil, nil, err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := hub.LinkAdd(bridge); err != nil {
		hub.close()
		return nil, nil, fmt.Errorf("create bridge: %w", err)
	}
	if err := hub.configure(bridge, operator); err != nil {
		hub.close()
		return nil, nil, err
	}
	return hub, bridge, nil
}

// port is the name of a cell's, or its router's, end at the bridge.
func port(i int) string { return "port" + strconv.Itoa(i+1) }

// setLink switches the port of cell i at the bridge.
func (n *namespaces) setLink(i int, up bool) error { return switchLink(n.switchName(), port(i), up) }

// switchLink switches a link of a namespace on or off.
func switchLink(namespace, name string, up bool) error {
	n, err := openNamespace(namespace)
	if err != nil {
		return err
	}
	defer n.close()
	link, err := n.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return n.LinkSetUp(link)
	}
	return n.LinkSetDown(link)
}

func (n *namespaces) namespaceLink(i int) string {
	inode, err := namespaceInode(n.cellName(i))
	if err != nil {
		return ""
	}
	return "net:[" + strconv.FormatUint(inode, 10) + "]"
}

func (n *namespaces) do(i int, f func() error) error { return InNamespace(n.cellName(i), f) }

func (n *namespaces) dial(ctx context.Context, kind, address string) (connection net.Conn, err error) {
	// A socket keeps the namespace it was made in; only its making needs the thread.
	errDial := InNamespace(n.switchName(), func() error {
		connection, err = new(net.Dialer).DialContext(ctx, kind, address)
		return err
	})
	return connection, errDial
}

func (n *namespaces) listen(address string) (listener net.Listener, err error) {
	errListen := InNamespace(n.switchName(), func() error {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, errListen
}

func (n *namespaces) close() error {
	var problems []error
	for _, name := range n.all {
		problems = append(problems, deleteNamespace(name))
	}
	return errors.Join(problems...)
}

// attach connects a namespace with a bridge of another one.
func attach(hub *namespace, bridge netlink.Link, other *namespace, name, port string, prefix netip.Prefix) error {
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: name, PeerNamespace: netlink.NsFd(int(other.handle)),
	}
	if err := hub.LinkAdd(pair); err != nil {
		return err
	}
	if err := errors.Join(hub.LinkSetMaster(pair, bridge), hub.LinkSetUp(pair)); err != nil {
		return err
	}
	link, err := other.LinkByName(name)
	if err != nil {
		return err
	}
	return other.configure(link, prefix)
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
