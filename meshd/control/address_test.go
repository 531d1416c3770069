package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"192.0.2.1":                   {"192.0.2.1", 12421, ""},
		"192.0.2.1:7":                 {"192.0.2.1", 7, ""},
		"192.0.2.1:7#key":             {"192.0.2.1", 7, "key"},
		"192.0.2.1#a#b":               {"192.0.2.1", 12421, "a#b"},
		"[2001:db8::1]":               {"2001:db8::1", 12421, ""},
		"[2001:db8::1]:65535#k":       {"2001:db8::1", 65535, "k"},
		"2001:db8::1":                 {"2001:db8::1", 12421, ""},
		"[fe80::1%eth0]:9":            {"fe80::1%eth0", 9, ""},
		"host":                        {"host", 12421, ""},
		"a-b.example.org:443#AbC-123": {"a-b.example.org", 443, "AbC-123"},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ":7", "#key", "host:", "host:0", "host:65536", "host:-1", "host:7:8", "host#", "host#a b", "[host]:7",
		"[192.0.2.1]:7", "[::1", "::1]", "[]", "::%]",
		"-host", ".host", "ho st", "host/path", "http://host", "h\x00",
		"host:http", strings.Repeat("h", 254), strings.Repeat("h", 600), "host#" + strings.Repeat("k", 300),
	} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%q became %+v", text, got)
		} else if strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, text := range []string{"host:1#k", "[::1]:1", "1.2.3.4", "[fe80::1%x]", "#", ":", "[", "::1#k"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseTarget(text)
		if err != nil {
			return
		}
		if target.Host == "" || target.Port == 0 {
			t.Fatalf("%q became %+v", text, target)
		}
		again := net.JoinHostPort(target.Host, "7")
		if target.Key != "" {
			again += "#" + target.Key
		}
		if second, err := ParseTarget(again); err != nil || second.Host != target.Host || second.Key != target.Key {
			t.Fatalf("%q became %+v, written as %q it is %+v, %v", text, target, again, second, err)
		}
	})
}

type resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func (r resolver) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	return r(ctx, host)
}

func TestResolve(t *testing.T) {
	addr := netip.MustParseAddr
	fixed := resolver(func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{addr("::ffff:192.0.2.1"), addr("192.0.2.1"), addr("2001:db8::1"), addr("0.0.0.0")}, nil
	})
	got, err := Resolve(context.Background(), fixed, Target{Host: "name", Port: 7})
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("[2001:db8::1]:7")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for want, answer := range map[string]resolver{
		"no such host": func(context.Context, string) ([]netip.Addr, error) {
			return nil, &net.DNSError{IsNotFound: true}
		},
		"within 5 s": func(ctx context.Context, _ string) ([]netip.Addr, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				return nil, errors.New("the lookup is not bounded")
			}
			return nil, context.DeadlineExceeded
		},
		"no address": func(context.Context, string) ([]netip.Addr, error) { return nil, nil },
	} {
		if _, err := Resolve(context.Background(), answer, Target{Host: "name", Port: 7}); err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"name"`) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestResolveIsBounded(t *testing.T) {
	many := resolver(func(context.Context, string) (found []netip.Addr, _ error) {
		for i := range 200 {
			found = append(found, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
		}
		return found, nil
	})
	got, err := Resolve(context.Background(), many, Target{Host: "name", Port: 7})
	if err != nil || len(got) != addressesMax {
		t.Errorf("%d addresses, %v", len(got), err)
	}
}
