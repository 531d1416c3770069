package daemon

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
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

// A change of the host's addresses that could not be followed is tried again, after pauses that grow, until it could.
// It does not wait for another change.
func TestF158_AChangeThatCouldNotBeFollowedIsTriedAgain(t *testing.T) {
	list := func(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }
	var watch addressWatch
	start := time.Now()
	failing := true
	var tries, told []time.Duration
	run := func(from, to time.Duration, addresses []netip.Addr) {
		tries, told = nil, nil
		for at := from; at < to; at += addressInterval {
			first, _ := watch.look(start.Add(at), addresses, func([]netip.Addr) error {
				tries = append(tries, at)
				if failing {
					return errors.New("no buffer space")
				}
				return nil
			})
			if first {
				told = append(told, at)
			}
		}
	}
	run(0, 10*time.Minute, list("10.0.0.1"))
	if len(tries) < 8 || len(tries) > 16 || len(told) != 1 {
		t.Errorf("tried at %v, told at %v", tries, told)
	}
	failing = false
	run(10*time.Minute, 20*time.Minute, list("10.0.0.1"))
	if len(tries) != 1 || tries[0] > 10*time.Minute+addressRetryMax {
		t.Errorf("once it can be followed: tried at %v", tries)
	}
	failing = true
	run(20*time.Minute, 20*time.Minute+4*addressInterval, list("10.0.0.2"))
	if len(tries) != 2 || tries[0] != 20*time.Minute+addressInterval || len(told) != 1 {
		t.Errorf("the next change: tried at %v, told at %v", tries, told)
	}
}

func BenchmarkKernelAddresses(b *testing.B) {
	for b.Loop() {
		if _, err := kernelAddresses(); err != nil {
			b.Fatal(err)
		}
	}
}
