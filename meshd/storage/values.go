package storage

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"colloid.net/meshd/wire"
)

// Cluster is the membership of a cell in a cluster. The zero Key means none.
type Cluster struct {
	Key [32]byte
	// Joined is set once the cell has met another one: it never founds a cluster again (F4).
	Joined bool
}

func marshalCluster(c Cluster) []byte {
	joined := byte(0)
	if c.Joined {
		joined = 1
	}
	return append(c.Key[:], joined)
}

func parseCluster(payload []byte) (c Cluster, err error) {
	if len(payload) != len(c.Key)+1 || payload[len(c.Key)] > 1 {
		return c, fmt.Errorf("storage: %s: %w: unexpected form", nameCluster, ErrDamaged)
	}
	copy(c.Key[:], payload)
	c.Joined = payload[len(c.Key)] == 1
	return c, nil
}

// PeersMax is how many contacts are remembered (F4).
const PeersMax = 64

// marshalPeers writes the contacts as they are on the wire: id 8, address 16, port 2, reach 1, flags 1.
func marshalPeers(peers []wire.Contact) []byte {
	var data []byte
	for _, peer := range peers[:min(len(peers), PeersMax)] {
		data = binary.BigEndian.AppendUint64(data, uint64(peer.ID))
		address := peer.Address.Addr().As16()
		data = append(data, address[:]...)
		data = binary.BigEndian.AppendUint16(data, peer.Address.Port())
		data = append(data, byte(peer.Reach), peer.Flags)
	}
	return data
}

func parsePeers(payload []byte) ([]wire.Contact, error) {
	if len(payload)%wire.ContactSize != 0 || len(payload) > PeersMax*wire.ContactSize {
		return nil, fmt.Errorf("storage: %s: %w: %d bytes", namePeers, ErrDamaged, len(payload))
	}
	var peers []wire.Contact
	for raw := payload; len(raw) > 0; raw = raw[wire.ContactSize:] {
		address := netip.AddrFrom16([16]byte(raw[8:24])).Unmap()
		peers = append(peers, wire.Contact{
			ID:      wire.CellID(binary.BigEndian.Uint64(raw)),
			Address: netip.AddrPortFrom(address, binary.BigEndian.Uint16(raw[24:])),
			Reach:   wire.Reach(raw[26]),
			Flags:   raw[27],
		})
	}
	return peers, nil
}

// IncarnationMax is the last run that dots have room for (24 bits, F1).
const IncarnationMax = 1<<24 - 1

func marshalIncarnation(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func parseIncarnation(payload []byte) (uint32, error) {
	if len(payload) != 4 || binary.BigEndian.Uint32(payload) > IncarnationMax {
		return 0, fmt.Errorf("storage: %s: %w: unexpected form", nameIncarnation, ErrDamaged)
	}
	return binary.BigEndian.Uint32(payload), nil
}
