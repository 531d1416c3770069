package workload

import (
	"encoding/hex"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"colloid.net/workload/syntax"
)

// keySyntax is one key of a block: how it is written and how its statement changes the Spec.
type keySyntax struct {
	usage       string // arguments as in docs/configuration.md
	least, most int    // number of arguments
	repeats     bool   // may stand several times
	read        func(*blockReader, *syntax.Statement)
}

// many stands for "no bound of its own": the size of the encoded Spec is one.
const many = math.MaxInt

// keys is the vocabulary of a block. It is filled in init because its functions refer back to it
// through the reader.
var keys map[string]keySyntax

func init() {
	keys = map[string]keySyntax{
		"image":              {"REFERENCE", 1, 1, false, readImage},
		"module":             {"URL", 1, 1, false, readRuntime(RuntimeWasm)},
		"process":            {"/ABSOLUTE/PATH", 1, 1, false, readRuntime(RuntimeProcess)},
		"sha256":             {"64-HEX-DIGITS", 1, 1, false, readSHA256},
		"command":            {"WORD...", 1, many, false, readCommand},
		"args":               {"WORD...", 1, many, false, readArguments},
		"env":                {"NAME VALUE", 2, 2, true, readEnvironment},
		"secret":             {secretUsage, 4, 4, true, readSecret},
		"file":               {fileUsage, 4, 5, true, readFile},
		"env_digest":         {"64-HEX-DIGITS", 1, 1, false, readEnvironmentDigest},
		"replicas":           {"NUMBER", 1, 1, false, readReplicas},
		"port":               {"[HOST:]CONTAINER[/udp]", 1, 1, true, readPort},
		"vip":                {vipUsage, 1, 4, true, readVIP},
		"cpu":                {"500m|2|1.5", 1, 1, false, readCPU},
		"mem":                {"256mb|1gb", 1, 1, false, readMemory},
		"disk":               {"512mb|10gb", 1, 1, false, readDisk},
		"pids":               {"NUMBER", 1, 1, false, readPids},
		"volume":             {"NAME /PATH", 2, 2, true, readVolume},
		"replication_factor": {"NUMBER", 1, 1, false, readReplicationFactor},
		"capabilities":       {"NAME[,NAME...]", 1, 1, false, readCapabilities},
		"deterministic":      {"true|false", 1, 1, false, readDeterministic},
		"oversubscribe":      {"true|false", 1, 1, false, readOversubscribe},
		"no_failover":        {"true|false", 1, 1, false, readNoFailover},
		"read_only":          {"true|false", 1, 1, false, readReadOnly},
		"failover":           {"ap|quorum|none", 1, 1, false, readFailover},
		"health":             {healthUsage, 1, many, false, readHealth},
		"restart":            {"always|on-failure|never", 1, 1, false, readRestart},
		"update":             {updateUsage, 1, 4, false, readUpdate},
		"constraint":         {"LABEL=VALUE|LABEL!=VALUE", 1, 1, true, readConstraint},
		"arch":               {"amd64|arm64", 1, 1, false, readArchitecture},
		"stop_grace":         {"10s", 1, 1, false, readStopGrace},
		"user":               {"NAME[:GROUP]", 1, 1, false, readUser},
		"priority":           {"NUMBER", 1, 1, false, readPriority},
		"signature":          {"KEY SIGNATURE", 2, 2, false, readSignature},
		"extension":          {"HEX", 1, 1, true, readExtension},
	}
}

// place notes the statement that made the last entry of a list.
func (r *blockReader) place(s *syntax.Statement) {
	r.places[s.Name] = append(r.places[s.Name], s.Position)
}

// expected reports a bad argument with the form its key wants.
func (r *blockReader) expected(word syntax.Word, what string) {
	r.fail(word.Position, "unexpected %s, expected %s", syntax.Quote(word.Text), what)
}

// number reads an argument from least to most.
func (r *blockReader) number(word syntax.Word, least, most uint64, what string) uint64 {
	value, ok := number(word.Text, most)
	if !ok || value < least {
		r.expected(word, what)
		return 0
	}
	return value
}

func (r *blockReader) hex(word syntax.Word, dst []byte, what string) {
	raw, err := hex.DecodeString(word.Text)
	if err != nil || len(raw) != len(dst) {
		r.expected(word, what)
		return
	}
	copy(dst, raw)
}

// choice reads one of several words and gives its index.
func (r *blockReader) choice(word syntax.Word, choices ...string) int {
	index := slices.Index(choices, word.Text)
	if index < 0 {
		last := len(choices) - 1
		r.expected(word, strings.Join(choices[:last], ", ")+" or "+choices[last])
	}
	return max(index, 0)
}

// run sets what is run, once per block.
func (r *blockReader) run(s *syntax.Statement, runtime Runtime, image string) {
	if r.spec.Runtime != 0 {
		r.fail(s.Position, "%s besides %s, expected one of them", s.Name, runtimeKey(r.spec.Runtime))
		return
	}
	r.spec.Runtime, r.spec.Image = runtime, image
}

