package podnet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/record"
	"colloid.net/workload"
)

// lease is what one container has.
type lease struct {
	number int // of its addresses in the ranges
	ports  []workload.Port
	owner  string // the container that has it, if it was made under another name; "" = the name
}

// pool is the part of a network that survives runnerd.
type pool struct {
	path       string
	bridge     string // "" = there is no network
	ipv4, ipv6 netip.Prefix
	next       int // where the search for a free number begins: a number comes back as late as possible
	leases     map[string]lease
}

// ErrFull means that every address is in use.
var ErrFull = errors.New("are in use")

// fileName is the pool's file in the state directory.
const fileName = "podnet"

// openPool reads the file; it need not exist. A damaged file is an error: guessing would give addresses
// twice.
func openPool(directory string) (*pool, error) {
	p := &pool{path: filepath.Join(directory, fileName), leases: map[string]lease{}}
	r, err := record.Load(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = p.parse(r)
	}
	if err != nil && beforeBoot(p.path) { // Keep promises no more, and nothing of it is left in the kernel
		return &pool{path: p.path, leases: map[string]lease{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the addresses in %s: %w: end all containers and remove the file", p.path, err)
	}
	return p, nil
}

// beforeBoot reports whether a file was last written before the host started, by its clock.
func beforeBoot(path string) bool {
	info, err := os.Stat(path)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return false
	}
	return info.ModTime().Before(time.Now().Add(-time.Duration(up.Nano())))
}

func (p *pool) parse(r record.Record) (err error) {
	if p.bridge = r.Get("bridge"); p.bridge == "" {
		if len(r["lease"]) > 0 {
			return errors.New("leases without a bridge")
		}
		return nil
	}
	if err := policy.CheckBridge(p.bridge); err != nil {
		return err
	}
	if p.ipv4, err = netip.ParsePrefix(r.Get("ipv4")); err != nil {
		return err
	}
	if p.ipv6, err = netip.ParsePrefix(r.Get("ipv6")); err != nil {
		return err
	}
	if !p.ipv4.Addr().Is4() || !p.ipv6.Addr().Is6() {
		return errors.New("a range of the wrong family")
	}
	if err := errors.Join(policy.CheckPrefix(p.ipv4), policy.CheckPrefix(p.ipv6)); err != nil {
		return err
	}
	p.next = int(r.Int("next"))
	used := map[int]bool{}
	for _, text := range r["lease"] {
		name, l, err := parseLease(text)
		if err != nil || used[l.number] || l.number > p.capacity()+1 {
			return fmt.Errorf("lease %.80q", text)
		}
		used[l.number] = true
		p.leases[name] = l
	}
	if len(p.leases) != len(r["lease"]) {
		return errors.New("an instance has two leases")
	}
	return nil
}

// parseLease reads "NUMBER NAME HOST:CONTAINER/PROTOCOL ... =OWNER", where the last may be absent.
func parseLease(text string) (name string, l lease, err error) {
	words := strings.Fields(text)
	if len(words) < 2 || len(words) > 3+PortsMax {
		return "", l, errors.New("malformed")
	}
	if l.number, err = strconv.Atoi(words[0]); err != nil || l.number < 2 || l.number > LeasesMax+1 {
		return "", l, errors.New("number out of range")
	}
	if owner, named := strings.CutPrefix(words[len(words)-1], "="); named {
		l.owner, words = owner, words[:len(words)-1]
	}
	if len(words) < 2 {
		return "", l, errors.New("no name")
	}
	for _, word := range words[2:] {
		var port workload.Port
		if _, err := fmt.Sscanf(word, "%d:%d/%d", &port.Host, &port.Container, &port.Protocol); err != nil {
			return "", l, err
		}
		l.ports = append(l.ports, port)
	}
	if l.text(words[1]) != text {
		return "", l, errors.New("not as it is written")
	}
	return words[1], l, nil
}

// text is what parseLease reads.
func (l *lease) text(name string) string {
	text := strconv.Itoa(l.number) + " " + name
	for _, port := range l.ports {
		text += fmt.Sprintf(" %d:%d/%d", port.Host, port.Container, port.Protocol)
	}
	if l.owner != "" {
		text += " =" + l.owner
	}
	return text
}

func (p *pool) record() record.Record {
	r := record.Record{}
	r.Set("bridge", p.bridge)
	if p.bridge != "" {
		r.Set("ipv4", p.ipv4.String())
		r.Set("ipv6", p.ipv6.String())
	}
	r.SetInt("next", int64(p.next))
	for _, name := range p.names() {
		l := p.leases[name]
		r.Add("lease", l.text(name))
	}
	return r
}

func (p *pool) save() error {
	if err := record.Keep(p.path, p.record()); err != nil {
		return fmt.Errorf("write down the addresses: %w", err)
	}
	return nil
}

// names lists who has a lease, in a fixed order.
func (p *pool) names() []string {
	names := make([]string, 0, len(p.leases))
	for name := range p.leases {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (p *pool) capacity() int { return min(capacity(p.ipv4), capacity(p.ipv6)) }

// take gives a container its lease, the same one each time until drop. Owner is what it is called, if not name.
func (p *pool) take(name, owner string, ports []workload.Port) (lease, error) {
	l, known := p.leases[name]
	if known && slices.Equal(l.ports, ports) && l.owner == owner {
		return l, nil
	}
	if err := p.checkPorts(name, ports); err != nil {
		return lease{}, err
	}
	before := p.next
	if !known {
		var err error
		if l.number, err = p.free(); err != nil {
			return lease{}, err
		}
		p.next = l.number + 1
	}
	old := l
	l.ports, l.owner = slices.Clone(ports), owner
	p.leases[name] = l
	if err := p.save(); err != nil {
		p.next = before
		if delete(p.leases, name); known {
			p.leases[name] = old
		}
		return lease{}, err
	}
	return l, nil
}

func (p *pool) free() (int, error) {
	room := p.capacity()
	if len(p.leases) >= room {
		return 0, fmt.Errorf("all %d addresses of %s and %s %w: give containers a larger range with pod_network",
			room, p.ipv4, p.ipv6, ErrFull)
	}
	used := make(map[int]bool, len(p.leases))
	for _, l := range p.leases {
		used[l.number] = true
	}
	n := p.next
	for range room + 1 {
		if n < 2 || n > room+1 {
			n = 2
		}
		if !used[n] {
			return n, nil
		}
		n++
	}
	panic(fmt.Sprintf("podnet: no free number among %d with %d leases", room, len(p.leases)))
}

// checkPorts refuses a port that another container publishes.
func (p *pool) checkPorts(name string, ports []workload.Port) error {
	for _, other := range p.names() {
		if other == name {
			continue
		}
		for _, taken := range p.leases[other].ports {
			for _, port := range ports {
				if port.Host == taken.Host && port.Protocol == taken.Protocol {
					return fmt.Errorf("port %d/%s is published by container %s of this host", port.Host,
						protocolName(port.Protocol), cmp.Or(p.leases[other].owner, other))
				}
			}
		}
	}
	return nil
}

// drop takes a lease back, once nothing of it is left in the kernel.
func (p *pool) drop(name string) error {
	l, known := p.leases[name]
	if !known {
		return nil
	}
	delete(p.leases, name)
	if err := p.save(); err != nil {
		p.leases[name] = l
		return err
	}
	return nil
}

func protocolName(p workload.Protocol) string {
	if p == workload.UDP {
		return "udp"
	}
	return "tcp"
}

// published are the ports of a specification that the host shall take connections for.
func published(ports []workload.Port) []workload.Port {
	var list []workload.Port
	for _, port := range ports {
		if port.Host != 0 {
			list = append(list, port)
		}
	}
	return list
}
