package cell

import (
	"net/netip"
	"testing"
	"time"

	"colloid.net/meshd/clock"
)

// Two machines that overrule each other are twins; a machine that roams, that is restarted elsewhere, or that
// moves there and back is not (F2, F3).
func TestF2_F3_TwinsAreToldFromTravellers(t *testing.T) {
	a, b, c := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:1"), netip.MustParseAddrPort("10.0.0.3:1")
	at := func(d time.Duration) clock.Instant { return clock.Instant(0).Add(d) }
	run := func(pause time.Duration, raise uint32, addresses ...netip.AddrPort) (w twinWatch, end clock.Instant) {
		for i, address := range addresses {
			end = at(time.Duration(i+1) * pause)
			w.saw(end, address, 1+uint32(i)*raise)
		}
		return w, end
	}
	turns := []netip.AddrPort{a, b, a, b, a}
	if w, end := run(time.Second, 1, turns...); !w.twins(end) || w.twins(end.Add(twinWindow+1)) {
		t.Errorf("twins: %+v", w)
	}
	for name, w := range map[string]func() (twinWatch, clock.Instant){
		"roams":           func() (twinWatch, clock.Instant) { return run(time.Second, 0, turns...) },
		"moves":           func() (twinWatch, clock.Instant) { return run(time.Second, 1, a, b, c, b, c) },
		"there and back":  func() (twinWatch, clock.Instant) { return run(time.Second, 1, a, b, a) },
		"stays":           func() (twinWatch, clock.Instant) { return run(time.Second, 1, a, a, a, a, a) },
		"once in a while": func() (twinWatch, clock.Instant) { return run(twinWindow, 1, turns...) },
	} {
		if w, end := w(); w.twins(end) {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
