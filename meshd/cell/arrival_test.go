package cell

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

// Configuration that does not fit into the cluster a cell moved to is not dropped: an alarm names it, and it stays in
// the directory for the next start.
func TestF50_WhatDoesNotFitIsKept(t *testing.T) {
	c, r := lonely(t), &recorder{}
	c.config.Storage = r
	for i := 0; ; i++ {
		dot := c.nextDot()
		name := fmt.Appendf(nil, "spread.k%d", i)
		record := wire.Record{KeyHash: c.store.Hash(name), Name: name, EntryCount: 1,
			Entries: wire.AppendEntry(nil, dot, []byte("v")), Context: wire.AppendDot(nil, dot)}
		if c.store.Merge(&record).Rejected {
			break
		}
	}
	c.arrival = &arrival{cluster: c.clusterID, sequence: c.issued(), keys: []carriedKey{
		{name: "spread.k1", value: []byte("v")}, {name: "spread.new", value: []byte("w")},
	}}
	c.arrive()
	c.saveSnapshot()
	c.Stored(c.now, r.snapshots[len(r.snapshots)-1], nil)
	if c.arrival == nil || len(c.arrival.keys) != 1 || c.arrival.keys[0].name != "spread.new" || r.joining != 0 {
		t.Fatalf("kept %+v, the directory was told %d times to forget it", c.arrival, r.joining)
	}
	if alarm := c.alarms.raised[alarmArrival]; !strings.Contains(alarm.Text, "spread.new") {
		t.Errorf("alarms: %+v", c.alarms.list())
	}
}

// F4: a snapshot that makes good one move does not have the directory forget the next one, which is under way already.
func TestF4_TheNextMoveIsNotForgotten(t *testing.T) {
	c, r := lonely(t), &recorder{}
	c.config.Storage = r
	c.arrival = &arrival{cluster: c.clusterID, merged: true}
	c.saveSnapshot()
	c.joining = &joinAttempt{ticket: c.nextTicket(), reply: func(Response) {}}
	c.Stored(c.now, r.snapshots[0], nil)
	if c.arrival != nil || r.joining != 0 {
		t.Errorf("the directory forgets the move under way: %d times, the earlier one is %+v", r.joining, c.arrival)
	}
}
