package state

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"colloid.net/meshd/wire"
)

// Flags of a contact (F73). Placement reads them from the store only.
const (
	FlagBGP       = 1 << 0
	FlagGateway   = 1 << 1
	FlagOCI       = 1 << 2
	FlagWasm      = 1 << 3
	FlagProcess   = 1 << 4
	FlagEphemeral = 1 << 5
	// FlagDegraded marks a cell whose store is at its hard limit: it leaves H (F50).
	FlagDegraded = 1 << 6
	// FlagForbidsOCI, FlagForbidsWasm and FlagForbidsProcess say that the host's policy is why a runtime is
	// not offered.
	FlagForbidsOCI     = 1 << 8
	FlagForbidsWasm    = 1 << 9
	FlagForbidsProcess = 1 << 10
	// FlagUnsupervised marks a cell whose runnerd is gone: nobody looks after what runs there. For people;
	// placement does not read it, since what runs there runs on.
	FlagUnsupervised = 1 << 11
	// FlagNarrow marks a cell that could not send a full datagram lately: what it cannot send, it may not
	// receive either, and nobody would tell (F30).
	FlagNarrow = 1 << 15
)

// CandidatesMax bounds the addresses of a contact (F33).
const CandidatesMax = 4

// HomesMax bounds the home cells of a contact (F36).
const HomesMax = 2

// Candidate is one way to reach a cell.
type Candidate struct {
	Address netip.AddrPort
	Reach   wire.Reach
}

// CellContact is the value of health.<id>.contact.
type CellContact struct {
	SecretHash uint64 // of the instance secret: two instances with one id differ here (F2, F3)
	ClusterID  uint64
	Flags      uint32
	VersionMin uint8
	VersionMax uint8
	Features   uint32
	KeysMax    uint32 // the store limit of this cell (F50)
	Arch       string
	Hostname   string
	Software   string // version of the program, for people
	Candidates []Candidate
	// Reach is the class of the cell as a whole (specification 6.1), by dial-back and not by guessing (F31).
	Reach wire.Reach
	// Homes are the cells through which this one is reached as long as there is no direct path, best first
	// (F36). A ReachRelayed cell without any is out of placement.
	Homes  []wire.CellID
	Labels [][2]string // sorted by name
}

const (
	tagSecret     = 1
	tagCluster    = 2
	tagFlags      = 3
	tagVersions   = 4
	tagFeatures   = 5
	tagKeysMax    = 6
	tagArch       = 7
	tagHostname   = 8
	tagSoftware   = 9
	tagCandidate  = 10
	tagLabel      = 11
	tagReach      = 12
	tagHome       = 13
	candidateSize = 19
)

const contactSingle tags = 1<<tagSecret | 1<<tagCluster | 1<<tagFlags | 1<<tagVersions |
	1<<tagFeatures | 1<<tagKeysMax | 1<<tagArch | 1<<tagHostname | 1<<tagSoftware | 1<<tagReach

// LabelSizeMax bounds one label, name and value with the sign between them.
const LabelSizeMax = 128

// ValidLabel reports whether a label can be published: a name of printable ASCII without "=", a value
// of printable ASCII, together at most LabelSizeMax bytes.
func ValidLabel(name, value string) bool {
	if name == "" || strings.Contains(name, "=") || len(name)+1+len(value) > LabelSizeMax {
		return false
	}
	_, errName := textOf([]byte(name))
	_, errValue := textOf([]byte(value))
	return errName == nil && errValue == nil
}

