package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// guard is the transport below everything that this process sends. It allows what doc.go says and
// remembers the first thing it refused: the library above does not always pass errors on.
type guard struct {
	hosts   map[string]Host
	secrets map[string]bool // hosts that may see credentials of the registry
	who     string          // the registry, for messages
	// transports by certificates: one for the system's, one per host with its own.
	common   *http.Transport
	specific map[string]*http.Transport

	mutex   sync.Mutex
	refused error
	pinged  error // why the last attempt to ask the registry in plain HTTP failed
}

// refusal is an error that trying again cannot mend.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, arguments ...any) error { return refusal{fmt.Errorf(format, arguments...)} }

const redirectsMax = 5

func newGuard(job *Job, who string) (*guard, error) {
	g := &guard{hosts: map[string]Host{}, secrets: map[string]bool{}, who: who, specific: map[string]*http.Transport{}}
	g.common = g.transport(nil, job.Timing.Stall)
	for _, host := range job.Hosts {
		name := hostName(host.Name)
		g.hosts[name] = host
		if len(host.CA) == 0 {
			continue
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(host.CA) {
			return nil, refuse("%s: the ca that the policy names holds no certificate", host.Name)
		}
		g.specific[name] = g.transport(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, job.Timing.Stall)
	}
	if job.Credentials != nil {
		g.secrets[who] = true
		for _, host := range job.Credentials.TokenHosts {
			g.secrets[hostName(host)] = true
		}
	}
	return g, nil
}

func (g *guard) transport(config *tls.Config, stall time.Duration) *http.Transport {
	return &http.Transport{
		Proxy: nil, DialContext: g.dial, TLSClientConfig: config, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: stall, ResponseHeaderTimeout: stall, IdleConnTimeout: stall, ExpectContinueTimeout: stall,
		DisableCompression: true, MaxIdleConns: 4, MaxConnsPerHost: 4, MaxResponseHeaderBytes: 64 << 10,
	}
}

// RoundTrip checks one request, also those of redirects and for tokens.
func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	name := hostName(request.URL.Host)
	if followed(request) > redirectsMax { // the library does not ask whether to follow
		return nil, g.note(refuse("%s redirects more than %d times", g.who, redirectsMax))
	}
	if name == g.who && g.hosts[name].HTTP && first(request).URL.Path == pingPath {
		return g.pingPlain(request)
	}
	if name == g.who && request.URL.Scheme == "http" && request.URL.Path == pingPath && !g.hosts[name].HTTP {
		// The library asks in plain HTTP by itself where HTTPS failed at an address that looks local. Nobody
		// wanted that, and it must not hide why HTTPS failed.
		return nil, fmt.Errorf("plain HTTP is not spoken without `registry %s { http }` in the host's policy", name)
	}
	if err := g.check(request.URL, name); err != nil {
		return nil, g.note(err)
	}
	if user, _, basic := request.BasicAuth(); basic && !g.secrets[name] {
		return nil, g.note(refuse("%s asks for the credentials of user %q to be sent to %s: if that is its token server, "+
			"add token_host %s to the file of credentials", g.who, user, name, name))
	}
	if transport := g.specific[name]; transport != nil {
		return transport.RoundTrip(request)
	}
	return g.common.RoundTrip(request)
}

// pingPath is what the library asks a registry first, to find out how it wants to be authenticated with.
const pingPath = "/v2/"

// first is the request that was redirected until it became this one; followed says how often.
func first(request *http.Request) *http.Request {
	for request.Response != nil && request.Response.Request != nil {
		request = request.Response.Request
	}
	return request
}

func followed(request *http.Request) (times int) {
	for ; request.Response != nil && request.Response.Request != nil; request = request.Response.Request {
		times++
	}
	return times
}

// pingPlain asks a registry in plain HTTP at once where the policy says so. The library would ask by HTTPS first, and
// tell what came of that. From whom the answer is, it learns by the response. Where an address looks local to it, it
// asks once more in plain HTTP after an error: that would take as long again and give the same.
func (g *guard) pingPlain(request *http.Request) (*http.Response, error) {
	g.mutex.Lock()
	failed := g.pinged
	g.pinged = nil
	g.mutex.Unlock()
	if request.URL.Scheme == "http" && failed != nil {
		return nil, failed
	}
	plain := request.Clone(request.Context())
	plain.URL.Scheme = "http"
	response, err := g.common.RoundTrip(plain)
	if err != nil && request.URL.Scheme == "https" {
		g.mutex.Lock()
		g.pinged = err
		g.mutex.Unlock()
	}
	return response, err
}

// check judges an address without resolving it.
func (g *guard) check(target *url.URL, name string) error {
	rule := g.hosts[name]
	switch {
	case target.User != nil:
		return refuse("%s leads to an address with a password in it", g.who)
	case target.Scheme == "http" && !rule.HTTP:
		return refuse("%s wants plain HTTP, which anybody on the way could change: use HTTPS, or list `registry %s { http }` "+
			"in the host's policy", name, name)
	case target.Scheme != "http" && target.Scheme != "https":
		return refuse("%s leads to a %.20q address", g.who, target.Scheme)
	}
	return nil
}

// note keeps the first refusal.
func (g *guard) note(err error) error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.refused == nil {
		g.refused = err
	}
	return err
}

// explain prefers what the guard refused to what became of it above.
func (g *guard) explain(err error) error {
	if err == nil {
		return nil
	}
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.refused != nil {
		return g.refused // without what the library wrapped it in
	}
	return err
}

// dial connects after the name was resolved: the address that is connected to is the one that was checked.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	rule, listed := g.hosts[hostName(address)]
	if !listed {
		rule = g.hosts[hostName(host)] // the port is that of the scheme
		if port != "443" && port != "80" {
			rule = Host{}
		}
	}
	dialer := net.Dialer{Timeout: 15 * time.Second, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		pair, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		if !public(pair.Addr()) && !rule.Private {
			return g.note(refuse("%s has the address %s, which is not public: list `registry %s { private }` in the host's "+
				"policy if that is right", host, pair.Addr(), hostName(address)))
		}
		return nil
	}}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, network, address)
}

// redirect judges the next address of a redirect; the guard checks it again as a request.
func (g *guard) redirect(request *http.Request, via []*http.Request) error {
	if len(via) > redirectsMax {
		return refuse("%s redirects more than %d times", g.who, redirectsMax)
	}
	if via[0].URL.Scheme == "https" && request.URL.Scheme != "https" {
		return g.note(refuse("%s redirects from HTTPS to %s", g.who, request.URL.Scheme))
	}
	return nil
}
