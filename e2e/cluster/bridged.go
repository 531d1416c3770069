package cluster

import (
	"fmt"
	"net/netip"
	"os"
)

// bridged is one namespace per cell and one for the bridge.
type bridged struct {
	namespaces
	subnet   byte // 10.77.<subnet>.0/24 or fd00:77:<subnet>::/64
	version6 bool
}

// bridgedCells is as many as the subnet has room for.
const bridgedCells = 200

// newBridged makes the namespaces, of IP version 6 alone or of version 4. On failure it removes what it made.
func newBridged(directory string, cells int, version6 bool) (*bridged, error) {
	if cells > bridgedCells {
		return nil, fmt.Errorf("%d cells asked, the bridge has room for %d", cells, bridgedCells)
	}
	b := &bridged{subnet: byte(os.Getpid()%250 + 1), version6: version6}
	return b, b.open(directory, func() error { return b.build(cells) })
}

func (b *bridged) address(i int) netip.Addr { return b.host(byte(i + 1)) }

func (b *bridged) host(number byte) netip.Addr {
	if b.version6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x77, 5: b.subnet, 15: number})
	}
	return netip.AddrFrom4([4]byte{10, 77, b.subnet, number})
}

func (b *bridged) prefix(host netip.Addr) netip.Prefix {
	if b.version6 {
		return netip.PrefixFrom(host, 64)
	}
	return netip.PrefixFrom(host, 24)
}

func (b *bridged) build(cells int) error {
	hub, bridge, err := b.createSwitch(b.prefix(b.operator()))
	if err != nil {
		return err
	}
	defer hub.close()
	for i := range cells {
		cell, err := b.create(b.cellName(i))
		if err != nil {
			return err
		}
		err = attach(hub, bridge, cell, cellLink, port(i), b.prefix(b.address(i)))
		cell.close()
		if err != nil {
			return fmt.Errorf("connect %s: %w", b.cellName(i), err)
		}
	}
	return nil
}

func (b *bridged) operator() netip.Addr { return b.host(switchHost) }
