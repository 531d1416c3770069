package storage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	"colloid.net/meshd/wire"
)

const (
	secretSize   = 32
	machineIDMax = 64
)

// identity is the content of cell_id (F2): id 8, secret 32, MAC 32, machine-id.
type identity struct {
	cell      wire.CellID
	secret    [secretSize]byte
	machineID string
}

// newIdentity draws an id that names no cell yet and is not reserved.
func newIdentity(random io.Reader, machineID string) (identity, error) {
	id := identity{machineID: machineID}
	for !id.cell.Valid() {
		var raw [8]byte
		if _, err := io.ReadFull(random, raw[:]); err != nil {
			return id, fmt.Errorf("storage: random numbers for a cell id: %w", err)
		}
		id.cell = wire.CellID(binary.BigEndian.Uint64(raw[:]))
	}
	if _, err := io.ReadFull(random, id.secret[:]); err != nil {
		return id, fmt.Errorf("storage: random numbers for a secret: %w", err)
	}
	return id, nil
}

func (id *identity) mac() []byte {
	mac := hmac.New(sha256.New, id.secret[:])
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(id.cell)))
	mac.Write([]byte(id.machineID))
	return mac.Sum(nil)
}

// hash is what the cell publishes of its secret: two instances with one id differ in it (F2, F3).
func (id *identity) hash() uint64 {
	sum := sha256.Sum256(append([]byte("colloid instance"), id.secret[:]...))
	return binary.BigEndian.Uint64(sum[:])
}

func (id *identity) marshal() []byte {
	data := binary.BigEndian.AppendUint64(nil, uint64(id.cell))
	data = append(data, id.secret[:]...)
	data = append(data, id.mac()...)
	return append(data, id.machineID...)
}

func parseIdentity(payload []byte) (identity, error) {
	const fixed = 8 + secretSize + sha256.Size
	var id identity
	if len(payload) < fixed || len(payload) > fixed+machineIDMax {
		return id, fmt.Errorf("storage: %s: %w: %d bytes", nameIdentity, ErrDamaged, len(payload))
	}
	id.cell = wire.CellID(binary.BigEndian.Uint64(payload))
	copy(id.secret[:], payload[8:])
	id.machineID = string(payload[fixed:])
	if !id.cell.Valid() || !hmac.Equal(id.mac(), payload[8+secretSize:fixed]) {
		return id, fmt.Errorf("storage: %s: %w: it was edited or put together from two", nameIdentity, ErrDamaged)
	}
	return id, nil
}

// readMachineID returns the host's machine-id, empty where there is none.
func readMachineID(path string) (string, error) {
	f, err := os.Open(path)
	if missing(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("storage: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, machineIDMax))
	if err != nil {
		return "", fmt.Errorf("storage: %s: %w", path, err)
	}
	return strings.TrimSpace(string(data)), nil
}
