package policy

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"colloid.net/runnerd/sandbox"
	"colloid.net/workload"
	"colloid.net/workload/syntax"
)

// Containers is what a host says of containers. The zero value is the default (D2): they may run in a
// user namespace, see no path of the host and have the default capabilities.
type Containers struct {
	Denied       bool
	Runtime      string // path of an external OCI runtime, "" = runnerd's own
	Binds        []Bind
	Capabilities []string // beyond sandbox.DefaultCapabilities
	Network      Network
}

// Bind gives a directory of the host to the containers whose specification has a volume of its name.
type Bind struct {
	Name, Path string
	ReadOnly   bool
}

// bindsMax bounds the list.
const bindsMax = 64

// bindNever are places that no policy gives away: with them a container is root on the host.
var bindNever = []string{"/", "/proc", "/sys", "/dev", "/boot", "/etc", "/usr", "/bin", "/sbin", "/lib", "/root", "/run",
	"/var/lib/colloid", "/var/run"}

// containerStatement parses the statements about containers.
func (p *parser) containerStatement(s *syntax.Statement) {
	c := &p.policy.Containers
	switch s.Name {
	case "containers":
		c.Denied = !p.anyOrNone(s)
	case "runtime":
		if word := p.word(s, "the path of an OCI runtime"); word != nil {
			if !filepath.IsAbs(word.Text) || filepath.Clean(word.Text) != word.Text {
				p.complain(word.Position, "runtime %s is not a clean absolute path", syntax.Quote(word.Text))
			}
			c.Runtime = word.Text
		}
	case "bind":
		p.bind(s)
	case "capability":
		for i := range s.Arguments {
			word := &s.Arguments[i]
			name := strings.TrimPrefix(word.Text, "CAP_")
			if err := sandbox.CheckCapability(name); err != nil {
				p.complain(word.Position, "%v", err)
			} else if !slices.Contains(c.Capabilities, name) {
				c.Capabilities = append(c.Capabilities, name)
			}
		}
	}
}

func (p *parser) bind(s *syntax.Statement) {
	words := s.Arguments
	if s.Block || len(words) < 2 || len(words) > 3 || len(words) == 3 && words[2].Text != "read_only" {
		p.complain(s.Position, "bind needs the name of a volume, a path and perhaps read_only, as in bind media /srv/media")
		return
	}
	b := Bind{Name: words[0].Text, Path: words[1].Text, ReadOnly: len(words) == 3}
	if !filepath.IsAbs(b.Path) || filepath.Clean(b.Path) != b.Path || slices.Contains(bindNever, b.Path) {
		p.complain(words[1].Position, "path %s cannot be given to containers, expected a clean absolute path that is no "+
			"directory of the system", syntax.Quote(b.Path))
		return
	}
	if _, twice := p.policy.Containers.Bind(b.Name); twice || len(p.policy.Containers.Binds) >= bindsMax {
		p.complain(words[0].Position, "bind %s is given twice, or there are more than %d", syntax.Quote(b.Name), bindsMax)
		return
	}
	p.policy.Containers.Binds = append(p.policy.Containers.Binds, b)
}

// Bind finds what the host gives to volumes of a name.
func (c *Containers) Bind(name string) (Bind, bool) {
	i := slices.IndexFunc(c.Binds, func(b Bind) bool { return b.Name == name })
	if i < 0 {
		return Bind{}, false
	}
	return c.Binds[i], true
}

// CheckContainers reports whether containers may run at all, and with them whether images belong here.
func (p *Policy) CheckContainers() error {
	if p.Containers.Denied {
		return errors.New("the host's policy allows no containers (containers none)")
	}
	return nil
}

// checkContainer compares the specification of a container with the policy.
func (p *Policy) checkContainer(spec *workload.Spec) (Permit, error) {
	if err := p.CheckContainers(); err != nil {
		return Permit{}, err
	}
	for _, port := range spec.Ports {
		if port.Host != 0 && port.Host < p.PortMin {
			return Permit{}, fmt.Errorf("port %d is below port_min %d of the host's policy", port.Host, p.PortMin)
		}
	}
	if err := checkVariables(spec.Environment); err != nil {
		return Permit{}, err
	}
	for _, words := range [][]string{spec.Command, spec.Arguments, spec.Health.Command} {
		if err := checkWords(words); err != nil {
			return Permit{}, err
		}
	}
	if spec.Health.Kind == workload.HealthExec && len(spec.Health.Command) == 0 {
		return Permit{}, errors.New("the exec health check names no program")
	}
	return Permit{Image: spec.Image, Containers: p.Containers}, nil
}
