package policy

import (
	"strings"
	"testing"
)

// TestF146_PolicyOfRegistriesAndImages holds the syntax, and which images it lets pass.
func TestF146_PolicyOfRegistriesAndImages(t *testing.T) {
	p, err := Parse("policy", []byte(`
registry Images.Example:5000 { http; private }
registry other.example { ca /etc/colloid/other.pem }
image_allow docker.io/library/* images.example:5000/*
image_allow ghcr.io/team/web
image_deny docker.io/library/bad* docker.io/library/nginx
`))
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Registries[0]; r.Host != "images.example:5000" || !r.HTTP || !r.Private || r.CA != "" {
		t.Errorf("%+v", r)
	}
	if r := p.Registries[1]; r.HTTP || r.Private || r.CA != "/etc/colloid/other.pem" {
		t.Errorf("%+v", r)
	}
	for repository, want := range map[string]string{
		"docker.io/library/redis": "", "docker.io/library/nginx": "image_deny docker.io/library/nginx",
		"docker.io/library/badger": "image_deny docker.io/library/bad*", "ghcr.io/team/web": "",
		"ghcr.io/team/web2": "does not list image", "images.example:5000/a/b": "", "quay.io/x": "does not list image",
		"docker.io/libraryx": "does not list image",
	} {
		err := p.CheckImage(repository)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", repository, err, want)
		}
	}
	if err := Empty().CheckImage("docker.io/library/nginx"); err != nil {
		t.Errorf("without a word in the policy: %v", err)
	}
	denied, err := Parse("policy", []byte("image_deny *"))
	if err != nil || denied.CheckImage("docker.io/library/nginx") == nil {
		t.Errorf("image_deny *: %v", err)
	}
	for text, want := range map[string]Sharing{
		"": SharePublic, "share_images public": SharePublic, "share_images all": ShareAll, "share_images none": ShareNone,
	} {
		if p, err := Parse("policy", []byte(text)); err != nil || p.ImagesShared != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"share_images":                       "expected public, all or none",
		"share_images yes":                   "expected public, all or none",
		"share_images all none":              "expected public, all or none",
		"share_images all\nshare_images all": "given twice",
		"registry x":                         "needs a host and a block",
		"registry x { }\nregistry X { }":     "given twice",
		"registry x/y { }":                   "expected HOST",
		"registry [::1 { }":                  "expected HOST",
		"registry ::1 { }":                   "expected HOST",
		"registry x:port { }":                "expected HOST",
		"registry https://x { }":             "expected HOST",
		"registry x { http yes }":            "unexpected http",
		"registry x { ca relative.pem }":     "clean absolute path",
		"registry x { nonsense }":            "unexpected nonsense",
		"image_allow":                        "needs patterns",
		"image_allow nginx":                  "complete repository",
		"image_allow library/nginx":          "complete repository",
		"image_allow docker.io/*/nginx":      "complete repository",
		"image_allow docker.io/x@sha256:a":   "complete repository",
		strings.Repeat("registry x { }\n", 1) + "image_deny a b": "complete repository",
	} {
		if _, err := Parse("policy", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
