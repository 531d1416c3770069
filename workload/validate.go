package workload

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of single fields; the whole is bounded by SpecSizeMax.
const (
	PortsMax             = 16 // an endpoint value reports as many
	VIPsMax              = 16
	VolumesMax           = 16
	ConstraintsMax       = 16
	ReplicationFactorMax = 16
	ImageLengthMax       = 255
	TextLengthMax        = 255     // one argument, variable or mount path, in bytes
	CPUMillicoresMax     = 4096000 // 4096 cores
	MemoryMiBMax         = math.MaxUint16 * memoryUnitMiB
	PidsLimitMax         = 4194304 // the kernel's own bound
	StopGraceSecondsMax  = 3600
	labelLengthMax       = 63
	userLengthMax        = 64
	healthIntervalMin    = 100 // milliseconds
	healthIntervalMax    = 3600 * 1000
	healthTimeoutMin     = 10
	healthTimeoutMax     = 600 * 1000
	healthFixedSize      = 12 // bytes of the health record in front of path or words
)

// problem is one thing wrong with a Spec, named by the configuration key that sets it, so that the
// parser can show the line. index counts the statements of a key that may stand several times.
type problem struct {
	key   string
	index int
	text  string
}

// problems collects what Validate finds.
type problems []problem

func (l *problems) add(key string, index int, format string, arguments ...any) {
	*l = append(*l, problem{key, index, fmt.Sprintf(format, arguments...)})
}

// need adds a problem unless ok.
func (l *problems) need(ok bool, key string, format string, arguments ...any) {
	if !ok {
		l.add(key, 0, format, arguments...)
	}
}

// Validate reports the first thing that keeps s from being run or encoded, nil if there is none. The
// checks that need the key are in CheckKey.
func (s *Spec) Validate() error {
	for _, p := range s.check() {
		if p.key == "" {
			return fmt.Errorf("workload: %s", p.text)
		}
		return fmt.Errorf("workload: %s: %s", p.key, p.text)
	}
	return nil
}

func (s *Spec) check() problems {
	var l problems
	s.checkImage(&l)
	s.checkPorts(&l)
	s.checkVIPs(&l)
	s.checkSandbox(&l)
	s.checkVolumes(&l)
	s.checkWords(&l)
	s.checkHealth(&l)
	s.checkPolicies(&l)
	s.checkConstraints(&l)
	s.checkLimits(&l)
	s.checkUnknown(&l)
	if len(l) == 0 {
		if size := EncodedSize(s); size > SpecSizeMax {
			l.add("", 0, "specification takes %d bytes, expected at most %d: shorten names, arguments or variables",
				size, SpecSizeMax)
		}
	}
	return l
}

func (s *Spec) checkImage(l *problems) {
	key := runtimeKey(s.Runtime)
	if key == "" {
		l.add("", 0, "runtime class %d is unknown, expected image, module or process", s.Runtime)
		return
	}
	if len(s.Image) > ImageLengthMax {
		l.add(key, 0, "reference has %d bytes, expected at most %d", len(s.Image), ImageLengthMax)
		return
	}
	switch s.Runtime {
	case RuntimeOCI:
		l.need(validReference(s.Image), key, "%q is no image reference, expected for instance docker.io/nginx:1.27",
			s.Image)
	case RuntimeWasm:
		l.need(validModule(s.Image), key, "%q is no module address, expected an http, https or oci URL, or "+
			"file:///PATH", s.Image)
	case RuntimeProcess:
		l.need(validPath(s.Image) && s.Image != "/", key, "%q is no program, expected a clean absolute path",
			s.Image)
	}
}

// validReference accepts what can be an OCI reference without a digest; the registry client judges the
// rest. The digest has a field of its own.
func validReference(image string) bool {
	for _, r := range []byte(image) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && strings.IndexByte("._-/:[]", r) < 0 {
			return false
		}
	}
	return image != "" && strings.IndexByte("._-/:", image[0]) < 0
}

// validModule accepts a URL without user information: a specification is public in the cluster.
func validModule(module string) bool {
	if strings.ContainsFunc(module, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return false
	}
	u, err := url.Parse(module)
	if err != nil || u.User != nil || u.Fragment != "" {
		return false
	}
	switch u.Scheme {
	case "http", "https", "oci":
		return u.Host != ""
	case "file":
		return u.Host == "" && validPath(u.Path)
	}
	return false
}

