package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"colloid.net/workload"
	"colloid.net/workload/syntax"
)

// Bounds of what concerns images.
const (
	RegistriesMax = 64
	patternsMax   = 256
)

// Registry is what differs for one registry, or server of modules, from all others: those are reached by
// HTTPS at public addresses, with the certificates that the system trusts (F146).
type Registry struct {
	Host    string // HOST or HOST:PORT
	HTTP    bool   // it is spoken to in plain HTTP
	Private bool   // it may have an address that is not public
	CA      string // file with the certificates to trust instead of the system's
}

// Sharing says which images this host gives to other cells of its cluster that pull them (F76).
type Sharing int

// Values of Sharing.
const (
	SharePublic Sharing = iota // those that this host got without credentials
	ShareAll
	ShareNone
)

var sharings = map[string]Sharing{"public": SharePublic, "all": ShareAll, "none": ShareNone}

// sharing reads share_images.
func (p *parser) sharing(s *syntax.Statement) {
	word := p.word(s, "public, all or none")
	if word == nil {
		return
	}
	value, known := sharings[word.Text]
	if !known {
		p.complain(word.Position, "share_images is %s, expected public, all or none", syntax.Quote(word.Text))
	}
	p.policy.ImagesShared = value
}

// CheckImage judges the repository of an image, completed: docker.io/library/nginx. A pattern is such a
// name, or the beginning of one with * behind it. What is denied is denied whatever is allowed; if
// nothing is said to be allowed, all else is (decision D2).
func (p *Policy) CheckImage(repository string) error {
	matches := func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return open && strings.HasPrefix(repository, prefix) || repository == pattern
	}
	if i := slices.IndexFunc(p.ImagesDenied, matches); i >= 0 {
		return fmt.Errorf("the host's policy denies image %s (image_deny %s)", syntax.Quote(repository), p.ImagesDenied[i])
	}
	if len(p.ImagesAllowed) > 0 && !slices.ContainsFunc(p.ImagesAllowed, matches) {
		return fmt.Errorf("the host's policy does not list image %s (image_allow)", syntax.Quote(repository))
	}
	return nil
}

// images reads image_allow and image_deny, which may stand several times.
func (p *parser) images(s *syntax.Statement, list *[]string) {
	if s.Block || len(s.Arguments) == 0 {
		p.complain(s.Position, "%s needs patterns as in docker.io/library/* and no block", s.Name)
		return
	}
	for _, word := range s.Arguments {
		star := strings.IndexByte(word.Text, '*')
		host, rest, found := strings.Cut(word.Text, "/")
		wild := word.Text == "*"
		named := strings.ContainsAny(host, ".:") || host == "localhost"
		if !wild && (!found || rest == "" || !named || strings.ContainsAny(word.Text, "@ ")) ||
			star >= 0 && star != len(word.Text)-1 || len(*list) >= patternsMax {
			p.complain(word.Position, "%s is %s, expected a complete repository as in docker.io/library/nginx, or the "+
				"beginning of one with * behind it, at most %d", s.Name, syntax.Quote(word.Text), patternsMax)
			continue
		}
		*list = append(*list, word.Text)
	}
}

func (p *parser) registry(s *syntax.Statement) {
	if len(s.Arguments) != 1 || !s.Block {
		p.complain(s.Position, "registry needs a host and a block, as in registry images.example:5000 { private }")
		return
	}
	host := strings.ToLower(s.Arguments[0].Text)
	known := slices.ContainsFunc(p.policy.Registries, func(r Registry) bool { return r.Host == host })
	switch {
	case !workload.ValidRegistryHost(host): // it would be the rule of no registry, without a word
		p.complain(s.Arguments[0].Position, "registry is %s, expected HOST, HOST:PORT or [IPV6]:PORT", syntax.Quote(host))
	case known:
		p.complain(s.Position, "registry %s is given twice, expected once", syntax.Quote(host))
	case len(p.policy.Registries) >= RegistriesMax:
		p.complain(s.Position, "more than %d registries", RegistriesMax)
	}
	registry := Registry{Host: host}
	for i := range s.Body {
		p.registryStatement(&registry, &s.Body[i])
	}
	p.policy.Registries = append(p.policy.Registries, registry)
}

func (p *parser) registryStatement(r *Registry, s *syntax.Statement) {
	words := len(s.Arguments)
	switch {
	case s.Block:
	case s.Name == "http" && words == 0:
		r.HTTP = true
		return
	case s.Name == "private" && words == 0:
		r.Private = true
		return
	case s.Name == "ca" && words == 1:
		path := s.Arguments[0].Text
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			p.complain(s.Arguments[0].Position, "ca %s is not a clean absolute path", syntax.Quote(path))
		}
		r.CA = path
		return
	}
	p.complain(s.Position, "unexpected %s, expected http, private or ca /PATH", s.Name)
}
