package policy

import (
	"encoding/hex"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"colloid.net/workload/syntax"
)

// Parse reads the text of a policy. The error names every complaint with its line.
func Parse(file string, source []byte) (*Policy, error) {
	tree, err := syntax.Parse(file, source)
	if err != nil {
		return nil, err
	}
	p := &parser{policy: Empty(), seen: map[string]bool{}}
	p.policy.paths = map[string]int{}
	for i := range tree {
		if p.errors.Full() {
			break
		}
		p.statement(&tree[i])
	}
	if err := p.errors.Err(); err != nil {
		return nil, err
	}
	return p.policy, nil
}

type parser struct {
	policy *Policy
	errors syntax.Errors
	seen   map[string]bool
}

func (p *parser) complain(at syntax.Position, format string, arguments ...any) {
	p.errors.Add(syntax.Errorf(at, format, arguments...))
}

func (p *parser) statement(s *syntax.Statement) {
	switch s.Name { // what may stand several times
	case "process":
		p.process(s)
		return
	case "bind", "capability":
		p.containerStatement(s)
		return
	case "registry":
		p.registry(s)
		return
	case "image_allow":
		p.images(s, &p.policy.ImagesAllowed)
		return
	case "image_deny":
		p.images(s, &p.policy.ImagesDenied)
		return
	case "exec":
		p.exec(s)
		return
	case "operator":
		p.operator(s)
		return
	}
	if p.seen[s.Name] {
		p.complain(s.Position, "%s is given twice, expected once", s.Name)
		return
	}
	p.seen[s.Name] = true
	switch s.Name {
	case "wasm":
		p.wasm(s)
	case "containers", "runtime":
		p.containerStatement(s)
	case "pod_network", "pod_bridge":
		p.networkStatement(s)
	case "share_images":
		p.sharing(s)
	case "allow_unlimited":
		if s.Block || len(s.Arguments) > 0 {
			p.complain(s.Position, "allow_unlimited stands alone")
		}
		p.policy.AllowUnlimited = true
	case "instances":
		p.policy.Instances = int(p.number(s, "a number", 0, InstancesMax, units{}))
	case "cpu":
		p.policy.CPUMillicores = uint32(p.number(s, "millicores as in 1500m", 1, 1<<30, units{"m": 1}))
	case "memory":
		amount := p.number(s, "an amount as in 512mb or 2gb", 1, 1<<31, units{"mb": 1, "gb": 1024})
		p.policy.MemoryMiB = uint32(amount)
	case "log_rate":
		rate := p.number(s, "bytes per second as in 256kb", 0, 1<<30, units{"": 1, "kb": 1 << 10, "mb": 1 << 20})
		p.policy.LogRate = int(rate)
	case "port_min":
		p.policy.PortMin = uint16(p.number(s, "a port", 1, 65535, units{}))
	case "meshd_user":
		if word := p.word(s, "a user name or id"); word != nil {
			if account, ok := p.account(word); ok {
				p.policy.MeshdUID = int64(account.UID)
			}
		}
	default:
		p.complain(s.Position, "unknown statement %s, expected process, wasm, containers, runtime, bind, capability, "+
			"pod_network, pod_bridge, allow_unlimited, registry, image_allow, image_deny, share_images, exec, operator, instances, cpu, memory, "+
			"log_rate, port_min or meshd_user", s.Name)
	}
}

// word is the one argument of a statement without a block.
func (p *parser) word(s *syntax.Statement, expected string) *syntax.Word {
	if s.Block || len(s.Arguments) != 1 {
		p.complain(s.Position, "%s has %d arguments, expected %s", s.Name, len(s.Arguments), expected)
		return nil
	}
	return &s.Arguments[0]
}

// units are the suffixes of a number and what one of them is worth; none given means a bare number.
type units map[string]uint64

func (p *parser) number(s *syntax.Statement, expected string, least, most uint64, u units) uint64 {
	word := p.word(s, expected)
	if word == nil {
		return least
	}
	digits := strings.TrimRight(word.Text, "abcdefghijklmnopqrstuvwxyz")
	worth, known := u[word.Text[len(digits):]]
	if len(u) == 0 && digits == word.Text {
		worth, known = 1, true
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || !known || n*worth < least || n*worth > most {
		p.complain(word.Position, "%s is %s, expected %s, from %d to %d", s.Name, syntax.Quote(word.Text),
			expected, least, most)
		return least
	}
	return n * worth
}

func (p *parser) process(s *syntax.Statement) {
	if len(s.Arguments) != 1 || !s.Block {
		p.complain(s.Position, "process needs a path and a block, as in process /usr/bin/hello { sha256 any }")
		return
	}
	path := s.Arguments[0].Text
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		p.complain(s.Arguments[0].Position, "path %s is not a clean absolute path", syntax.Quote(path))
	}
	if _, twice := p.policy.paths[path]; twice {
		p.complain(s.Position, "process %s is given twice, expected once", syntax.Quote(path))
	}
	if len(p.policy.Processes) >= ProcessesMax {
		p.complain(s.Position, "more than %d processes", ProcessesMax)
		return
	}
	process := Process{Path: path}
	seen := map[string]bool{}
	for i := range s.Body {
		body := &s.Body[i]
		if seen[body.Name] && body.Name != "sha256" && body.Name != "port" {
			p.complain(body.Position, "%s is given twice, expected once", body.Name)
		}
		seen[body.Name] = true
		p.processStatement(&process, body)
	}
	if len(process.Digests) == 0 && !process.AnyDigest {
		p.complain(s.End, "process %s has no sha256, expected the digest of the file or the word any", path)
	}
	if len(process.Users) == 0 {
		process.Users = []User{defaultUser()}
	}
	p.policy.paths[path] = len(p.policy.Processes)
	p.policy.Processes = append(p.policy.Processes, process)
}

