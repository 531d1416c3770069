package daemon

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// What the kernel lists holds every address of every interface, sorted, so that two looks at an unchanged host agree.
func TestF158_KernelAddressesAreThoseOfTheInterfaces(t *testing.T) {
	list, err := kernelAddresses()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(list, netip.Addr.Compare) {
		t.Errorf("not sorted: %v", list)
	}
	known, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range known {
		address, _ := netip.AddrFromSlice(one.(*net.IPNet).IP)
		if !slices.Contains(list, address.Unmap()) {
			t.Errorf("%v is missing in %v", one, list)
		}
	}
	found, err := hostAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range found {
		if !slices.Contains(list, address) {
			t.Errorf("%v is missing in %v", address, list)
		}
	}
}

func BenchmarkKernelAddresses(b *testing.B) {
	for b.Loop() {
		if _, err := kernelAddresses(); err != nil {
			b.Fatal(err)
		}
	}
}
