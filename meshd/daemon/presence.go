package daemon

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/state"
	"golang.org/x/sys/unix"
)

// addressInterval is the pause between two looks at the host's addresses. A change counts when two looks have seen
// it, so that what flaps faster is never told to anybody; a cell is on its new address within twice this.
const addressInterval = 3 * time.Second

// addressRetryMax bounds the pause before a change is looked at again that could not be followed.
const addressRetryMax = time.Minute

// watchAddresses follows the addresses of the host until the daemon stops. It asks the kernel for the list of
// addresses, one small dump, and looks at the interfaces only if that is another one than the last time.
func (d *Daemon) watchAddresses() {
	ticker := time.NewTicker(addressInterval)
	defer ticker.Stop()
	var watch addressWatch
	for {
		if list, err := kernelAddresses(); err == nil {
			first, err := watch.look(time.Now(), list, d.addressesChanged)
			if err != nil && first {
				d.log.printf("the addresses of this host changed, but cannot be told to the others: %v: it is tried again", err)
			}
		}
		select {
		case <-d.stopped:
			return
		case <-ticker.C:
		}
	}
}

// addressWatch decides which lists of addresses count.
type addressWatch struct {
	before, counted, failed []netip.Addr
	pause                   time.Duration // after the last failure
	retry                   time.Time
}

// look takes a list and follows a change that two looks have seen. One that could not be followed is tried again after
// a pause, which doubles up to addressRetryMax. first: that list failed for the first time.
func (w *addressWatch) look(now time.Time, list []netip.Addr, follow func([]netip.Addr) error) (first bool, err error) {
	steady := slices.Equal(list, w.before)
	w.before = list
	if !steady || slices.Equal(list, w.counted) {
		return false, nil
	}
	first = w.pause == 0 || !slices.Equal(list, w.failed)
	if !first && now.Before(w.retry) {
		return false, nil
	}
	if err = follow(list); err == nil {
		w.counted, w.pause = list, 0
		return false, nil
	}
	if first {
		w.pause = 0
	}
	w.failed, w.pause = list, min(max(2*w.pause, addressInterval), addressRetryMax)
	w.retry = now.Add(w.pause)
	return first, err
}

// addressesChanged tells the cell what the addresses of this host mean to it.
func (d *Daemon) addressesChanged(now []netip.Addr) error {
	bound := d.reactor.LocalAddress()
	if address := bound.Addr().Unmap(); !address.IsUnspecified() {
		text := ""
		if !address.IsLoopback() && !slices.Contains(now, address.WithZone("")) {
			text = "this host no longer has the address " + address.String() + ", to which --bind ties this cell: nobody reaches it"
		}
		d.showAddress(text, "give the host that address again, or start colloid with another --bind")
		return nil
	}
	if len(d.options.Advertise) > 0 {
		return nil // an operator said where the cell is; whether that leads here, nobody can see from here
	}
	found, err := hostAddresses()
	if err != nil {
		return err
	}
	if before := *d.addresses.Load(); len(found) == 0 && !before[0].IsLoopback() {
		d.showAddress("this host has no address any more, the last one was "+before[0].String()+": nobody reaches this cell",
			"check the host's network; the cell takes the next address that comes")
		return nil
	}
	d.showAddress("", "")
	candidates, err := advertised(nil, bound)
	if err != nil {
		return err
	}
	d.setAddresses(candidates)
	d.inbox.post(func() {
		if address := candidates[0].Address.Addr().AsSlice(); !slices.Equal(address, d.helper.address) {
			d.helper.address = address
			d.helper.tellHost()
		}
		if d.started {
			d.cell.SetAddresses(d.reactor.Now(), candidates)
		}
	})
	return nil
}

// showAddress shows an alarm about the host's addresses, or withdraws it with an empty text.
func (d *Daemon) showAddress(text, hint string) {
	d.inbox.post(func() {
		if d.addressTrouble == text {
			return
		}
		if d.addressTrouble = text; text != "" {
			d.log.printf("%s: %s", text, hint)
		}
		d.cell.HostAlarm(cell.AlarmAddress, "critical", text, hint)
	})
}

func (d *Daemon) setAddresses(candidates []state.Candidate) {
	var list []netip.Addr
	for _, candidate := range candidates {
		list = append(list, candidate.Address.Addr().Unmap())
	}
	d.addresses.Store(&list)
}

// kernelAddresses lists the addresses of all interfaces, sorted.
func kernelAddresses() ([]netip.Addr, error) {
	dump, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	messages, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return nil, err
	}
	list := []netip.Addr{}
	for i := range messages {
		if messages[i].Header.Type != unix.RTM_NEWADDR {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&messages[i])
		if err != nil {
			return nil, err
		}
		address := netip.Addr{}
		for _, attribute := range attributes {
			// Of a link between two hosts IFA_ADDRESS is the other end's.
			if kind := attribute.Attr.Type; kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !address.IsValid() {
				address, _ = netip.AddrFromSlice(attribute.Value)
			}
		}
		if address.IsValid() {
			list = append(list, address.Unmap())
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list, nil
}
