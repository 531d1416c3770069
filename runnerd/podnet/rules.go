package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"colloid.net/workload"
)

// tableName is the table of both families; the one of the usual bridge is called colloid.
func tableName(bridge string) string {
	if bridge == DefaultBridge {
		return "colloid"
	}
	return "colloid-" + bridge
}

// rules builds the two tables. They are replaced as a whole in one transaction: packets see the old or
// the new rules, a killed runnerd leaves no half, and connections that are known keep their translation.
type rules struct {
	conn       *nftables.Conn
	bridge     string
	ipv4, ipv6 netip.Prefix
	withIPv6   bool
	pods       []pod
	open       []workload.Port
	inet, link *nftables.Table
	err        error
	made       map[chainName]int // rules of each chain
}

// chainName names a chain of the two tables.
type chainName struct {
	family nftables.TableFamily
	chain  string
}

// pod is a container as the rules see it.
type pod struct {
	port       string
	mac        net.HardwareAddr
	ipv4, ipv6 netip.Addr
	ports      []workload.Port
}

// elementsAtOnce bounds one message: its attributes are 64 KiB long at most.
const elementsAtOnce = 400

// applyRules puts the rules for all leases in force.
func (n *Network) applyRules() error {
	r := &rules{bridge: n.pool.bridge, ipv4: n.pool.ipv4, ipv6: n.pool.ipv6, withIPv6: n.ipv6, open: n.open}
	for _, name := range n.pool.names() {
		r.pods = append(r.pods, n.pod(name))
	}
	if err := r.apply(); err != nil {
		return err
	}
	n.made = r.made
	return nil
}

// rulesLost reports whether somebody has taken away rules that applyRules made, as "nft flush ruleset" does.
// What was added or changed in place is not looked for.
func (n *Network) rulesLost() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("talk to nf_tables: %w", err)
	}
	for name, count := range n.made {
		table := &nftables.Table{Name: tableName(n.pool.bridge), Family: name.family}
		rules, err := conn.GetRules(table, &nftables.Chain{Name: name.chain, Table: table})
		if errors.Is(err, unix.ENOENT) || err == nil && len(rules) < count {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read the rules of table %s: %w", table.Name, err)
		}
	}
	return false, nil
}

func (n *Network) pod(name string) pod {
	l := n.pool.leases[name]
	return pod{
		port: portName(n.pool.bridge, name), mac: macOf(addressOf(n.pool.ipv4, l.number)),
		ipv4: addressOf(n.pool.ipv4, l.number), ipv6: addressOf(n.pool.ipv6, l.number), ports: l.ports,
	}
}

func (r *rules) apply() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("talk to nf_tables: %w", err)
	}
	r.conn, r.made = conn, map[chainName]int{}
	r.inet = r.table(nftables.TableFamilyINet)
	r.link = r.table(nftables.TableFamilyBridge)
	r.sources()
	r.translation()
	r.filters()
	if r.err != nil {
		return r.err
	}
	if err := conn.Flush(); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENOENT) {
			return &Refusal{fmt.Sprintf("the kernel lacks parts of nf_tables that containers need (families inet and "+
				"bridge, nat, fib, reject): %v", err)}
		}
		return fmt.Errorf("put the rules of table %s in force: %w", tableName(r.bridge), err)
	}
	return nil
}

// table makes an empty table, whatever was there.
func (r *rules) table(family nftables.TableFamily) *nftables.Table {
	t := &nftables.Table{Name: tableName(r.bridge), Family: family}
	r.conn.AddTable(t)
	r.conn.DelTable(t)
	return r.conn.AddTable(t)
}

// removeRules takes both tables away; there need not be any.
func removeRules(bridge string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("talk to nf_tables: %w", err)
	}
	var failures []error
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		conn.DelTable(&nftables.Table{Name: tableName(bridge), Family: family})
		err := conn.Flush()
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EAFNOSUPPORT) &&
			!errors.Is(err, unix.EOPNOTSUPP) {
			failures = append(failures, fmt.Errorf("remove table %s: %w", tableName(bridge), err))
		}
	}
	return errors.Join(failures...)
}

