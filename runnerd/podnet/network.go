package podnet

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"colloid.net/runnerd/policy"
	"colloid.net/workload"
)

// Options of a Network.
type Options struct {
	Directory string // state directory of runnerd, absolute
	Log       *log.Logger
	// Changed is called, on any goroutine, when the network or its resolver came or went.
	Changed func()
}

// Request is what a container asks for.
type Request struct {
	Settings policy.Network
	Cell     uint64
	Ports    []workload.Port
}

// Lease is what it gets.
type Lease struct {
	Namespace  string     // path of its network namespace
	IPv4, IPv6 netip.Addr // IPv6 is invalid where the kernel has none
	Resolvers  []netip.Addr
}

// Refusal is an error that trying again does not mend.
type Refusal struct{ text string }

func (r *Refusal) Error() string { return r.text }

// Network is the network of the containers of one state directory.
type Network struct {
	options Options

	mutex sync.Mutex
	pool  *pool
	ipv6  bool            // the kernel has it
	open  []workload.Port // of the host, for containers
	made  map[chainName]int
	ready bool // bridge, rules and switches were put right since this runnerd started

	resolverMutex sync.Mutex // never held for long
	resolver      resolver
}

// Open reads what an earlier runnerd left. Call Retain next.
func Open(options Options) (*Network, error) {
	p, err := openPool(options.Directory)
	if err != nil {
		return nil, err
	}
	if options.Changed == nil {
		options.Changed = func() {}
	}
	return &Network{options: options, pool: p, ipv6: hasIPv6()}, nil
}

// Retain removes what belongs to none of the named containers, and puts the rest right: bridge, rules and
// the resolver's sockets as they should be.
func (n *Network) Retain(names []string) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	var failures []error
	for _, name := range n.pool.names() {
		if !known[name] {
			failures = append(failures, n.release(name))
		}
	}
	failures = append(failures, n.sweep(known))
	if len(n.pool.leases) > 0 {
		failures = append(failures, n.up())
	}
	return errors.Join(failures...)
}

// sweep removes pinned namespaces and ports that no lease knows.
func (n *Network) sweep(known map[string]bool) error {
	var failures []error
	entries, err := os.ReadDir(filepath.Join(n.options.Directory, directoryNamespaces))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		failures = append(failures, err)
	}
	for _, entry := range entries {
		if _, leased := n.pool.leases[entry.Name()]; !leased {
			failures = append(failures, n.removeNamespace(entry.Name()))
		}
	}
	if n.pool.bridge == "" {
		return errors.Join(failures...)
	}
	for _, port := range n.strayPorts() {
		failures = append(failures, removeLink(port))
	}
	if len(n.pool.leases) == 0 {
		failures = append(failures, n.down())
	}
	return errors.Join(failures...)
}

// Prepare makes the network of a container, or finds it as it was made before.
func (n *Network) Prepare(ctx context.Context, name string, request Request) (Lease, error) {
	lease, bridge, err := n.prepare(ctx, name, request)
	if err == nil {
		deadline := time.Now().Add(carrierPatience)
		awaitCarriers(bridge, portName(bridge, name), lease.Namespace, deadline)
		if lease.IPv6.IsValid() {
			n.mutex.Lock()
			gateway := addressOf(n.pool.ipv6, 1)
			n.mutex.Unlock()
			awaitAddresses(lease, gateway, deadline)
		}
	}
	return lease, err
}

func (n *Network) prepare(ctx context.Context, name string, request Request) (lease Lease, bridge string, err error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if err := ctx.Err(); err != nil {
		return lease, "", err
	}
	ports := published(request.Ports)
	if len(ports) > PortsMax {
		return lease, "", &Refusal{fmt.Sprintf("a container publishes %d ports, expected at most %d", len(ports), PortsMax)}
	}
	if err := n.choose(request); err != nil {
		return lease, "", err
	}
	if _, known := n.pool.leases[name]; !known {
		if err := portsFree(ports); err != nil {
			return lease, "", err
		}
	}
	l, err := n.pool.take(name, "", ports)
	if err != nil {
		return lease, "", errors.Join(err, n.downIfIdle())
	}
	if err := n.realize(name, l); err != nil {
		return lease, "", errors.Join(err, n.release(name))
	}
	lease = Lease{Namespace: n.namespacePath(name), IPv4: addressOf(n.pool.ipv4, l.number), Resolvers: n.resolvers()}
	if n.ipv6 {
		lease.IPv6 = addressOf(n.pool.ipv6, l.number)
	}
	return lease, n.pool.bridge, nil
}

