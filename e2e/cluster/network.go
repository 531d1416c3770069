package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
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
	// deafen lets cell i hear nothing from these addresses, or from nobody; without any it hears everything.
	deafen(i int, deaf []netip.Prefix) error
	// namespaceLink is what /proc/<pid>/ns/net of the cell's processes says, "" without namespaces.
	namespaceLink(i int) string
	// names of the namespaces: cells, then the switch.
	names() []string
	close() error
}

// loopback gives the cells addresses 127.0.0.1, 127.0.0.2, ... of the host.
type loopback struct{}

func (loopback) address(i int) netip.Addr         { return netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}) }
func (loopback) do(_ int, f func() error) error   { return f() }
func (loopback) setLink(int, bool) error          { return ErrNoLink }
func (loopback) deafen(int, []netip.Prefix) error { return ErrNoLink }
func (loopback) namespaceLink(int) string         { return "" }
func (loopback) names() []string                  { return nil }
func (loopback) close() error                     { return nil }
func (loopback) operator() netip.Addr             { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
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