func (r *rules) chain(t *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook,
	priority *nftables.ChainPriority) *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return r.conn.AddChain(&nftables.Chain{
		Table: t, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept,
	})
}

// rule adds one rule out of parts.
func (r *rules) rule(c *nftables.Chain, parts ...[]expr.Any) {
	var list []expr.Any
	for _, part := range parts {
		list = append(list, part...)
	}
	r.made[chainName{c.Table.Family, c.Name}]++
	r.conn.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: list})
}

// set adds a set or, with a data type, a map.
func (r *rules) set(t *nftables.Table, name string, elements []nftables.SetElement, data *nftables.SetDatatype,
	key ...nftables.SetDatatype) *nftables.Set {
	s := describeSet(t, name, data, key...)
	first := elements[:min(len(elements), elementsAtOnce)]
	if err := r.conn.AddSet(s, first); err != nil {
		r.err = errors.Join(r.err, err)
	}
	for rest := elements[len(first):]; len(rest) > 0; {
		part := rest[:min(len(rest), elementsAtOnce)]
		if err := r.conn.SetAddElements(s, part); err != nil {
			r.err = errors.Join(r.err, err)
		}
		rest = rest[len(part):]
	}
	return s
}

func describeSet(t *nftables.Table, name string, data *nftables.SetDatatype, key ...nftables.SetDatatype) *nftables.Set {
	s := &nftables.Set{Table: t, Name: name, KeyType: key[0]}
	if len(key) > 1 {
		s.KeyType, s.Concatenation = nftables.MustConcatSetType(key...), true
	}
	if data != nil {
		s.IsMap, s.DataType = true, *data
	}
	return s
}

// Names of the maps of published ports.
const published4, published6 = "published4", "published6"

// Types of their values.
var (
	publishedData4 = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	publishedData6 = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService)
)

// published are the elements of both maps for the ports of a container.
func (p *pod) published() (four, six []nftables.SetElement) {
	for _, port := range p.ports {
		key := join(padded([]byte{protocolNumber(port.Protocol)}), padded(portBytes(port.Host)))
		target := padded(portBytes(port.Container))
		four = append(four, nftables.SetElement{Key: key, Val: join(p.ipv4.AsSlice(), target)})
		six = append(six, nftables.SetElement{Key: key, Val: join(p.ipv6.AsSlice(), target)})
	}
	return four, six
}

// publish adds the ports of one container to rules that are in force and know it otherwise: a small part of the
// work of replacing all. Rules that somebody has taken away are an error.
func publish(bridge string, p pod) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("talk to nf_tables: %w", err)
	}
	table := &nftables.Table{Name: tableName(bridge), Family: nftables.TableFamilyINet}
	key := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	four, six := p.published()
	err = errors.Join(conn.SetAddElements(describeSet(table, published4, &publishedData4, key...), four),
		conn.SetAddElements(describeSet(table, published6, &publishedData6, key...), six))
	if err != nil {
		return err
	}
	return conn.Flush()
}

