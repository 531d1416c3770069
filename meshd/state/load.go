package state

import "colloid.net/meshd/wire"

// Fields of a cell's load: how much of the host is in use, in percent. They inform people and never feed
// placement (F59, F72).
const (
	LoadCPU    = "cpu"
	LoadMemory = "mem"
	LoadDisk   = "disk"
)

// LoadKey names one load figure of a cell.
func LoadKey(cell wire.CellID, field string) string {
	return PrefixHealth + cell.String() + "." + field
}

// AppendLoad encodes a percentage, 0 to 100; more is cut.
func AppendLoad(dst []byte, percent uint8) []byte {
	return append(dst, valueVersion, min(percent, 100))
}

// ParseLoad decodes what AppendLoad wrote.
func ParseLoad(value []byte) (percent uint8, err error) {
	if len(value) != 2 || value[0] != valueVersion || value[1] > 100 {
		return 0, errTLV
	}
	return value[1], nil
}
