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

// The rules are those of uds.ParseTarget; what is added is the port.
func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"192.0.2.1":             {"192.0.2.1", 12421, ""},
		"[2001:db8::1]:65535#k": {"2001:db8::1", 65535, "k"},
		"[2001:db8::1]":         {"2001:db8::1", 12421, ""},
		"host#a#b":              {"host", 12421, "a#b"},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	if got, err := ParseTarget("[::1"); err == nil || got != (Target{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

type resolver func(ctx context.Context, host string) ([]netip.Addr, error)

func (r resolver) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	return r(ctx, host)
}

func TestResolve(t *testing.T) {
	addr := netip.MustParseAddr
	fixed := resolver(func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{addr("::ffff:192.0.2.1"), addr("192.0.2.1"), addr("2001:db8::1"), addr("0.0.0.0"), addr("224.0.0.1")}, nil
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
