package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// Router is what stands between a cell and the others.
type Router string

// Kinds of routers. All are Linux with nftables; what they do is what RFC 4787 calls mapping and filtering.
const (
	NoRouter       Router = "public"          // a global address of its own
	FullCone       Router = "full-cone"       // DNAT of the cell's port for everybody
	RestrictedCone Router = "restricted"      // DNAT for addresses in a set, filled by what leaves
	PortRestricted Router = "port-restricted" // masquerade, which keeps the port; conntrack as the filter
	Symmetric      Router = "symmetric"       // masquerade fully-random: another port for each destination
	OneToOne       Router = "1:1"             // DNAT and SNAT of everything, as clouds do
	NoHairpin      Router = "no-hairpin"      // port-restricted, and all cells of this kind on one network behind it
	DoubleNAT      Router = "double"          // port-restricted behind port-restricted
	Blocked        Router = "blocked"         // only the first cell can be talked to
	Firewalled     Router = "firewall"        // a global address of its own, and conntrack as the filter in front of it
)

// Behind returns routers for Options: the last of the cells is behind one, the others are public.
func Behind(kind Router, cells int) []Router {
	routers := slices.Repeat([]Router{NoRouter}, cells)
	routers[cells-1] = kind
	return routers
}

const (
	outside = "wan0"
	inside  = "lan0"
)

var internet = netip.MustParsePrefix("203.0.113.0/24") // for documentation, hence nobody's (RFC 5737)

// routed is one namespace per cell, one or two per router, and one for the bridge that is the internet.
type routed struct {
	namespaces
	routers   []Router
	addresses []netip.Addr // of the cells' own interfaces
	wan       []netip.Addr // of the outermost router, or of the cell
	gateways  [][]string   // names of the router's namespaces, innermost first
	shared    int          // cell that has the router of the NoHairpin ones, -1 = none yet
	remapped  map[string]int
}

func newRouted(directory string, routers []Router) (*routed, error) {
	r := &routed{routers: routers, shared: -1, remapped: make(map[string]int)}
	return r, r.open(directory, r.build)
}

func (r *routed) address(i int) netip.Addr { return r.addresses[i] }

func (r *routed) build() error {
	hub, bridge, err := r.createSwitch(netip.PrefixFrom(r.operator(), 24))
	if err != nil {
		return err
	}
	defer hub.close()
	for i := range r.routers {
		if err := r.place(hub, bridge, i); err != nil {
			return fmt.Errorf("place cell %d behind a %s router: %w", i+1, r.routers[i], err)
		}
	}
	return nil
}

func host(network netip.Addr, number byte) netip.Addr {
	raw := network.As4()
	raw[3] = number
	return netip.AddrFrom4(raw)
}

// place makes the namespaces of one cell and of its router.
func (r *routed) place(hub *namespace, bridge netlink.Link, i int) error {
	cell, err := r.create(r.cellName(i))
	if err != nil {
		return err
	}
	defer cell.close()
	wan := host(internet.Addr(), byte(i+1))
	if r.routers[i] == NoRouter || r.routers[i] == Firewalled {
		r.addresses, r.wan, r.gateways = append(r.addresses, wan), append(r.wan, wan), append(r.gateways, nil)
		err := attach(hub, bridge, cell, cellLink, port(i), netip.PrefixFrom(wan, 24))
		if err == nil && r.routers[i] == Firewalled {
			err = r.do(i, raiseFirewall)
		}
		return err
	}
	lan := netip.MustParseAddr("192.168.0.0")
	if r.routers[i] == NoHairpin && r.shared >= 0 {
		router, err := openNamespace(r.gateways[r.shared][0])
		if err != nil {
			return err
		}
		defer router.close()
		r.addresses, r.wan = append(r.addresses, host(lan, byte(2+i))), append(r.wan, r.wan[r.shared])
		r.gateways = append(r.gateways, r.gateways[r.shared])
		return r.behind(router, cell, i, host(lan, byte(2+i)))
	}
	inner, err := r.create(r.path("router-" + strconv.Itoa(i+1)))
	if err != nil {
		return err
	}
	defer inner.close()
	chain, err := r.outwards(hub, bridge, inner, i, wan)
	if err != nil {
		return err
	}
	if err := openLAN(inner, host(lan, 1)); err != nil {
		return err
	}
	if r.routers[i] == NoHairpin {
		r.shared = i
	}
	address := host(lan, byte(2+i))
	r.addresses, r.wan, r.gateways = append(r.addresses, address), append(r.wan, wan), append(r.gateways, chain)
	if err := r.behind(inner, cell, i, address); err != nil {
		return err
	}
	for level, name := range chain {
		kind := r.routers[i]
		if kind == NoHairpin || kind == DoubleNAT {
			kind = PortRestricted
		}
		if err := r.translate(name, kind, wan, address, level); err != nil {
			return fmt.Errorf("rules of %s: %w", name, err)
		}
	}
	return nil
}

