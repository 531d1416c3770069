package registry

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// firstBytes is a listener that notes with which byte each connection begins.
type firstBytes struct {
	net.Listener
	mutex sync.Mutex
	bytes []byte
}

func (l *firstBytes) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &firstByte{Conn: conn, of: l}, nil
}

type firstByte struct {
	net.Conn
	of   *firstBytes
	once sync.Once
}

func (c *firstByte) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.once.Do(func() {
			c.of.mutex.Lock()
			c.of.bytes = append(c.of.bytes, p[0])
			c.of.mutex.Unlock()
		})
	}
	return n, err
}

// TestF146_PlainRegistriesAreAskedInPlainHTTP holds that a registry that the policy lists with http never sees another
// protocol, at addresses that look local and at others, and that what is wrong with it is what the error says.
func TestF146_PlainRegistriesAreAskedInPlainHTTP(t *testing.T) {
	hangUp := func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"stalls":      {func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }, "does not answer: "},
		"loops":       {func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, q.URL.Path, http.StatusFound) }, "redirects more than 5 times"},
		"hangs up":    {hangUp, "ends the connection without an answer: EOF"},
		"is not well": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "answers with status 502"},
		"knows nothing": {func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path != pingPath {
				http.NotFound(w, q)
			}
		}, "check the name and the tag"},
	} {
		for _, host := range []string{"127.0.0.1", "registry.example"} {
			t.Run(name+" at "+host, func(t *testing.T) {
				t.Parallel()
				server := httptest.NewUnstartedServer(c.handler)
				listener := &firstBytes{Listener: server.Listener}
				server.Listener = listener
				server.Start()
				defer server.Close()
				_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
				who := host + ":" + port
				job := &Job{Kind: JobResolve, Reference: who + "/x:1", Hosts: []Host{{Name: who, HTTP: true, Private: true}},
					Timing: Timing{Stall: 500 * time.Millisecond, Retry: time.Millisecond}}
				start := time.Now()
				f := &fetcher{job: job}
				job.Timing.complete()
				err := f.open()
				if err == nil {
					f.guard.common.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
					}
					_, _, err = f.resolve(context.Background())
				}
				if err == nil || !strings.Contains(err.Error(), who+" ") || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if took := time.Since(start); took > 3*time.Second {
					t.Errorf("it took %v", took)
				}
				listener.mutex.Lock()
				defer listener.mutex.Unlock()
				if string(listener.bytes) != strings.Repeat("G", len(listener.bytes)) || len(listener.bytes) == 0 {
					t.Errorf("connections begin with %q, expected GET", listener.bytes)
				}
			})
		}
	}
}
