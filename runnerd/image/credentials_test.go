package image

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"colloid.net/runnerd/image/imagetest"
)

// tokenServer is a registry that wants a token which only a user gets; realm says where.
type tokenServer struct {
	mutex sync.Mutex
	seen  []string // Authorization headers by host
}

func (s *tokenServer) wrap(realm string) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/token" {
				user, password, _ := q.BasicAuth()
				s.note(q)
				if user != "builder" || password != "secret" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				fmt.Fprint(w, `{"token":"the-token"}`)
				return
			}
			if q.Header.Get("Authorization") != "Bearer the-token" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(w, q)
		})
	}
}

func (s *tokenServer) note(q *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.seen = append(s.seen, q.Host+" "+q.Header.Get("Authorization"))
}

func writeCredentials(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestF146_CredentialsGoToTheirHostOnly holds token authentication, and that a registry which asks for the
// credentials to be sent elsewhere does not get them sent.
func TestF146_CredentialsGoToTheirHostOnly(t *testing.T) {
	needRoot(t)
	r, thief := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	image := small(t, runtime.GOARCH, "x")
	digest := digestOf(t, r.Push(t, "x:1", image))
	tokens, stolen := &tokenServer{}, &tokenServer{}
	thief.Wrap(stolen.wrap("https://" + thief.Host + "/token"))
	both := func() []Host {
		return append(hosts(r)(), hosts(thief)()[0], Host{Name: thief.Name, Private: true, CA: thief.CA})
	}
	entry := "registry " + r.Host + " {\n username builder\n password secret\n"

	r.Wrap(tokens.wrap("https://" + r.Host + "/token"))
	c := newClient(t, func(o *Options) { o.Hosts, o.Credentials = both, writeCredentials(t, entry+"}\n") })
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	c = newClient(t, func(o *Options) { o.Hosts = both })
	c.expectRefusal(t, r, digest, "needs credentials that this host does not have")
	c = newClient(t, func(o *Options) {
		o.Hosts, o.Credentials = both, writeCredentials(t, strings.Replace(entry, "secret", "wrong", 1)+"}\n")
	})
	c.expectRefusal(t, r, digest, `credentials of user "builder"`)

	r.Wrap(tokens.wrap("https://" + thief.Name + "/token"))
	c = newClient(t, func(o *Options) { o.Hosts, o.Credentials = both, writeCredentials(t, entry+"}\n") })
	c.expectRefusal(t, r, digest, `user "builder" to be sent to `+thief.Name, "token_host")
	if len(stolen.seen) != 0 {
		t.Errorf("the thief has seen %q", stolen.seen)
	}
	c = newClient(t, func(o *Options) {
		o.Hosts, o.Credentials = both, writeCredentials(t, entry+" token_host "+thief.Name+"\n}\n")
	})
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Errorf("with a token server that the file names: %v", err)
	}
	// A redirect carries neither token nor credentials along.
	r.Wrap(func(inner http.Handler) http.Handler {
		return tokens.wrap("https://" + r.Host + "/token")(onBlob(func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, "https://"+thief.Host+q.URL.Path, http.StatusTemporaryRedirect)
		})(inner))
	})
	var leaked atomic.Value
	thief.Wrap(nil)
	thief.Push(t, "x:1", image)
	thief.Wrap(func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if authorization := q.Header.Get("Authorization"); authorization != "" {
				leaked.Store(authorization)
			}
			inner.ServeHTTP(w, q)
		})
	})
	c = newClient(t, func(o *Options) { o.Hosts, o.Credentials = both, writeCredentials(t, entry+"}\n") })
	if _, err := c.Ensure(testContext(t), r.Host+"/x:1", digest, nil); err != nil {
		t.Errorf("a redirect to where blobs lie: %v", err)
	}
	if leaked.Load() != nil {
		t.Errorf("the other host has seen %q", leaked.Load())
	}
}