// AppendCellContact encodes c. Texts are cut (architecture 16 bytes, hostname 63, software 31) and
// made printable. Labels are sorted; invalid ones, all but the first of a name, and those for which the
// value of 512 bytes has no room are left out. It panics on more than CandidatesMax candidates, on
// candidates without a usable address and on VersionMin > VersionMax: a contact that nobody can read
// would hide the cell.
func AppendCellContact(dst []byte, c CellContact) []byte {
	if len(c.Candidates) > CandidatesMax {
		panic("state: too many candidates")
	}
	if len(c.Homes) > HomesMax || c.Reach > wire.ReachRelayed {
		panic("state: homes or reachability class that nobody would accept")
	}
	if c.VersionMin > c.VersionMax {
		panic("state: least version above the greatest")
	}
	start := len(dst)
	dst = append(dst, valueVersion)
	dst = appendTLV64(dst, tagSecret, c.SecretHash)
	dst = appendTLV64(dst, tagCluster, c.ClusterID)
	dst = appendTLV32(dst, tagFlags, c.Flags)
	dst = appendTLV(dst, tagVersions, []byte{c.VersionMin, c.VersionMax})
	dst = appendTLV32(dst, tagFeatures, c.Features)
	dst = appendTLV32(dst, tagKeysMax, c.KeysMax)
	dst = appendTLV(dst, tagArch, Printable(c.Arch, 16))
	dst = appendTLV(dst, tagHostname, Printable(c.Hostname, 63))
	dst = appendTLV(dst, tagSoftware, Printable(c.Software, 31))
	for _, candidate := range c.Candidates {
		if !candidate.valid() {
			panic("state: candidate without a usable address: " + candidate.Address.String())
		}
		raw := candidate.Address.Addr().As16()
		field := binary.BigEndian.AppendUint16(raw[:], candidate.Address.Port())
		dst = appendTLV(dst, tagCandidate, append(field, byte(candidate.Reach)))
	}
	var tail []byte // behind the labels, which take the room that is left
	if c.Reach != wire.ReachUnknown {
		tail = appendTLV(tail, tagReach, []byte{byte(c.Reach)})
	}
	for _, home := range c.Homes {
		tail = appendTLV64(tail, tagHome, uint64(home))
	}
	labels := slices.SortedStableFunc(slices.Values(c.Labels), func(a, b [2]string) int {
		return strings.Compare(a[0], b[0])
	})
	last := ""
	for _, label := range labels {
		size := 2 + len(label[0]) + 1 + len(label[1])
		if label[0] == last || !ValidLabel(label[0], label[1]) || len(dst)-start+size+len(tail) > wire.ValueMax {
			continue
		}
		last = label[0]
		dst = appendTLV(dst, tagLabel, []byte(label[0]+"="+label[1]))
	}
	return append(dst, tail...)
}

// valid reports whether a candidate may be published: loopback may, tests live there; whether it is
// used is for the reader to say, see wire.Options.
func (c Candidate) valid() bool { return c.Check() == nil }

// Check says why nobody can be reached at the candidate's address. What an operator chose has to be checked
// before it is encoded.
func (c Candidate) Check() error {
	// The rules are those of a contact; any valid id will do.
	return wire.Contact{ID: 1, Address: c.Address, Reach: c.Reach}.Check(wire.Options{Loopback: true})
}

// ParseCellContact decodes what AppendCellContact wrote; tags of later versions are skipped. Loopback
// candidates are let through (see Candidate); everything else that F22 forbids is an error.
func ParseCellContact(value []byte) (CellContact, error) {
	var c CellContact
	err := eachTLV(value, contactSingle, func(tag byte, field []byte) (err error) {
		switch tag {
		case tagSecret:
			c.SecretHash, err = uint64Of(field)
		case tagCluster:
			c.ClusterID, err = uint64Of(field)
		case tagFlags:
			c.Flags, err = uint32Of(field)
		case tagVersions:
			if len(field) != 2 || field[0] > field[1] {
				return errTLV
			}
			c.VersionMin, c.VersionMax = field[0], field[1]
		case tagFeatures:
			c.Features, err = uint32Of(field)
		case tagKeysMax:
			c.KeysMax, err = uint32Of(field)
		case tagArch:
			c.Arch, err = textOf(field)
		case tagHostname:
			c.Hostname, err = textOf(field)
		case tagSoftware:
			c.Software, err = textOf(field)
		case tagCandidate:
			return c.addCandidate(field)
		case tagReach:
			if len(field) != 1 || wire.Reach(field[0]) == wire.ReachUnknown || wire.Reach(field[0]) > wire.ReachRelayed {
				return errTLV
			}
			c.Reach = wire.Reach(field[0])
		case tagHome:
			return c.addHome(field)
		case tagLabel:
			return c.addLabel(field)
		}
		return err
	})
	if err != nil {
		return CellContact{}, err
	}
	return c, nil
}

func (c *CellContact) addCandidate(field []byte) error {
	if len(field) != candidateSize || len(c.Candidates) == CandidatesMax {
		return errTLV
	}
	address := netip.AddrFrom16([16]byte(field)).Unmap()
	port := binary.BigEndian.Uint16(field[16:])
	candidate := Candidate{netip.AddrPortFrom(address, port), wire.Reach(field[18])}
	if !candidate.valid() {
		return errTLV
	}
	c.Candidates = append(c.Candidates, candidate)
	return nil
}

func (c *CellContact) addHome(field []byte) error {
	id, err := uint64Of(field)
	home := wire.CellID(id)
	if err != nil || !home.Valid() || len(c.Homes) == HomesMax || slices.Contains(c.Homes, home) {
		return errTLV
	}
	c.Homes = append(c.Homes, home)
	return nil
}

func (c *CellContact) addLabel(field []byte) error {
	name, value, ok := strings.Cut(string(field), "=")
	if !ok || !ValidLabel(name, value) {
		return errTLV
	}
	if n := len(c.Labels); n > 0 && c.Labels[n-1][0] >= name {
		return errTLV
	}
	c.Labels = append(c.Labels, [2]string{name, value})
	return nil
}
