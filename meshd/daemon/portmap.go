package daemon

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"colloid.net/meshd/pcp"
	natpmp "github.com/jackpal/go-nat-pmp"
)

// Times of port mapping.
const (
	mapLifetime = time.Hour        // asked for; routers may give less
	mapPatience = 3 * time.Second  // for one answer of a router
	mapRetry    = 10 * time.Minute // after a failure; routers get replaced
	mapStart    = 5 * time.Second  // the cell comes first
)

// mapping is a port that a router opened.
type mapping struct {
	address  netip.AddrPort
	lifetime time.Duration
	protocol string
	remove   func()
}

// mapPort keeps a port of the router open, where the host is on a private network behind one that offers it
// (PCP, else NAT-PMP, else UPnP). It runs beside the cell: routers take seconds to answer, or do not.
func (d *Daemon) mapPort(ctx context.Context) {
	var held *mapping
	asker := newAsker(d.reactor.LocalAddress())
	defer func() {
		if held != nil {
			held.remove()
		}
	}()
	for pause := mapStart; ; {
		select {
		case <-ctx.Done():
			return
		case <-d.stopped:
			return
		case <-time.After(pause):
		}
		found, err := asker.openPort(ctx, held)
		if err != nil && held == nil {
			pause = mapRetry
			continue
		}
		if err != nil || held == nil || held.address != found.address {
			d.setMapped(found, err)
		}
		held, pause = found, mapRetry
		if found != nil {
			pause = min(max(found.lifetime/2, time.Minute), mapLifetime/2)
		}
	}
}

func (d *Daemon) setMapped(found *mapping, err error) {
	var addresses []netip.AddrPort
	if found != nil {
		addresses = []netip.AddrPort{found.address}
		d.log.printf("the router opened %v for this cell (%s)", found.address, found.protocol)
	} else {
		d.log.printf("the router does not keep its port open any more: %v", err)
	}
	d.inbox.post(func() {
		if d.started {
			d.cell.SetMapped(d.reactor.Now(), addresses)
		}
	})
}

var errNoRouter = errors.New("no router on a private network")

// asker asks the default router for a port.
type asker struct {
	bound netip.AddrPort
	nonce pcp.Nonce // by which a router knows that it is the same host that asks again
}

func newAsker(bound netip.AddrPort) *asker {
	a := &asker{bound: bound}
	_, _ = rand.Read(a.nonce[:]) // never fails
	return a
}

// openPort asks for a port, or for more time for the one that is held.
func (a *asker) openPort(ctx context.Context, held *mapping) (*mapping, error) {
	table, err := os.Open("/proc/thread-self/net/route")
	if err != nil {
		return nil, err
	}
	defer table.Close()
	gateway, err := defaultGateway(table)
	if err != nil {
		return nil, err
	}
	local, err := localAddress(gateway, a.bound.Addr())
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, open := range []func() (*mapping, error){
		func() (*mapping, error) { return a.openPCP(ctx, gateway, held) },
		func() (*mapping, error) { return openPMP(gateway, a.bound.Port()) },
		func() (*mapping, error) {
			return openUPnP(ctx, gateway, netip.AddrPortFrom(local, a.bound.Port()), held)
		},
	} {
		found, err := open()
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if address := found.address.Addr(); !address.IsGlobalUnicast() || address.IsPrivate() || sharedSpace.Contains(address) {
			found.remove()
			return nil, fmt.Errorf("the router itself has the private address %v", address)
		}
		return found, nil
	}
	return nil, errors.Join(problems...)
}

// sharedSpace are the addresses that providers give routers behind one of their own (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// defaultGateway reads the kernel's routing table. Only a router on a private network is asked for anything.
func defaultGateway(table io.Reader) (netip.Addr, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		raw, err := hex.DecodeString(fields[2])
		if err != nil || len(raw) != 4 {
			continue
		}
		slices.Reverse(raw) // the kernel prints the number as a little-endian machine holds it
		if gateway := netip.AddrFrom4([4]byte(raw)); gateway.IsPrivate() {
			return gateway, nil
		}
	}
	return netip.Addr{}, errNoRouter
}

// localAddress is the address of this host on the router's network.
func localAddress(gateway, bound netip.Addr) (netip.Addr, error) {
	if !bound.IsUnspecified() {
		if !bound.IsPrivate() {
			return netip.Addr{}, errNoRouter
		}
		return bound, nil
	}
	addresses, err := hostAddresses()
	if err != nil {
		return netip.Addr{}, err
	}
	best := netip.Addr{}
	for _, address := range addresses {
		switch {
		case !address.Is4():
		case !address.IsPrivate():
			return netip.Addr{}, errNoRouter // reachable as it is
		case !best.IsValid() || address.As4()[0] == gateway.As4()[0] && address.As4()[1] == gateway.As4()[1]:
			best = address
		}
	}
	if !best.IsValid() {
		return best, errNoRouter
	}
	return best, nil
}

func (a *asker) openPCP(ctx context.Context, gateway netip.Addr, held *mapping) (*mapping, error) {
	client := pcp.NewClient(gateway, a.nonce)
	wanted := netip.AddrPort{}
	if held != nil {
		wanted = held.address
	}
	found, err := client.Map(ctx, a.bound.Port(), wanted, mapLifetime)
	if err != nil {
		return nil, err
	}
	return &mapping{
		address: found.External, lifetime: found.Lifetime, protocol: "PCP",
		remove: func() {
			ctx, cancel := context.WithTimeout(context.Background(), mapPatience)
			defer cancel()
			_ = client.Unmap(ctx, a.bound.Port())
		},
	}, nil
}

func openPMP(gateway netip.Addr, port uint16) (*mapping, error) {
	client := natpmp.NewClientWithTimeout(gateway.AsSlice(), mapPatience)
	outside, err := client.GetExternalAddress()
	if err != nil {
		return nil, err
	}
	opened, err := client.AddPortMapping("udp", int(port), int(port), int(mapLifetime/time.Second))
	if err != nil {
		return nil, err
	}
	if opened.MappedExternalPort == 0 {
		return nil, errors.New("the router opened no port")
	}
	return &mapping{
		address:  netip.AddrPortFrom(netip.AddrFrom4(outside.ExternalIPAddress), opened.MappedExternalPort),
		lifetime: min(time.Duration(opened.PortMappingLifetimeInSeconds)*time.Second, mapLifetime), protocol: "NAT-PMP",
		remove: func() { _, _ = client.AddPortMapping("udp", int(port), 0, 0) },
	}, nil
}
