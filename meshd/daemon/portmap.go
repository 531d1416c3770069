package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/huin/goupnp/dcps/internetgateway2"
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
// (NAT-PMP, else UPnP). It runs beside the cell: routers take seconds to answer, or do not.
func (d *Daemon) mapPort(ctx context.Context) {
	var held *mapping
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
		found, err := openPort(ctx, d.reactor.LocalAddress())
		if err != nil && held == nil {
			pause = mapRetry
			continue
		}
		if err != nil || held == nil || held.address != found.address {
			d.setMapped(found, err)
		}
		held, pause = found, mapRetry
		if found != nil {
			pause = max(found.lifetime/2, time.Minute)
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

// openPort asks the default router for a port.
func openPort(ctx context.Context, bound netip.AddrPort) (*mapping, error) {
	table, err := os.Open("/proc/net/route")
	if err != nil {
		return nil, err
	}
	defer table.Close()
	gateway, err := defaultGateway(table)
	if err != nil {
		return nil, err
	}
	local, err := localAddress(gateway, bound.Addr())
	if err != nil {
		return nil, err
	}
	found, err := openPMP(gateway, bound.Port())
	if err != nil {
		found, err = openUPnP(ctx, gateway, netip.AddrPortFrom(local, bound.Port()))
	}
	if err != nil {
		return nil, err
	}
	if address := found.address.Addr(); !address.IsGlobalUnicast() || address.IsPrivate() {
		found.remove()
		return nil, fmt.Errorf("the router itself has the private address %v", address)
	}
	return found, nil
}

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
		lifetime: time.Duration(opened.PortMappingLifetimeInSeconds) * time.Second, protocol: "NAT-PMP",
		remove: func() { _, _ = client.AddPortMapping("udp", int(port), 0, 0) },
	}, nil
}

// connection is what the services of the different versions of UPnP have in common.
type connection interface {
	GetExternalIPAddressCtx(context.Context) (string, error)
	AddPortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string,
		internalPort uint16, internalClient string, enabled bool, description string, lease uint32) error
	DeletePortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string) error
}

// openUPnP asks the gateway device. Answers to the search of other hosts than the default router are left
// out: anybody on the network can send one, and it names an address to connect to.
func openUPnP(ctx context.Context, gateway netip.Addr, local netip.AddrPort) (*mapping, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*mapPatience)
	defer cancel()
	var found []connection
	if clients, _, err := internetgateway2.NewWANIPConnection2ClientsCtx(ctx); err == nil {
		for _, c := range clients {
			if c.Location.Hostname() == gateway.String() {
				found = append(found, c)
			}
		}
	}
	if clients, _, err := internetgateway2.NewWANIPConnection1ClientsCtx(ctx); err == nil && len(found) == 0 {
		for _, c := range clients {
			if c.Location.Hostname() == gateway.String() {
				found = append(found, c)
			}
		}
	}
	for _, c := range found {
		text, err := c.GetExternalIPAddressCtx(ctx)
		if err != nil {
			continue
		}
		outside, err := netip.ParseAddr(text)
		if err != nil || !outside.Is4() {
			continue
		}
		err = c.AddPortMappingCtx(ctx, "", local.Port(), "UDP", local.Port(), local.Addr().String(), true,
			"colloid", uint32(mapLifetime/time.Second))
		if err != nil {
			continue
		}
		return &mapping{
			address: netip.AddrPortFrom(outside, local.Port()), lifetime: mapLifetime, protocol: "UPnP",
			remove: func() {
				ctx, cancel := context.WithTimeout(context.Background(), mapPatience)
				defer cancel()
				_ = c.DeletePortMappingCtx(ctx, "", local.Port(), "UDP")
			},
		}, nil
	}
	return nil, errors.New("the router offers neither NAT-PMP nor UPnP")
}
