package wire

import (
	"encoding/binary"
	"net/netip"
)

// Options loosen the checks of contacts.
type Options struct {
	// Loopback accepts contacts on loopback addresses. For tests and the demo on one machine only:
	// elsewhere such a contact makes a cell talk to whatever listens on its own host (F22).
	Loopback bool
}

// AddressSize is the size of an ObservedAddr: address 16, port 2.
const AddressSize = 18

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// usable reports whether a can be the address of one host.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != limitedBroadcast
}

// Check says why no cell would accept c (F22): reserved id, address that is unspecified, multicast,
// broadcast or (without Options.Loopback) loopback, port 0, or unknown reachability class.
func (c Contact) Check(o Options) error {
	address := c.Address.Addr().Unmap()
	switch {
	case !c.ID.Valid():
		return ErrCell
	case !usable(address) || c.Address.Port() == 0 || address.IsLoopback() && !o.Loopback:
		return ErrAddress
	case c.Reach > ReachRelayed:
		return ErrReach
	}
	return nil
}

// ParseContact decodes the 28 bytes of a NodeContact (specification 3.4).
func ParseContact(raw []byte, o Options) (Contact, error) {
	if len(raw) != ContactSize {
		return Contact{}, ErrLength
	}
	c := contactAt(raw)
	if err := c.Check(o); err != nil {
		return Contact{}, err
	}
	return c, nil
}

func contactAt(raw []byte) Contact {
	return Contact{
		ID:      CellID(binary.BigEndian.Uint64(raw)),
		Address: addressAt(raw[8:]),
		Reach:   Reach(raw[26]),
		Flags:   raw[27],
	}
}

func addressAt(raw []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw)).Unmap(), binary.BigEndian.Uint16(raw[16:]))
}

// AppendContact appends the 28 bytes of c. A zone of the address is lost: it means nothing to
// another host. It panics on a contact that no cell accepts, see Check.
func AppendContact(dst []byte, c Contact) []byte {
	if err := c.Check(Options{Loopback: true}); err != nil {
		panic("wire: contact of cell " + c.ID.String() + " at " + c.Address.String() + ": " + err.Error())
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.ID))
	dst = appendAddress(dst, c.Address)
	return append(dst, byte(c.Reach), c.Flags)
}

func appendAddress(dst []byte, a netip.AddrPort) []byte {
	raw := a.Addr().As16()
	dst = append(dst, raw[:]...)
	return binary.BigEndian.AppendUint16(dst, a.Port())
}

// parseObserved decodes an ObservedAddr; all zeros mean "unknown" and give the zero AddrPort (F23).
func parseObserved(raw []byte) (netip.AddrPort, error) {
	observed := addressAt(raw)
	if usable(observed.Addr()) && observed.Port() != 0 {
		return observed, nil
	}
	if [AddressSize]byte(raw) == [AddressSize]byte{} {
		return netip.AddrPort{}, nil
	}
	return netip.AddrPort{}, ErrAddress
}

// appendObserved appends an ObservedAddr; an address that parseObserved would reject becomes "unknown".
func appendObserved(dst []byte, observed netip.AddrPort) []byte {
	if !usable(observed.Addr().Unmap()) || observed.Port() == 0 {
		var unknown [AddressSize]byte
		return append(dst, unknown[:]...)
	}
	return appendAddress(dst, observed)
}
