package pcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	// Port is where routers listen.
	Port = 5351
	// AnswersMax bounds the datagrams that are looked at for one question.
	AnswersMax = 32
	// firstWait is how long the first question waits for its answer; it doubles for each of triesMax. The
	// standard begins with 3 s for networks of a continent; a router is in the same building.
	firstWait = 250 * time.Millisecond
	triesMax  = 4
)

// Client asks one router for one port.
type Client struct {
	router netip.AddrPort
	nonce  Nonce
}

// NewClient returns a client that asks a router. The nonce must be unpredictable for others and the same for
// each Client of the same port, or the router takes a restarted one for somebody else.
func NewClient(router netip.Addr, nonce Nonce) *Client {
	return &Client{router: netip.AddrPortFrom(router, Port), nonce: nonce}
}

// Map asks for a port that leads to an internal one. Asking again renews. wanted is what the router gave
// before, or zero. The answer takes four seconds at most.
func (c *Client) Map(ctx context.Context, internal uint16, wanted netip.AddrPort, lifetime time.Duration) (Mapping, error) {
	if internal == 0 || lifetime < time.Second {
		panic(fmt.Sprintf("pcp: mapping of port %d for %v", internal, lifetime))
	}
	return c.ask(ctx, Request{Nonce: c.nonce, Internal: internal, Wanted: wanted, Lifetime: lifetime})
}

// Unmap ends a mapping.
func (c *Client) Unmap(ctx context.Context, internal uint16) error {
	_, err := c.ask(ctx, Request{Nonce: c.nonce, Internal: internal})
	return err
}

func (c *Client) ask(ctx context.Context, request Request) (Mapping, error) {
	// Connected, so that the kernel drops what others send and tells that nobody listens there.
	connection, err := new(net.Dialer).DialContext(ctx, "udp", c.router.String())
	if err != nil {
		return Mapping{}, err
	}
	defer connection.Close()
	end := context.AfterFunc(ctx, func() { _ = connection.SetReadDeadline(time.Unix(1, 0)) })
	defer end()
	request.Client = connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	datagram := request.Append(nil)
	looked := 0
	for try, wait := 0, firstWait; try < triesMax; try, wait = try+1, 2*wait {
		if _, err := connection.Write(datagram); err != nil {
			return Mapping{}, err
		}
		if err := connection.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return Mapping{}, err
		}
		if err := ctx.Err(); err != nil {
			return Mapping{}, err
		}
		mapping, err := await(connection, request, &looked)
		var timeout net.Error
		if err == nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			return mapping, err
		}
	}
	return Mapping{}, fmt.Errorf("the router %v does not answer by PCP", c.router.Addr())
}

// await reads until an answer to the request comes or the time is over.
func await(connection net.Conn, request Request, looked *int) (Mapping, error) {
	var buffer [datagramMax + 1]byte
	for *looked < AnswersMax {
		n, err := connection.Read(buffer[:])
		if err != nil {
			return Mapping{}, err
		}
		*looked++
		mapping, err := request.Parse(buffer[:n])
		if !errors.Is(err, errForeign) {
			return mapping, err
		}
	}
	return Mapping{}, errors.New("the router sends nothing but what was not asked for")
}
