package cell

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"colloid.net/meshd/wire"
)

func FuzzParseArrival(f *testing.F) {
	a := &arrival{cluster: 1, from: 2, sequence: 3,
		contacts: []wire.Contact{{ID: 9, Address: netip.MustParseAddrPort("10.0.0.1:12421")}},
		keys: []carriedKey{{name: "spread.a", value: []byte("v"), environment: []byte("e"), waiting: true},
			{name: "spread.b", value: []byte("w")}},
	}
	f.Add(appendArrival(nil, a))
	f.Add(appendArrival(nil, &arrival{}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		parsed, err := parseArrival(raw)
		if err == nil && !bytes.Equal(appendArrival(nil, parsed), raw) {
			t.Errorf("%x became %x", raw, appendArrival(nil, parsed))
		}
	})
}

// A directory that cannot be written to is one cause and one alarm, whichever of the two hears of it first.
func TestF157_OneCauseOneAlarm(t *testing.T) {
	const text = "storage: /state cannot be written to any more: permission denied"
	for _, directoryFirst := range []bool{true, false} {
		c := lonely(t)
		say := []func(){
			func() { c.HostAlarm(AlarmDirectory, "critical", text, "") },
			func() { c.noteStorage(errors.New(text)) },
		}
		if !directoryFirst {
			say[0], say[1] = say[1], say[0]
		}
		say[0]()
		say[1]()
		if alarms := c.alarms.list(); len(alarms) != 1 {
			t.Errorf("directory first %t: %v", directoryFirst, alarms)
		}
		c.noteStorage(syscall.ENOSPC)
		if !c.alarms.has(alarmStorage) {
			t.Error("another cause is not shown")
		}
	}
}