// sources is the table of family bridge: what a container sends must come from its own addresses, be IP or
// ARP, and be no advertisement of a router or of somebody else's address.
func (r *rules) sources() {
	var ports, macs, pods4, pods6, targets []nftables.SetElement
	for _, p := range r.pods {
		port := nameBytes(p.port)
		mac := padded(p.mac)
		ports = append(ports, nftables.SetElement{Key: port})
		macs = append(macs, nftables.SetElement{Key: join(port, mac)})
		pods4 = append(pods4, nftables.SetElement{Key: join(port, mac, p.ipv4.AsSlice())})
		if r.withIPv6 {
			for _, a := range []netip.Addr{p.ipv6, linkLocal(p.mac)} {
				pods6 = append(pods6, nftables.SetElement{Key: join(port, mac, a.AsSlice())})
				targets = append(targets, nftables.SetElement{Key: join(port, a.AsSlice())})
			}
		}
	}
	name, ether := nftables.TypeIFName, nftables.TypeEtherAddr
	portSet := r.set(r.link, "ports", ports, nil, name)
	macSet := r.set(r.link, "hardware", macs, nil, name, ether)
	ipv4Set := r.set(r.link, "sources4", pods4, nil, name, ether, nftables.TypeIPAddr)
	ipv6Set := r.set(r.link, "sources6", pods6, nil, name, ether, nftables.TypeIP6Addr)
	targetSet := r.set(r.link, "neighbours6", targets, nil, name, nftables.TypeIP6Addr)
	c := r.chain(r.link, "sources", nftables.ChainTypeFilter, nftables.ChainHookPrerouting,
		nftables.ChainPriorityRef(-300))
	r.rule(c, meta(expr.MetaKeyIIFNAME, 1), lookup(portSet, true), accept) // of no container
	r.rule(c, meta(expr.MetaKeyIIFNAME, 1), load(linkHeader, 12, 6, 6), lookup(macSet, true), drop)
	r.rule(c, etherType(unix.ETH_P_IP), meta(expr.MetaKeyIIFNAME, 1), load(linkHeader, 12, 6, 6),
		load(networkHeader, 14, 12, 4), lookup(ipv4Set, false), accept)
	// The sender of an ARP packet says twice who it is.
	r.rule(c, etherType(unix.ETH_P_ARP), meta(expr.MetaKeyIIFNAME, 1), load(networkHeader, 12, 8, 6),
		load(networkHeader, 14, 14, 4), lookup(ipv4Set, false), accept)
	icmp := join2(etherType(unix.ETH_P_IPV6), meta(expr.MetaKeyL4PROTO, 1), equal(1, []byte{unix.IPPROTO_ICMPV6}),
		load(transportHeader, 1, 0, 1))
	r.rule(c, icmp, equal(1, []byte{routerAdvertisement}), drop)
	r.rule(c, icmp, equal(1, []byte{redirect}), drop)
	r.rule(c, icmp, equal(1, []byte{neighbourAdvertisement}), meta(expr.MetaKeyIIFNAME, 1),
		load(transportHeader, 2, 8, 16), lookup(targetSet, true), drop)
	r.rule(c, etherType(unix.ETH_P_IPV6), meta(expr.MetaKeyIIFNAME, 1), load(linkHeader, 12, 6, 6),
		load(networkHeader, 14, 8, 16), lookup(ipv6Set, false), accept)
	r.rule(c, drop)
}

// Types of ICMPv6.
const (
	echoRequest            = 128
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	redirect               = 137
)

