// Package podnet is the network of containers on one host: a bridge, an address pool, one network
// namespace with a veth pair per container, and rules in tables of our own.
//
//	outside ── uplink ── host (forwarding, NAT) ── colloid0 ──┬── veth ── eth0 of a container
//	                                                          └── veth ── eth0 of a container
//
// Nouns. Settings say what the host's policy wants: the name of the bridge and the ranges of addresses.
// A lease is what one container has: an index into the pool, from which its addresses follow, and the
// ports that it publishes. The lease is written down before anything of it exists in the kernel, and is
// forgotten after all of it is gone. So whatever is killed when, the file tells what may be there, and
// Retain removes the rest. Network owns all of this; its methods may be called from any goroutine and
// run one at a time.
//
// What exists while there is at least one lease: the bridge, table "colloid" of families inet and
// bridge (for a bridge of another name "colloid-<bridge>"), sockets for the resolver on the bridge's
// addresses. With the last lease all of it goes. Nothing outside of it is touched, but for the switches
// in sysctl.go, which stay: other programs may have come to rely on them.
//
// The rules (rules.go): containers reach each other and the outside, the outside reaches published ports
// only, containers reach nothing of the host but name resolution, and no container sends from an address
// that is not its own.
//
// Privilege. Everything here needs CAP_NET_ADMIN, name resolution on port 53 CAP_NET_BIND_SERVICE,
// pinning network namespaces CAP_SYS_ADMIN.
//
// Limits: as many containers as the range of addresses has room for, at most LeasesMax; PortsMax
// published ports each. Linux 5.2 or newer with nf_tables for inet and bridge.
package podnet
