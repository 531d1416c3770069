package uds

import (
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"192.0.2.1":                   {"192.0.2.1", 0, ""},
		"192.0.2.1:7":                 {"192.0.2.1", 7, ""},
		"192.0.2.1:7#key":             {"192.0.2.1", 7, "key"},
		"192.0.2.1#a#b":               {"192.0.2.1", 0, "a#b"},
		"[2001:db8::1]":               {"2001:db8::1", 0, ""},
		"[2001:DB8:0::1]:65535#k":     {"2001:db8::1", 65535, "k"},
		"2001:db8::1":                 {"2001:db8::1", 0, ""},
		"2001:db8::1#k":               {"2001:db8::1", 0, "k"},
		"[fe80::1%eth0.5]:9":          {"fe80::1%eth0.5", 9, ""},
		"host":                        {"host", 0, ""},
		"host.":                       {"host.", 0, ""},
		"10-0-0-1.host_2.example":     {"10-0-0-1.host_2.example", 0, ""},
		"a-b.example.org:443#AbC-123": {"a-b.example.org", 443, "AbC-123"},
	} {
		got, err := ParseTarget(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseTarget(got.String()); err != nil || again != got {
			t.Errorf("%q became %q, and that %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{
		"", ":7", "#key", "host:", "host:0", "host:65536", "host:-1", "host:+7", "host:07", "host:7:8", "host#", "host#a b",
		"[host]:7", "[192.0.2.1]:7", "[192.0.2.1]", "[]", "[]:7", "[", "]",
		"[::1", "::1]", "[[::1]]", "]::1[", "[::1]7", "[::1]:", "[::1]]:7", "[::1]:7:7", "[::1 ]", "::%]", "::1%", "[::1%]",
		"[fe80::1%a]b]:9", "fe80::1%e th", "fe80::1%e\n", "::ffff:192.0.2.1%eth0",
		"-host", ".host", "a..b", "host..", "ho st", "host/path", "http://host", "h\x00", "a%b", strings.Repeat("l", 64),
		"host:http", strings.Repeat("h.", 126) + "hh", strings.Repeat("h", 600), "host#" + strings.Repeat("k", 300),
		"192.0.2.256", "192.0.2.01", "192.0.2", "192.0.2.1.", "3221225985", "0xC0000201", "0x7f.0X1", "host.7",
		"0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "[ff02::1]:7", "255.255.255.255",
	} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%q became %+v", text, got)
		} else if strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseTarget("[::1#SECRET"); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the key of a cluster is in a message: %v", err)
	}
}

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:5", "192.0.2.1:9": "192.0.2.1:9", "::ffff:192.0.2.1": "192.0.2.1:5", "::": "[::]:5",
		"2001:db8::1": "[2001:db8::1]:5", "[2001:db8::1]": "[2001:db8::1]:5", "[fe80::1%eth0]:9": "[fe80::1%eth0]:9", "0.0.0.0:9": "0.0.0.0:9",
	} {
		if got, err := ParseEndpoint(text, 5); err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", ":9", "host", "192.0.2.1:0", "192.0.2.1:70000", "[::1", "::1]", "[192.0.2.1]:9", "[::1]9",
		"[fe80::1%a]b]:9", "fe80::1%\n", "224.0.0.1", "::ffff:255.255.255.255", "192.0.2.1#k", strings.Repeat("1", 600)} {
		if got, err := ParseEndpoint(text, 5); err == nil || got.IsValid() || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q was read as %v, %v", text, got, err)
		}
	}
}

// FuzzParseAddresses: what is understood is written so that it is understood as the same, and brackets stand
// in pairs.
func FuzzParseAddresses(f *testing.F) {
	for _, text := range []string{"host:1#k", "[::1]:1", "1.2.3.4", "[fe80::1%x]", "#", ":", "[", "::1#k", "[::1", "]", "::ffff:192.0.2.1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseTarget(text)
		if err == nil {
			again, err := ParseTarget(target.String())
			address, _, _ := strings.Cut(text, "#")
			if err != nil || again != target || target.Host == "" ||
				strings.Contains(address, "[") != strings.HasPrefix(address, "[") ||
				strings.Count(address, "[") != strings.Count(address, "]") {
				t.Fatalf("%q became %+v, and %q that %+v, %v", text, target, target, again, err)
			}
		} else if strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q: %q", text, err)
		}
		endpoint, err := ParseEndpoint(text, 5)
		if err != nil {
			if endpoint.IsValid() || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v beside %q", endpoint, err)
			}
			return
		}
		if again, err := ParseEndpoint(endpoint.String(), 7); err != nil || again != endpoint || endpoint.Addr().Is4In6() {
			t.Fatalf("%q became %v, and that %v, %v", text, endpoint, again, err)
		}
	})
}