func readRuntime(runtime Runtime) func(*blockReader, *syntax.Statement) {
	return func(r *blockReader, s *syntax.Statement) { r.run(s, runtime, s.Arguments[0].Text) }
}

// readImage splits REFERENCE@sha256:HEX, so that the digest takes 32 bytes and not 71.
func readImage(r *blockReader, s *syntax.Statement) {
	word := s.Arguments[0]
	reference, digest, pinned := strings.Cut(word.Text, "@")
	r.run(s, RuntimeOCI, reference)
	if validReference(reference) && !wellFormedReference(reference) { // else the whole is judged below
		r.fail(word.Position, "%q is no image reference, expected [HOST[:PORT]/]NAME[:TAG] with the name in lower case, "+
			"for instance docker.io/nginx:1.27", reference)
	}
	if !pinned {
		return
	}
	if first, given := r.first["sha256"]; given {
		r.fail(word.Position, "digest is given twice (before in line %d), expected it once", first.Line)
		return
	}
	r.first["sha256"] = s.Position
	hexDigits, ok := strings.CutPrefix(digest, "sha256:")
	if !ok {
		r.expected(word, "REFERENCE@sha256:64-HEX-DIGITS")
		return
	}
	word.Text = hexDigits
	r.hex(word, r.spec.ImageDigest[:], "64 hexadecimal digits behind @sha256:")
}

