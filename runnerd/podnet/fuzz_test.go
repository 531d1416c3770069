package podnet

import (
	"reflect"
	"strings"
	"testing"

	"colloid.net/runnerd/record"
	"colloid.net/workload"
)

// FuzzPool holds the file of a network: what is understood is written as it was read, no address is given twice.
func FuzzPool(f *testing.F) {
	f.Add([]byte("bridge \"colloid0\"\nipv4 \"10.88.0.0/16\"\nipv6 \"fd00:1::/64\"\nlease \"2 a 80:8080/6\"\n" +
		"lease \"3 b =c\"\nnext \"4\"\n"))
	f.Add([]byte("next \"9223372036854775807\"\n"))
	f.Add([]byte("bridge \"colloid0\"\nipv4 \"10.88.0.0/29\"\nipv6 \"fd00:1::/120\"\nlease \"7 a\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		p := &pool{leases: map[string]lease{}}
		if err := p.parse(r); err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		used := map[int]bool{}
		for name, l := range p.leases {
			if used[l.number] || l.number < 2 || l.number > p.capacity()+1 || len(l.ports) > PortsMax || name == "" {
				t.Fatalf("%s has %+v of %d", name, l, p.capacity())
			}
			used[l.number] = true
		}
		if p.bridge != "" && len(p.leases) < p.capacity() {
			if n, err := p.free(); err != nil || used[n] || n < 2 || n > p.capacity()+1 {
				t.Fatalf("%d is given beside %v, %v", n, used, err)
			}
		}
		again := &pool{leases: map[string]lease{}}
		if err := again.parse(p.record()); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v became %+v, %v", p, again, err)
		}
	})
}

func FuzzParseLease(f *testing.F) {
	f.Add("2 a 80:8080/6 443:8443/17 =b")
	f.Add("2 a 80:8080/6x")
	f.Add("02 a")
	f.Add("2 a =")
	f.Fuzz(func(t *testing.T, text string) {
		name, l, err := parseLease(text)
		if err == nil && l.text(name) != text {
			t.Fatalf("%q became %q", text, l.text(name))
		}
		if err == nil && (len(l.ports) > PortsMax || l.number < 2 || l.number > LeasesMax+1) {
			t.Fatalf("%q: %+v", text, l)
		}
	})
}

func FuzzParseResolvers(f *testing.F) {
	f.Add("# comment\nnameserver 192.0.2.1\nsearch example.org\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n")
	f.Add(strings.Repeat("nameserver 192.0.2.1\n", 9))
	f.Fuzz(func(t *testing.T, text string) {
		list := parseResolvers(strings.NewReader(text))
		if len(list) > resolversMax {
			t.Fatalf("%d resolvers", len(list))
		}
		for _, a := range list {
			if !a.IsValid() || a.IsLoopback() || a.Zone() != "" || !strings.Contains(text, "nameserver") {
				t.Fatalf("%v out of %q", a, text)
			}
		}
	})
}

// What a port had behind it was overlooked, and a number could be written in several ways.
func TestALeaseIsReadAsItIsWritten(t *testing.T) {
	for _, text := range []string{"2 a 80:8080/6x", "2 a 80:8080/6/7", "02 a", "+2 a", "2  a", "2 a =", "2 a 080:8080/6"} {
		if name, l, err := parseLease(text); err == nil {
			t.Errorf("%q is taken for %s %+v", text, name, l)
		}
	}
	want := lease{number: 5, ports: []workload.Port{{Host: 80, Container: 8080, Protocol: workload.TCP}}, owner: "b"}
	if name, l, err := parseLease(want.text("a")); err != nil || name != "a" || !reflect.DeepEqual(l, want) {
		t.Errorf("%q became %s %+v, %v", want.text("a"), name, l, err)
	}
}