func (p *parser) processStatement(process *Process, s *syntax.Statement) {
	if s.Block || len(s.Arguments) == 0 {
		p.complain(s.Position, "%s needs an argument and no block", s.Name)
		return
	}
	switch s.Name {
	case "sha256":
		p.digests(process, s)
	case "user":
		for i := range s.Arguments {
			if account, ok := p.account(&s.Arguments[i]); ok && len(process.Users) < usersMax {
				process.Users = append(process.Users, account)
			}
		}
	case "args":
		process.Arguments = p.anyOrNone(s)
	case "env":
		process.Variables = p.anyOrNone(s)
	case "port":
		for i := range s.Arguments {
			if r, ok := p.ports(&s.Arguments[i]); ok && len(process.Ports) < portsMax {
				process.Ports = append(process.Ports, r)
			}
		}
	default:
		p.complain(s.Position, "unknown statement %s, expected sha256, user, args, env or port", s.Name)
	}
}

func (p *parser) digests(process *Process, s *syntax.Statement) {
	for i := range s.Arguments {
		word := &s.Arguments[i]
		if word.Text == "any" {
			process.AnyDigest = true
			continue
		}
		digest, err := hex.DecodeString(word.Text)
		if err != nil || len(digest) != 32 || len(process.Digests) >= digestsMax {
			p.complain(word.Position, "sha256 is %s, expected 64 hexadecimal digits or any, at most %d of them",
				syntax.Quote(word.Text), digestsMax)
			continue
		}
		process.Digests = append(process.Digests, [32]byte(digest))
	}
	if process.AnyDigest && len(process.Digests) > 0 {
		p.complain(s.Position, "sha256 has a digest and any, expected one of both")
	}
}

func (p *parser) anyOrNone(s *syntax.Statement) bool {
	if word := p.word(s, "any or none"); word != nil {
		switch word.Text {
		case "any":
			return true
		case "none":
		default:
			p.complain(word.Position, "%s is %s, expected any or none", s.Name, syntax.Quote(word.Text))
		}
	}
	return false
}

func (p *parser) ports(word *syntax.Word) (Range, bool) {
	first, last, isRange := strings.Cut(word.Text, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from == 0 || from > to {
		p.complain(word.Position, "port is %s, expected a port or a range as in 8000-8999", syntax.Quote(word.Text))
		return Range{}, false
	}
	return Range{uint16(from), uint16(to)}, true
}

// account looks a user up. An id needs no entry in the host's table; its group is then the same number.
func (p *parser) account(word *syntax.Word) (User, bool) {
	entry, err := user.Lookup(word.Text)
	if err != nil {
		uid, numberErr := strconv.ParseUint(word.Text, 10, 32)
		if numberErr != nil || uid == 1<<32-1 {
			p.complain(word.Position, "user %s does not exist on this host", syntax.Quote(word.Text))
			return User{}, false
		}
		if entry, err = user.LookupId(word.Text); err != nil {
			return User{Name: word.Text, UID: uint32(uid), GID: uint32(uid)}, true
		}
	}
	uid, uidErr := strconv.ParseUint(entry.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(entry.Gid, 10, 32)
	if uidErr != nil || gidErr != nil {
		p.complain(word.Position, "user %s has no numeric id", syntax.Quote(word.Text))
		return User{}, false
	}
	return User{Name: word.Text, UID: uint32(uid), GID: uint32(gid)}, true
}

// nobody is the overflow id, which owns nothing on any distribution.
const nobody = 65534

// defaultUser is who runs a process without a user statement: nobody, or whoever started runnerd
// without root.
func defaultUser() User {
	if euid := os.Geteuid(); euid != 0 {
		return User{Name: strconv.Itoa(euid), UID: uint32(euid), GID: uint32(os.Getegid())}
	}
	return User{Name: "nobody", UID: nobody, GID: nobody}
}