// The parts of a reference, as registries take them.
var (
	registryName  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)
	referenceName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)
	referenceTag  = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,128}$`)
)

// wellFormedReference judges what a person wrote. What is stored is judged less strictly, by validReference:
// a cell must be able to keep what another version of this program let through.
func wellFormedReference(reference string) bool {
	if i := strings.LastIndexByte(reference, ':'); i >= 0 && !strings.Contains(reference[i:], "/") {
		if !referenceTag.MatchString(reference[i+1:]) {
			return false
		}
		reference = reference[:i]
	}
	host, name, split := strings.Cut(reference, "/")
	if !split || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return referenceName.MatchString(reference)
	}
	return ValidRegistryHost(host) && referenceName.MatchString(name)
}

// ValidRegistryHost reports whether a text is the HOST[:PORT] of a registry: a name, an IPv4 address, or an
// IPv6 address in brackets, with nothing left over.
func ValidRegistryHost(text string) bool {
	host := text
	if i := strings.LastIndexByte(text, ':'); i > strings.LastIndexByte(text, ']') {
		port, ok := number(text[i+1:], math.MaxUint16)
		if !ok || port == 0 {
			return false
		}
		host = text[:i]
	}
	if inside, bracketed := strings.CutPrefix(host, "["); bracketed {
		address, err := netip.ParseAddr(strings.TrimSuffix(inside, "]"))
		return strings.HasSuffix(host, "]") && err == nil && address.Is6() && address.Zone() == ""
	}
	return registryName.MatchString(host)
}

func readSHA256(r *blockReader, s *syntax.Statement) {
	r.hex(s.Arguments[0], r.spec.ImageDigest[:], "64 hexadecimal digits")
}

func readEnvironmentDigest(r *blockReader, s *syntax.Statement) {
	r.hex(s.Arguments[0], r.spec.EnvironmentDigest[:], "64 hexadecimal digits")
}

func texts(words []syntax.Word) []string {
	list := make([]string, len(words))
	for i, word := range words {
		list[i] = word.Text
	}
	return list
}

func readCommand(r *blockReader, s *syntax.Statement)   { r.spec.Command = texts(s.Arguments) }
func readArguments(r *blockReader, s *syntax.Statement) { r.spec.Arguments = texts(s.Arguments) }

func readEnvironment(r *blockReader, s *syntax.Statement) {
	name, value := s.Arguments[0], s.Arguments[1].Text
	if !validVariable(name.Text) {
		r.expected(name, "the name of a variable: letters, digits and _")
		return
	}
	r.env = append(r.env, variable{name.Text, name.Text + "=" + value, s.Position})
	if slices.ContainsFunc(r.env[:len(r.env)-1], func(v variable) bool { return v.name == name.Text }) {
		r.fail(name.Position, "variable %s is given twice, expected it once", name.Text)
	}
}

func readReplicas(r *blockReader, s *syntax.Statement) {
	r.spec.Replicas = uint16(r.number(s.Arguments[0], 0, math.MaxUint16, "a number from 0 to 65535"))
}

// cutProtocol takes /udp or /tcp off a port.
func cutProtocol(text string) (string, Protocol) {
	if port, udp := strings.CutSuffix(text, "/udp"); udp {
		return port, UDP
	}
	return strings.TrimSuffix(text, "/tcp"), TCP
}

func readPort(r *blockReader, s *syntax.Statement) {
	word := s.Arguments[0]
	text, protocol := cutProtocol(word.Text)
	host, container, mapped := strings.Cut(text, ":")
	if !mapped {
		host, container = "", host
	}
	inside, ok := number(container, math.MaxUint16)
	outside := uint64(0)
	hostOK := true
	if mapped {
		outside, hostOK = number(host, math.MaxUint16)
		hostOK = hostOK && outside != 0
	}
	if !ok || !hostOK || inside == 0 {
		r.expected(word, "[HOST:]CONTAINER[/udp] with ports from 1 to 65535")
		return
	}
	r.place(s)
	r.spec.Ports = append(r.spec.Ports, Port{uint16(outside), uint16(inside), protocol})
}

const vipUsage = "ADDRESS:PORT[/udp] [mode=l2|l3|both] [path=tunnel|dsr|nat] [target=PORT]"

func readVIP(r *blockReader, s *syntax.Statement) {
	word := s.Arguments[0]
	text, protocol := cutProtocol(word.Text)
	address, err := netip.ParseAddrPort(text)
	if err != nil || address.Port() == 0 || address.Addr().Zone() != "" {
		r.expected(word, "ADDRESS:PORT[/udp] with an IPv6 address in brackets, for instance 10.0.0.100:80")
		return
	}
	vip := VIP{Address: address.Addr().As16(), Port: address.Port(), Protocol: protocol}
	r.options(s.Arguments[1:], vipUsage, func(name string, value syntax.Word) bool {
		switch name {
		case "mode":
			vip.Mode = uint8(r.choice(value, "l2", "l3", "both")) + 1
		case "path":
			vip.Path = uint8(r.choice(value, "tunnel", "dsr", "nat"))
		case "target":
			vip.Target = uint16(r.number(value, 1, math.MaxUint16, "a port from 1 to 65535"))
		default:
			return false
		}
		return true
	})
	r.place(s)
	r.spec.VIPs = append(r.spec.VIPs, vip)
}

// options reads NAME=VALUE words, each name once; set reports whether it knows the name.
func (r *blockReader) options(words []syntax.Word, usage string, set func(string, syntax.Word) bool) {
	seen := make(map[string]bool)
	for _, word := range words {
		name, value, assigned := strings.Cut(word.Text, "=")
		if seen[name] {
			r.fail(word.Position, "option %s is given twice, expected it once", name)
			continue
		}
		seen[name] = true
		valueWord := word
		valueWord.Text = value
		if !assigned || !set(name, valueWord) {
			r.expected(word, usage)
		}
	}
}

func readCPU(r *blockReader, s *syntax.Statement) {
	value, ok := parseCPU(s.Arguments[0].Text)
	if !ok || value == 0 {
		r.expected(s.Arguments[0], "thousandths of a core as in 500m, or cores as in 2 or 1.5")
	}
	r.spec.CPUMillicores = value
}

func readMemory(r *blockReader, s *syntax.Statement) { r.spec.MemoryMiB = r.mebibytes(s.Arguments[0]) }
func readDisk(r *blockReader, s *syntax.Statement)   { r.spec.DiskMiB = r.mebibytes(s.Arguments[0]) }

func (r *blockReader) mebibytes(word syntax.Word) uint32 {
	value, ok := parseUnits(word.Text, memoryUnits)
	if !ok || value == 0 {
		r.expected(word, "a size as in 256mb or 1gb (1mb = 1048576 bytes)")
	}
	return value
}

func readPids(r *blockReader, s *syntax.Statement) {
	r.spec.PidsMax = uint32(r.number(s.Arguments[0], 1, PidsLimitMax, "a number from 1 to 4194304"))
}

func readVolume(r *blockReader, s *syntax.Statement) {
	r.place(s)
	r.spec.Volumes = append(r.spec.Volumes, Volume{s.Arguments[0].Text, s.Arguments[1].Text})
}

func readReplicationFactor(r *blockReader, s *syntax.Statement) {
	r.spec.ReplicationFactor = uint8(r.number(s.Arguments[0], 1, ReplicationFactorMax, "a number from 1 to 16"))
}

func readCapabilities(r *blockReader, s *syntax.Statement) {
	word := s.Arguments[0]
	for name := range strings.SplitSeq(word.Text, ",") {
		bit := CapabilityOf(name)
		if bit == 0 || r.spec.Capabilities&bit != 0 {
			r.expected(word, "names separated by commas, each once: "+CapabilityNames(CapabilitiesKnown))
			return
		}
		r.spec.Capabilities |= bit
	}
}

func readDeterministic(r *blockReader, s *syntax.Statement) {
	r.spec.Deterministic = r.boolean(s.Arguments[0])
}

func readOversubscribe(r *blockReader, s *syntax.Statement) {
	r.spec.Oversubscribe = r.boolean(s.Arguments[0])
}

func readNoFailover(r *blockReader, s *syntax.Statement) {
	r.spec.NoFailover = r.boolean(s.Arguments[0])
}

func readReadOnly(r *blockReader, s *syntax.Statement) {
	r.spec.ReadOnlyRoot = r.boolean(s.Arguments[0])
}

func (r *blockReader) boolean(word syntax.Word) bool { return r.choice(word, "true", "false") == 0 }