// translation is address translation: published ports inwards, the host's addresses outwards.
func (r *rules) translation() {
	var four, six []nftables.SetElement
	for _, p := range r.pods {
		more4, more6 := p.published()
		four, six = append(four, more4...), append(six, more6...)
	}
	map4 := r.set(r.inet, published4, four, &publishedData4, nftables.TypeInetProto, nftables.TypeInetService)
	map6 := r.set(r.inet, published6, six, &publishedData6, nftables.TypeInetProto, nftables.TypeInetService)
	for name, hook := range map[string]*nftables.ChainHook{
		"from_outside": nftables.ChainHookPrerouting, "from_host": nftables.ChainHookOutput,
	} {
		c := r.chain(r.inet, name, nftables.ChainTypeNAT, hook, nftables.ChainPriorityNATDest)
		// The resolver answers on the bridge, even if somebody publishes port 53.
		r.rule(c, ipv4, destination4(addressOf(r.ipv4, 1)), accept)
		r.rule(c, ipv6, destination6(addressOf(r.ipv6, 1)), accept)
		r.rule(c, ipv6, destination6(netip.IPv6Loopback()), accept) // cannot be routed to another interface
		r.rule(c, ipv4, toHost, service1, lookupTo(map4), destinationNAT(unix.NFPROTO_IPV4, 9))
		r.rule(c, ipv6, toHost, service1, lookupTo(map6), destinationNAT(unix.NFPROTO_IPV6, 2))
	}
	c := r.chain(r.inet, "outwards", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	masquerade := []expr.Any{&expr.Masq{}}
	r.rule(c, r.notTo(), ipv4, within(r.ipv4, 12), masquerade)
	r.rule(c, r.notTo(), ipv6, within(r.ipv6, 8), masquerade)
	// From a container by a published port to a container: the answer has to come back the same way.
	r.rule(c, r.to(), ipv4, within(r.ipv4, 12), translated, masquerade)
	r.rule(c, r.to(), ipv6, within(r.ipv6, 8), translated, masquerade)
	r.rule(c, r.to(), ipv4, within(netip.MustParsePrefix("127.0.0.0/8"), 12), masquerade)
}

// filters keeps containers from the host, and the outside from containers.
func (r *rules) filters() {
	early := r.chain(r.inet, "early", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	// The bridge routes 127.0.0.0/8 (sysctl.go), but only for the host.
	r.rule(early, r.from(), ipv4, withinDestination(netip.MustParsePrefix("127.0.0.0/8")), drop)
	r.rule(early, r.notFrom(), notLoopback, ipv4, destination4(addressOf(r.ipv4, 1)), drop)
	r.rule(early, r.notFrom(), notLoopback, ipv6, destination6(addressOf(r.ipv6, 1)), drop)

	forward := r.chain(r.inet, "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	r.rule(forward, known, accept)
	r.rule(forward, r.from(), ipv4, notWithin(r.ipv4, 12), drop)
	r.rule(forward, r.from(), ipv6, notWithin(r.ipv6, 8), drop)
	r.rule(forward, r.from(), accept)
	r.rule(forward, r.to(), translated, accept)
	r.rule(forward, r.to(), drop)

	input := r.chain(r.inet, "input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	r.rule(input, r.notFrom(), accept)
	r.rule(input, known, accept)
	for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		query := join2(meta(expr.MetaKeyL4PROTO, 1), equal(1, []byte{protocol}), load(transportHeader, 1, 2, 2),
			equal(1, portBytes(53)))
		r.rule(input, query, ipv4, destination4(addressOf(r.ipv4, 1)), accept)
		r.rule(input, query, ipv6, destination6(addressOf(r.ipv6, 1)), accept)
	}
	var open []nftables.SetElement
	for _, port := range r.open {
		key := join(padded([]byte{protocolNumber(port.Protocol)}), padded(portBytes(port.Host)))
		open = append(open, nftables.SetElement{Key: key})
	}
	openSet := r.set(r.inet, "open", open, nil, nftables.TypeInetProto, nftables.TypeInetService)
	r.rule(input, service1, lookup(openSet, false), accept)
	r.rule(input, meta(expr.MetaKeyL4PROTO, 1), equal(1, []byte{unix.IPPROTO_ICMP}), load(transportHeader, 1, 0, 1),
		equal(1, []byte{8}), accept)
	for _, kind := range []byte{echoRequest, neighbourSolicitation, neighbourAdvertisement} {
		r.rule(input, meta(expr.MetaKeyL4PROTO, 1), equal(1, []byte{unix.IPPROTO_ICMPV6}), load(transportHeader, 1, 0, 1),
			equal(1, []byte{kind}), accept)
	}
	r.rule(input, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
}

func (r *rules) from() []expr.Any { return interfaceIs(expr.MetaKeyIIFNAME, expr.CmpOpEq, r.bridge) }
func (r *rules) to() []expr.Any   { return interfaceIs(expr.MetaKeyOIFNAME, expr.CmpOpEq, r.bridge) }
func (r *rules) notFrom() []expr.Any {
	return interfaceIs(expr.MetaKeyIIFNAME, expr.CmpOpNeq, r.bridge)
}
func (r *rules) notTo() []expr.Any { return interfaceIs(expr.MetaKeyOIFNAME, expr.CmpOpNeq, r.bridge) }

func protocolNumber(p workload.Protocol) byte {
	if p == workload.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func portBytes(port uint16) []byte { return binaryutil.BigEndian.PutUint16(port) }
