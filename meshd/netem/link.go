package netem

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// queuePackets bounds what is under way in one direction: a second of 25 MB/s.
const queuePackets = 20_000

// Options of a Link.
type Options struct {
	RoundTrip      time.Duration
	LossPercent    float32 // in each direction
	BytesPerSecond uint64  // of each direction, 0 = as fast as the host
}

// Link joins two network namespaces.
type Link struct {
	spaces [3]netns.NsHandle // the two ends and the router
}

// Addresses of the ends.
var Addresses = [2]netip.Addr{netip.MustParseAddr("10.251.7.1"), netip.MustParseAddr("10.251.8.1")}

var routers = [2]netip.Addr{netip.MustParseAddr("10.251.7.254"), netip.MustParseAddr("10.251.8.254")}

const router = 2

// New makes a link. The error says what this host lacks.
func New(options Options) (*Link, error) {
	l := &Link{spaces: [3]netns.NsHandle{netns.None(), netns.None(), netns.None()}}
	err := apart(func() (err error) {
		for i := range l.spaces {
			if l.spaces[i], err = netns.New(); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
		}
		return nil
	})
	for i := range Addresses {
		if err == nil {
			err = l.join(i, options)
		}
	}
	if err == nil {
		err = l.Enter(router, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		})
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// join connects an end with the router.
func (l *Link) join(end int, options Options) error {
	name := fmt.Sprintf("end%d", end)
	err := l.Enter(router, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "link", PeerNamespace: netlink.NsFd(l.spaces[end])}
		pair.Name = name
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("make the device %s: %w", name, err)
		}
		device, err := prepare(name, routers[end])
		if err != nil {
			return err
		}
		return slow(device, options)
	})
	if err != nil {
		return err
	}
	return l.Enter(end, func() error {
		device, err := prepare("link", Addresses[end])
		if err != nil {
			return err
		}
		if err := netlink.LinkSetGSOMaxSegs(device, 1); err != nil {
			return fmt.Errorf("have single packets: %w", err)
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: routers[end].AsSlice()})
	})
}

// prepare gives a device its address.
func prepare(name string, address netip.Addr) (netlink.Link, error) {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	parsed, err := netlink.ParseAddr(address.String() + "/24")
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrAdd(device, parsed); err != nil {
		return nil, fmt.Errorf("give %s its address: %w", name, err)
	}
	return device, netlink.LinkSetUp(device)
}

// slow makes what leaves by a device late.
func slow(device netlink.Link, options Options) error {
	if options == (Options{}) {
		return nil
	}
	attributes := netlink.QdiscAttrs{
		LinkIndex: device.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0),
	}
	err := netlink.QdiscAdd(netlink.NewNetem(attributes, netlink.NetemQdiscAttrs{
		Latency: uint32(options.RoundTrip / 2 / time.Microsecond), Loss: options.LossPercent,
		Limit: queuePackets, Rate64: options.BytesPerSecond,
	}))
	if err != nil {
		return fmt.Errorf("set up netem (does this kernel have sch_netem?): %w", err)
	}
	return nil
}

// Enter calls a function on a thread that is at one of the ends, 0 or 1. Sockets that it opens stay there.
func (l *Link) Enter(end int, f func() error) error {
	return apart(func() error {
		if err := netns.Set(l.spaces[end]); err != nil {
			return err
		}
		return f()
	})
}

// apart calls a function on a thread that ends with it, so that nothing else runs in the namespace that it
// enters.
func apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Close gives the namespaces up. They go with the last socket in them.
func (l *Link) Close() error {
	var failures []error
	for i := range l.spaces {
		if l.spaces[i].IsOpen() {
			failures = append(failures, l.spaces[i].Close())
		}
	}
	return errors.Join(failures...)
}