// outwards connects a router with the internet, by way of another one if there are two, and returns the names
// of both, innermost first.
func (r *routed) outwards(hub *namespace, bridge netlink.Link, inner *namespace, i int, wan netip.Addr) ([]string, error) {
	chain := []string{r.path("router-" + strconv.Itoa(i+1))}
	if r.routers[i] != DoubleNAT {
		return chain, attach(hub, bridge, inner, outside, port(i), netip.PrefixFrom(wan, 24))
	}
	name := r.path("outer-" + strconv.Itoa(i+1))
	outer, err := r.create(name)
	if err != nil {
		return nil, err
	}
	defer outer.close()
	chain = append(chain, name)
	middle := netip.MustParseAddr("192.168.1.0")
	if err := attach(hub, bridge, outer, outside, port(i), netip.PrefixFrom(wan, 24)); err != nil {
		return nil, err
	}
	if err := openLAN(outer, host(middle, 1)); err != nil {
		return nil, err
	}
	lan, err := outer.LinkByName(inside)
	if err != nil {
		return nil, err
	}
	if err := attach(outer, lan, inner, outside, port(i), netip.PrefixFrom(host(middle, 2), 24)); err != nil {
		return nil, err
	}
	return chain, defaultRoute(inner, host(middle, 1))
}

// behind plugs a cell into the network inside a router.
func (r *routed) behind(router, cell *namespace, i int, address netip.Addr) error {
	lan, err := router.LinkByName(inside)
	if err != nil {
		return err
	}
	if err := attach(router, lan, cell, cellLink, "c"+port(i), netip.PrefixFrom(address, 24)); err != nil {
		return err
	}
	return defaultRoute(cell, host(address, 1))
}

// openLAN makes the bridge inside a router.
func openLAN(router *namespace, address netip.Addr) error {
	lan := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: inside}}
	if err := router.LinkAdd(lan); err != nil {
		return err
	}
	return router.configure(lan, netip.PrefixFrom(address, 24))
}

func defaultRoute(n *namespace, gateway netip.Addr) error {
	return n.RouteAdd(&netlink.Route{Gw: gateway.AsSlice(),
		Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}})
}

// translate writes a router's rules, in the place of those it has.
func (r *routed) translate(name string, kind Router, wan, cell netip.Addr, level int) error {
	err := InNamespace(name, func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	})
	if err != nil {
		return err
	}
	ns, err := openNamespace(name)
	if err != nil {
		return err
	}
	defer ns.close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.handle)))
	if err != nil {
		return err
	}
	c.FlushRuleset()
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "router"})
	w := rules{Conn: c, table: table, cell: cell, first: r.addresses[0], remapped: r.remapped[name]}
	if err := w.write(kind); err != nil {
		return err
	}
	return c.Flush()
}

// rebind makes the routers of a cell forget all connections and use other ports from now on.
func (r *routed) rebind(i int) error {
	for level, name := range r.gateways[i] {
		r.remapped[name]++
		kind := r.routers[i]
		if kind == NoHairpin || kind == DoubleNAT {
			kind = PortRestricted
		}
		if err := r.translate(name, kind, r.wan[i], r.addresses[i], level); err != nil {
			return err
		}
		ns, err := openNamespace(name)
		if err != nil {
			return err
		}
		err = ns.ConntrackTableFlush(netlink.ConntrackTable)
		ns.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// setLink switches the way out of a cell's outermost router, or the cell's own where it has none.
func (r *routed) setLink(i int, up bool) error {
	if chain := r.gateways[i]; len(chain) > 0 {
		return switchLink(chain[len(chain)-1], outside, up)
	}
	return r.namespaces.setLink(i, up)
}

// operator is a place on the internet.
func (r *routed) operator() netip.Addr { return host(internet.Addr(), switchHost) }
