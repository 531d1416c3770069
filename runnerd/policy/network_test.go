package policy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestNetworkStatements(t *testing.T) {
	p, err := Parse("p", []byte("pod_network 10.80.0.0/22 fd12::/64\npod_bridge pods1\n"))
	want := Network{Bridge: "pods1", IPv4: netip.MustParsePrefix("10.80.0.0/22"), IPv6: netip.MustParsePrefix("fd12::/64")}
	if err != nil || p.Containers.Network != want {
		t.Errorf("%v: %v", err, p)
	}
	if p, err := Parse("p", []byte("pod_network none")); err != nil || !p.Containers.Network.None {
		t.Errorf("%v: %v", err, p)
	}
	for text, words := range map[string]string{
		"pod_network":                          "needs a range",
		"pod_network 10.0.0.0/8":               "too large or too small",
		"pod_network 10.0.0.1/24":              "bits behind its length",
		"pod_network 10.0.0.0/24 10.0.1.0/24":  "two ranges of one family",
		"pod_network 127.0.0.0/16":             "no range for hosts",
		"pod_network ::ffff:10.0.0.0/120":      "no range for hosts",
		"pod_network fd00::/124":               "too large or too small",
		"pod_bridge a/b":                       "has a character other",
		"pod_bridge averyveryverylongname":     "expected 1 to 15",
		"pod_network none\npod_network none\n": "given twice",
	} {
		if _, err := Parse("p", []byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", text, err, words)
		}
	}
}
