package registry

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/runnerd/trust"
)

// TestF146_OnlyPublicAddresses holds the table of what is not the public internet, however it is spelled.
func TestF146_OnlyPublicAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "104.16.0.1": true, "2606:4700::1": true, "::ffff:1.1.1.1": true, "64:ff9b::101:101": true,
		"127.0.0.1": false, "127.255.255.254": false, "0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "172.16.0.1": false,
		"172.31.255.255": false, "172.32.0.1": true, "192.168.1.1": false, "169.254.169.254": false, "100.64.0.1": false,
		"100.100.100.200": false, "192.0.0.192": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false,
		"255.255.255.255": false, "203.0.113.7": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::7f00:1": false, "fe80::1": false,
		"fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "fec0::1": false, "ff02::1": false, "2001:db8::1": false,
		"2001:0:1::1": false, "64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "2002:7f00:1::": false, "2002:a9fe:a9fe::": false,
		"64:ff9b:1::a00:1": false,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}

func TestNormalize(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for reference, want := range map[string]string{
		"nginx": "docker.io/library/nginx:latest", "docker.io/nginx:1": "docker.io/library/nginx:1",
		"index.docker.io/a/b:1": "docker.io/a/b:1", "ghcr.io/a/b": "ghcr.io/a/b:latest",
		"localhost:5000/x:1": "localhost:5000/x:1", "a/b" + digest: "docker.io/a/b:latest", "[::1]:5000/x:1": "[::1]:5000/x:1",
		"": "", "UPPER/case": "", "a b": "", "https://x/y": "", "../x": "",
	} {
		full, repository, host, err := Normalize(reference)
		if full != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", reference, full, err, want)
		}
		if err == nil && (!strings.HasPrefix(repository, host+"/") || !strings.HasPrefix(full, repository+":")) {
			t.Errorf("%q: %q, %q, %q", reference, full, repository, host)
		}
	}
	for reference, want := range map[string]string{
		"https://Example.org/x.wasm": "example.org", "https://example.org:443/x": "example.org", "oci://ghcr.io/a/b": "ghcr.io",
		"http://10.0.0.1:80/x": "10.0.0.1:80", "nginx": "docker.io", "": "",
	} {
		if got := HostOf(reference); got != want {
			t.Errorf("host of %q is %q, want %q", reference, got, want)
		}
	}
}

// TestF146_TheFileOfCredentials holds its format and who may read it.
func TestF146_TheFileOfCredentials(t *testing.T) {
	good := "registry docker.io {\n username a\n password \"p w\"\n}\nregistry R.example:5000 {\n username b; password c\n token_host auth.example\n}\n"
	found, err := ParseCredentials("credentials", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	docker, other := found["docker.io"], found["r.example:5000"]
	if docker.Password != "p w" || docker.TokenHosts[0] != "auth.docker.io" || other.Username != "b" || other.TokenHosts[0] != "auth.example" {
		t.Errorf("%+v", found)
	}
	for text, want := range map[string]string{
		"user x":                    "unexpected user",
		"registry x":                "unexpected registry",
		"registry x { username a }": "no password",
		"registry x { secret a }":   "unknown statement secret",
		"registry [::1 { username a; password b }":              "expected HOST",
		"registry x { username a; password b; token_host x/y }": "token_host is",
		"registry x { username a b }":                           "needs one word",
		good + good:                                             "given twice",
		"registry x {\nusername a":                              "",
		"registry x { username { a } }\n":                       "needs one word",
	} {
		if _, err := ParseCredentials("credentials", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "credentials")
	if none, err := LoadCredentials(path, trust.Own()); err != nil || len(none) != 0 {
		t.Errorf("absent: %v, %v", none, err)
	}
	for mode, fine := range map[os.FileMode]bool{0o600: true, 0o640: true, 0o644: false, 0o660: false} {
		if err := os.WriteFile(path, []byte(good), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
		if _, err := LoadCredentials(path, trust.Own()); (err == nil) != fine {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

func FuzzParseCredentials(f *testing.F) {
	f.Add([]byte("registry a { username b; password c }"))
	f.Fuzz(func(t *testing.T, text []byte) {
		found, err := ParseCredentials("credentials", text)
		if err != nil {
			return
		}
		for host, c := range found {
			if c.Username == "" || c.Password == "" || host != strings.ToLower(host) {
				t.Fatalf("%q: %+v", host, c)
			}
		}
	})
}
