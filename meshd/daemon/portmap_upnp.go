package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
)

// Bounds of UPnP. Anybody on the network can answer a search and name any address to connect to; so the search is
// ours, only what the default router itself says counts, and it is connected to and nobody else.
const (
	searchWait    = 2 * time.Second
	answersMax    = 64        // datagrams looked at for one search
	documentMax   = 256 << 10 // of a description or answer
	headersMax    = 16 << 10
	portTries     = 3 // another cell behind the router may have the port already
	portFirst     = 20000
	portCount     = 40000
	searchAddress = "239.255.255.250:1900"
	servicePort   = 1900
)

// connection is what the services of the different versions of UPnP have in common.
type connection interface {
	GetExternalIPAddressCtx(context.Context) (string, error)
	AddPortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string,
		internalPort uint16, internalClient string, enabled bool, description string, lease uint32) error
	DeletePortMappingCtx(ctx context.Context, remoteHost string, externalPort uint16, protocol string) error
}

// openUPnP asks the gateway device.
func openUPnP(ctx context.Context, gateway netip.Addr, local netip.AddrPort, held *mapping) (*mapping, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, routerKey{}, gateway), 3*mapPatience)
	defer cancel()
	location, err := searchRouter(ctx, gateway, local.Addr())
	if err != nil {
		return nil, err
	}
	root, err := goupnp.DeviceByURLCtx(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("the router's description for UPnP: %w", err)
	}
	err = errors.New("the router's description for UPnP names no service that opens ports")
	for _, c := range services(root, location) {
		var found *mapping
		if found, err = askUPnP(ctx, c, local, held); err == nil {
			return found, nil
		}
	}
	return nil, err
}

func askUPnP(ctx context.Context, c connection, local netip.AddrPort, held *mapping) (*mapping, error) {
	text, err := c.GetExternalIPAddressCtx(ctx)
	if err != nil {
		return nil, err
	}
	outside, err := netip.ParseAddr(text)
	if err != nil || !outside.Is4() {
		return nil, fmt.Errorf("the router has the address %.40q", text)
	}
	port := local.Port()
	if held != nil && held.address.Addr() == outside {
		port = held.address.Port()
	}
	for range portTries {
		err = c.AddPortMappingCtx(ctx, "", port, "UDP", local.Port(), local.Addr().String(), true,
			"colloid", uint32(mapLifetime/time.Second))
		if err == nil {
			return &mapping{
				address: netip.AddrPortFrom(outside, port), lifetime: mapLifetime, protocol: "UPnP",
				remove: func() {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mapPatience)
					defer cancel()
					_ = c.DeletePortMappingCtx(ctx, "", port, "UDP")
				},
			}, nil
		}
		port = portFirst + uint16(rand.IntN(portCount))
	}
	return nil, err
}

// services lists what a router's description offers, best first.
func services(root *goupnp.RootDevice, location *url.URL) (list []connection) {
	second, _ := internetgateway2.NewWANIPConnection2ClientsFromRootDevice(root, location)
	for _, c := range second {
		c.SOAPClient.HTTPClient = *routerClient
		list = append(list, c)
	}
	first, _ := internetgateway2.NewWANIPConnection1ClientsFromRootDevice(root, location)
	for _, c := range first {
		c.SOAPClient.HTTPClient = *routerClient
		list = append(list, c)
	}
	dialled, _ := internetgateway2.NewWANPPPConnection1ClientsFromRootDevice(root, location)
	for _, c := range dialled {
		c.SOAPClient.HTTPClient = *routerClient
		list = append(list, c)
	}
	return list[:min(len(list), 3)]
}

// searchRouter asks for gateway devices and returns where the default router's description is.
func searchRouter(ctx context.Context, gateway, local netip.Addr) (*url.URL, error) {
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	end := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer end()
	if err := socket.SetReadDeadline(time.Now().Add(searchWait)); err != nil {
		return nil, err
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(gateway, servicePort), netip.MustParseAddrPort(searchAddress)} {
		for version := range 2 {
			question := fmt.Sprintf("M-SEARCH * HTTP/1.1\r\nHOST: %s\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n"+
				"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:%d\r\n\r\n", searchAddress, version+1)
			_, _ = socket.WriteToUDPAddrPort([]byte(question), to) // the other one may arrive
		}
	}
	var buffer [2048]byte
	for range answersMax {
		n, from, err := socket.ReadFromUDPAddrPort(buffer[:])
		if err != nil {
			break
		}
		if from.Addr().Unmap() == gateway {
			if location := describedAt(buffer[:n], gateway); location != nil {
				return location, nil
			}
		}
	}
	return nil, errors.New("the router does not answer by UPnP")
}

// describedAt returns the address of a description on the router itself that an answer to a search names, or nil.
func describedAt(answer []byte, gateway netip.Addr) *url.URL {
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	location, err := response.Location()
	if err != nil || response.StatusCode != http.StatusOK || location.Scheme != "http" || location.Hostname() != gateway.String() {
		return nil
	}
	return location
}

// routerKey is where the context of a request has the router that it may go to.
type routerKey struct{}

// routerClient is an HTTP client for one router: no proxy, no other host, no redirect, short documents.
var routerClient = &http.Client{
	Timeout: mapPatience,
	Transport: short{&http.Transport{
		DialContext: dialRouter, DisableKeepAlives: true, MaxResponseHeaderBytes: headersMax,
		ResponseHeaderTimeout: mapPatience, DisableCompression: true,
	}},
	CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the router redirects") },
}

func init() { goupnp.HTTPClientDefault = routerClient }

func dialRouter(ctx context.Context, kind, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	gateway, known := ctx.Value(routerKey{}).(netip.Addr)
	if err != nil || !known || host != gateway.String() {
		return nil, fmt.Errorf("the router's description names %.60q, which is not the router", address)
	}
	return new(net.Dialer).DialContext(ctx, kind, address)
}

// short ends documents where no honest one goes on.
type short struct{ http.RoundTripper }

func (s short) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, documentMax), response.Body}
	}
	return response, err
}
