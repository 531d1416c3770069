package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/huin/goupnp"
)

// An answer to a search counts only if it names a description on the router itself: everybody on the network can
// answer, and would otherwise choose whom meshd connects to.
func TestSearchAnswersNameTheRouterOrNothing(t *testing.T) {
	gateway := netip.MustParseAddr("192.168.1.1")
	for text, want := range map[string]bool{
		"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/root.xml\r\nST: x\r\n\r\n": true,
		"HTTP/1.1 200 OK\r\nlocation: http://192.168.1.1/\r\n\r\n":                       true,
		"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.66:5000/root.xml\r\n\r\n":         false,
		"HTTP/1.1 200 OK\r\nLOCATION: http://router:5000/root.xml\r\n\r\n":               false,
		"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1@10.0.0.1/x\r\n\r\n":             false,
		"HTTP/1.1 200 OK\r\nLOCATION: https://192.168.1.1/x\r\n\r\n":                     false,
		"HTTP/1.1 200 OK\r\nLOCATION: file:///etc/passwd\r\n\r\n":                        false,
		"HTTP/1.1 302 Found\r\nLOCATION: http://192.168.1.1/\r\n\r\n":                    false,
		"HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1":                                false,
		"NOTIFY * HTTP/1.1\r\nLOCATION: http://192.168.1.1/\r\n\r\n":                     false,
		"": false,
	} {
		if got := describedAt([]byte(text), gateway); (got != nil) != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Any bytes may answer a search.
func FuzzDescribedAt(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/root.xml\r\nST: x\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.66:5000/root.xml\r\n\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if at := describedAt(answer, netip.MustParseAddr("192.168.1.1")); at != nil &&
			(at.Hostname() != "192.168.1.1" || at.Scheme != "http") {
			t.Fatalf("%q: %v", answer, at)
		}
	})
}

// A router that redirects, names other hosts, or answers without end is an error after seconds at most.
func TestHostileDescriptionsEnd(t *testing.T) {
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	device := `<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">%s<device>` +
		`<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><serviceList><service>` +
		`<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType><controlURL>%s</controlURL>` +
		`</service></serviceList></device></root>`
	serve := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirects":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/endless":
			for range 1 << 20 {
				if _, err := fmt.Fprint(w, strings.Repeat("<a>", 1000)); err != nil {
					return
				}
			}
		case "/elsewhere":
			fmt.Fprintf(w, device, "", strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/control")
		case "/base":
			fmt.Fprintf(w, device, "<URLBase>"+strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"</URLBase>", "/control")
		case "/silent":
			<-r.Context().Done()
		}
	}
	router := httptest.NewServer(http.HandlerFunc(serve))
	defer router.Close()
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), routerKey{}, netip.MustParseAddr("127.0.0.1")), 3*mapPatience)
	defer cancel()
	for _, path := range []string{"/redirects", "/endless", "/elsewhere", "/base", "/silent"} {
		at, err := url.Parse(router.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		root, err := goupnp.DeviceByURLCtx(ctx, at)
		if err == nil {
			list := services(root, at)
			if len(list) != 1 {
				t.Fatalf("%s: %d services", path, len(list))
			}
			_, err = askUPnP(ctx, list[0], netip.MustParseAddrPort("127.0.0.1:12421"), nil)
		}
		if err == nil || elsewhere != 0 || time.Since(begin) > mapPatience+time.Second {
			t.Errorf("%s: %v after %v, %d requests to others", path, err, time.Since(begin), elsewhere)
		}
	}
	if _, err := routerClient.Get(router.URL); err == nil || !strings.Contains(err.Error(), "not the router") {
		t.Errorf("without a router: %v", err)
	}
}