// choose decides about bridge and ranges where there is no network yet. Later settings wait until the last
// container has gone: addresses that are in use do not change.
func (n *Network) choose(request Request) error {
	if n.pool.bridge != "" {
		return nil
	}
	bridge := request.Settings.Bridge
	if bridge == "" {
		bridge = DefaultBridge
	}
	ipv4, ipv6 := request.Settings.IPv4, request.Settings.IPv6
	for _, p := range []netip.Prefix{ipv4, ipv6} {
		if !p.IsValid() {
			continue
		}
		if other := n.inUse(p, bridge); other != "" {
			return &Refusal{fmt.Sprintf("pod_network %s overlaps the route %s of this host: name another range", p, other)}
		}
	}
	for try := 0; !ipv4.IsValid() || !ipv6.IsValid(); try++ {
		if try == deriveTries {
			return &Refusal{"no free range of addresses found for containers: name one with pod_network"}
		}
		four, six := derived(request.Cell, try)
		if !ipv4.IsValid() && n.inUse(four, bridge) == "" {
			ipv4 = four
		}
		if !ipv6.IsValid() && n.inUse(six, bridge) == "" {
			ipv6 = six
		}
	}
	n.pool.bridge, n.pool.ipv4, n.pool.ipv6, n.pool.next, n.ready = bridge, ipv4, ipv6, 2, false
	n.ipv6 = hasIPv6()
	return nil
}

// realize makes a lease exist in the kernel.
func (n *Network) realize(name string, l lease) error {
	wasReady := n.ready
	if err := n.up(); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(n.pool.bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", n.pool.bridge, err)
	}
	// What is left of an earlier start is made anew: it may be half.
	if err := errors.Join(unplug(n.pool.bridge, name), n.removeNamespace(name)); err != nil {
		return err
	}
	// The rules come first, so that not one packet goes by them. up has just made them otherwise.
	if wasReady {
		if err := n.applyRules(); err != nil {
			return err
		}
	}
	if err := n.makeNamespace(name); err != nil {
		return err
	}
	return n.plug(bridge, name, l)
}

// up puts right what all containers have in common.
func (n *Network) up() error {
	if n.ready {
		if _, err := netlink.LinkByName(n.pool.bridge); err == nil {
			return nil
		}
	}
	n.ready = false
	if _, err := n.ensureBridge(); err != nil {
		return err
	}
	if err := n.applyRules(); err != nil {
		return err
	}
	if err := set(forwarding()); err != nil {
		return err
	}
	n.openResolver()
	n.ready = true
	n.options.Changed()
	return nil
}

// Publish gives a network that Prepare has made without ports to a container, with its ports. It keeps the name
// that it was made under; owner is what messages call it.
func (n *Network) Publish(name, owner string, wanted []workload.Port) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	ports := published(wanted)
	if len(ports) > PortsMax {
		return &Refusal{fmt.Sprintf("a container publishes %d ports, expected at most %d", len(ports), PortsMax)}
	}
	if l, known := n.pool.leases[name]; !known || len(l.ports) > 0 {
		return fmt.Errorf("%s has no network without ports", name)
	}
	if err := portsFree(ports); err != nil {
		return err
	}
	if _, err := n.pool.take(name, owner, ports); err != nil {
		return err
	}
	if len(ports) == 0 || n.ready && publish(n.pool.bridge, n.pod(name)) == nil {
		return nil
	}
	return n.applyRules()
}

// Release takes the network of a container away; there need not be one.
func (n *Network) Release(name string) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.release(name)
}

func (n *Network) release(name string) error {
	if _, known := n.pool.leases[name]; !known {
		return nil
	}
	if err := errors.Join(unplug(n.pool.bridge, name), n.removeNamespace(name)); err != nil {
		return err
	}
	if err := n.pool.drop(name); err != nil {
		return err
	}
	if len(n.pool.leases) > 0 {
		if !n.ready {
			return nil // Retain goes on to up
		}
		return n.applyRules()
	}
	return n.down()
}

func (n *Network) downIfIdle() error {
	if n.pool.bridge == "" || len(n.pool.leases) > 0 {
		return nil
	}
	return n.down()
}

// down takes away what all containers had in common. A failure leaves the file as it is: the next runnerd,
// or the next container, tries again.
func (n *Network) down() error {
	n.setResolver(resolver{})
	n.ready = false
	if err := removeRules(n.pool.bridge); err != nil {
		return err
	}
	if bridge, err := netlink.LinkByName(n.pool.bridge); err == nil && n.isOurs(bridge) {
		if err := netlink.LinkDel(bridge); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove bridge %s: %w", n.pool.bridge, err)
		}
	}
	_ = os.Remove(filepath.Join(n.options.Directory, directoryNamespaces))
	before := *n.pool
	n.pool.bridge = ""
	if err := n.pool.save(); err != nil {
		n.pool.bridge = before.bridge
		return err
	}
	n.options.Changed()
	return nil
}

// Allow says which ports of the host itself containers may reach, in place of those before.
func (n *Network) Allow(ports []workload.Port) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.open = ports
	if !n.ready {
		return nil
	}
	return n.applyRules()
}

// Check puts the rules in force again that somebody else has taken away, and reports whether it had to. It is
// for calling every few seconds: containers without the rules reach the host, and nobody reaches them.
func (n *Network) Check() (repaired bool, err error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if !n.ready {
		return false, nil
	}
	lost, err := n.rulesLost()
	if err != nil || !lost {
		return false, err
	}
	return true, n.applyRules()
}

// Close lets go of the resolver's sockets. The network stays.
func (n *Network) Close() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.setResolver(resolver{})
}

// prefixes are the ranges that are in use.
func (n *Network) prefixes() []netip.Prefix {
	if n.ipv6 {
		return []netip.Prefix{n.pool.ipv4, n.pool.ipv6}
	}
	return []netip.Prefix{n.pool.ipv4}
}
