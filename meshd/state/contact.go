package state

import (
	"encoding/binary"
	"net/netip"

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
)

// CandidatesMax bounds the addresses of a contact (F33).
const CandidatesMax = 4

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
	Labels     [][2]string // sorted by name
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
	candidateSize = 19
)

// AppendCellContact encodes c. Strings are cut to 63 bytes; more than CandidatesMax candidates panic.
func AppendCellContact(dst []byte, c CellContact) []byte {
	if len(c.Candidates) > CandidatesMax {
		panic("state: too many candidates")
	}
	dst = append(dst, valueVersion)
	dst = appendTLV64(dst, tagSecret, c.SecretHash)
	dst = appendTLV64(dst, tagCluster, c.ClusterID)
	dst = appendTLV32(dst, tagFlags, c.Flags)
	dst = appendTLV(dst, tagVersions, []byte{c.VersionMin, c.VersionMax})
	dst = appendTLV32(dst, tagFeatures, c.Features)
	dst = appendTLV32(dst, tagKeysMax, c.KeysMax)
	dst = appendTLV(dst, tagArch, cut(c.Arch, 16))
	dst = appendTLV(dst, tagHostname, cut(c.Hostname, 63))
	dst = appendTLV(dst, tagSoftware, cut(c.Software, 31))
	for _, candidate := range c.Candidates {
		raw := candidate.Address.Addr().As16()
		field := binary.BigEndian.AppendUint16(raw[:], candidate.Address.Port())
		dst = appendTLV(dst, tagCandidate, append(field, byte(candidate.Reach)))
	}
	for _, label := range c.Labels {
		dst = appendTLV(dst, tagLabel, []byte(label[0]+"="+label[1]))
	}
	return dst
}

func cut(s string, limit int) []byte { return []byte(s[:min(len(s), limit)]) }

// ParseCellContact decodes what AppendCellContact wrote; tags of later versions are skipped.
func ParseCellContact(value []byte) (CellContact, error) {
	var c CellContact
	err := eachTLV(value, func(tag byte, field []byte) (err error) {
		switch tag {
		case tagSecret:
			c.SecretHash, err = uint64Of(field)
		case tagCluster:
			c.ClusterID, err = uint64Of(field)
		case tagFlags:
			c.Flags, err = uint32Of(field)
		case tagVersions:
			if len(field) != 2 {
				return errTLV
			}
			c.VersionMin, c.VersionMax = field[0], field[1]
		case tagFeatures:
			c.Features, err = uint32Of(field)
		case tagKeysMax:
			c.KeysMax, err = uint32Of(field)
		case tagArch:
			c.Arch = string(field)
		case tagHostname:
			c.Hostname = string(field)
		case tagSoftware:
			c.Software = string(field)
		case tagCandidate:
			return c.addCandidate(field)
		case tagLabel:
			return c.addLabel(field)
		}
		return err
	})
	return c, err
}

func (c *CellContact) addCandidate(field []byte) error {
	if len(field) != candidateSize || len(c.Candidates) == CandidatesMax {
		return errTLV
	}
	address := netip.AddrFrom16([16]byte(field)).Unmap()
	port := binary.BigEndian.Uint16(field[16:])
	c.Candidates = append(c.Candidates, Candidate{netip.AddrPortFrom(address, port), wire.Reach(field[18])})
	return nil
}

func (c *CellContact) addLabel(field []byte) error {
	for i, b := range field {
		if b == '=' && i > 0 {
			c.Labels = append(c.Labels, [2]string{string(field[:i]), string(field[i+1:])})
			return nil
		}
	}
	return errTLV
}