// validPath accepts an absolute path in its shortest form, without control characters.
func validPath(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && validText(p) &&
		!strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// validText accepts what can be a C string and a word of the configuration language.
func validText(text string) bool {
	return len(text) <= TextLengthMax && utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}

func (s *Spec) checkPorts(l *problems) {
	if len(s.Ports) > PortsMax {
		l.add("port", PortsMax, "%d ports, expected at most %d", len(s.Ports), PortsMax)
		return
	}
	for i, port := range s.Ports {
		if port.Protocol > UDP || port.Container == 0 {
			l.add("port", i, "port %s is invalid, expected [HOST:]CONTAINER with 1 to 65535, or the same with /udp",
				port)
		}
		if s.Runtime == RuntimeProcess && port.Host != port.Container {
			l.add("port", i, "port %s of a process is mapped, expected a single number: it shares the host's network",
				port)
		}
		if slices.ContainsFunc(s.Ports[:i], port.collides) {
			l.add("port", i, "port %s is given twice, expected it once", port)
		}
	}
}

// collides reports whether both cannot be had at once.
func (p Port) collides(other Port) bool {
	if p.Protocol != other.Protocol || p.Host != other.Host {
		return false
	}
	return p.Host != 0 || p.Container == other.Container
}

// String gives the form of the configuration language.
func (p Port) String() string {
	text := strconv.Itoa(int(p.Container))
	if p.Host != 0 && p.Host != p.Container {
		text = strconv.Itoa(int(p.Host)) + ":" + text
	} else if p.Host != 0 {
		text = text + ":" + text
	}
	return text + p.Protocol.suffix()
}

// suffix is what stands behind a port number.
func (p Protocol) suffix() string {
	if p == UDP {
		return "/udp"
	}
	return ""
}

func (s *Spec) checkVIPs(l *problems) {
	if len(s.VIPs) > VIPsMax {
		l.add("vip", VIPsMax, "%d service addresses, expected at most %d", len(s.VIPs), VIPsMax)
		return
	}
	for i, vip := range s.VIPs {
		address := netip.AddrFrom16(vip.Address).Unmap()
		if !validVIP(address) || vip.Port == 0 {
			l.add("vip", i, "address %s is invalid, expected a unicast ADDRESS:PORT that is not local to one host",
				netip.AddrPortFrom(address, vip.Port))
		}
		if vip.Mode > VIPModeBoth || vip.Path > VIPPathNAT || vip.Protocol > UDP {
			l.add("vip", i, "mode %d, path %d or protocol %d is unknown, expected mode=l2|l3|both and "+
				"path=tunnel|dsr|nat", vip.Mode, vip.Path, vip.Protocol)
		}
		same := func(other VIP) bool {
			return other.Address == vip.Address && other.Port == vip.Port && other.Protocol == vip.Protocol
		}
		if slices.ContainsFunc(s.VIPs[:i], same) {
			l.add("vip", i, "address %s is given twice, expected it once", netip.AddrPortFrom(address, vip.Port))
		}
	}
}

func validVIP(address netip.Addr) bool {
	return !address.IsUnspecified() && !address.IsLoopback() && !address.IsMulticast() &&
		!address.IsLinkLocalUnicast() && address != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// TargetOf gives the container port behind a VIP of s: its own target; else the container port of the
// published port with the VIP's number, so that `port 80:8080` with `vip A:80` reaches 8080; else the
// VIP's number.
func (s *Spec) TargetOf(vip VIP) uint16 {
	if vip.Target != 0 {
		return vip.Target
	}
	for _, port := range s.Ports {
		if port.Host == vip.Port && port.Protocol == vip.Protocol {
			return port.Container
		}
	}
	return vip.Port
}

// checkSandbox checks what only modules have (section 13.5, F143).
func (s *Spec) checkSandbox(l *problems) {
	if s.Runtime != RuntimeWasm {
		l.need(s.Capabilities == 0, "capabilities", "only a module has capabilities, expected none")
		l.need(!s.Deterministic, "deterministic", "only a module can be deterministic, expected false")
		return
	}
	l.need(s.Capabilities&^CapabilitiesKnown == 0, "capabilities", "bits %#x are reserved, expected only %s",
		s.Capabilities&^CapabilitiesKnown, CapabilityNames(CapabilitiesKnown))
	if denied := s.Capabilities & CapabilitiesNondeterministic; s.Deterministic && denied != 0 {
		l.add("capabilities", 0, "%s cannot be had by a deterministic module, expected others",
			CapabilityNames(denied))
	}
}

func (s *Spec) checkVolumes(l *problems) {
	l.need(len(s.Volumes) == 0 || s.Stateful, "volume", "only a stateful workload has volumes, expected none")
	l.need(s.ReplicationFactor == 0 || s.Stateful, "replication_factor",
		"only a stateful workload replicates volumes, expected none")
	l.need(s.ReplicationFactor <= ReplicationFactorMax, "replication_factor", "%d copies, expected 1 to %d",
		s.ReplicationFactor, ReplicationFactorMax)
	if len(s.Volumes) > VolumesMax {
		l.add("volume", VolumesMax, "%d volumes, expected at most %d", len(s.Volumes), VolumesMax)
		return
	}
	for i, volume := range s.Volumes {
		if !ValidName(volume.Name) {
			l.add("volume", i, "%q is no volume name, expected 1 to %d of a-z, 0-9 and -", volume.Name,
				NameLengthMax)
		}
		if !validPath(volume.MountPath) || volume.MountPath == "/" {
			l.add("volume", i, "%q is no place for a volume, expected a clean absolute path below /",
				volume.MountPath)
		}
		same := func(other Volume) bool {
			return other.Name == volume.Name || other.MountPath == volume.MountPath
		}
		if slices.ContainsFunc(s.Volumes[:i], same) {
			l.add("volume", i, "name or path of volume %s is given twice, expected both once", volume.Name)
		}
	}
}

// checkWords checks command, arguments, environment and user.
func (s *Spec) checkWords(l *problems) {
	l.need(len(s.Command) == 0 || s.Runtime == RuntimeOCI, "command",
		"only an image has a command to replace, expected args")
	l.need(len(s.Command) == 0 || s.Command[0] != "", "command", "program is empty, expected its name")
	l.need(!slices.ContainsFunc(s.Command, invalidText), "command",
		"word is invalid, expected text of at most %d bytes",
		TextLengthMax)
	l.need(!slices.ContainsFunc(s.Arguments, invalidText), "args",
		"word is invalid, expected text of at most %d bytes",
		TextLengthMax)
	last := ""
	for i, variable := range s.Environment {
		name, _, assigned := strings.Cut(variable, "=")
		switch {
		case !assigned || !validVariable(name):
			l.add("env", i, "%q is no variable, expected a name of letters, digits and _ and a value", name)
		case invalidText(variable):
			l.add("env", i, "variable %s is invalid, expected text of at most %d bytes, the name included", name,
				TextLengthMax)
		case i > 0 && name == last:
			l.add("env", i, "variable %s is given twice, expected it once", name)
		case i > 0 && name < last:
			l.add("env", i, "variable %s stands behind %s, expected them sorted by name", name, last)
		}
		last = name
	}
	l.need(s.User == "" || validUser(s.User), "user",
		"%q is no user, expected NAME, UID, NAME:GROUP or UID:GID", s.User)
}

func invalidText(text string) bool { return !validText(text) }

func validVariable(name string) bool {
	for i, r := range []byte(name) {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

func validUser(user string) bool {
	name, group, split := strings.Cut(user, ":")
	return len(user) <= userLengthMax && validToken(name, "_.-") && (!split || validToken(group, "_.-"))
}

// validToken accepts one or more letters, digits and characters of others, beginning with none of them
// but _.
func validToken(text, others string) bool {
	for i, r := range []byte(text) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
		if !letter && (i == 0 || strings.IndexByte(others, r) < 0) {
			return false
		}
	}
	return text != ""
}

// checkUnknown checks the kept records of newer versions: they must be exactly what Decode keeps.
func (s *Spec) checkUnknown(l *problems) {
	last := byte(0)
	for i, record := range s.UnknownInformative {
		if len(record) < 2 || len(record) != 2+int(record[1]) || record[0] == 0 || record[0] < last ||
			record[0]&tlvCritical != 0 || tlvKnown(record[0]) {
			l.add("extension", i, "record %x is malformed, expected type, length and value of an unknown type in "+
				"ascending order", record)
			return
		}
		last = record[0]
	}
}
