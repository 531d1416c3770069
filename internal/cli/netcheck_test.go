package cli

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

// behindRouter is what a cell behind a symmetric router knows: two homes, and one peer of each kind.
func behindRouter() uds.Status {
	return uds.Status{
		Cell: uds.CellSelf{ID: ownActor, State: "active"},
		Network: uds.NetworkInfo{
			Reach: "relayed", Scope: "global IPv4", Translated: true, Observed: "203.0.113.7:40001",
			Mapping: "per-destination", Filter: "closed", Mapped: []string{"203.0.113.7:12421"},
			Homes: []uds.HomeInfo{{Cell: "00000000000000b2", Hostname: "two", HeardSeconds: 1.25},
				{Cell: "00000000000000c3", HeardSeconds: -1}},
			Candidates: []uds.AddressInfo{{Address: "203.0.113.7:40001", Reach: "punched"}, {Address: "192.168.1.10:12421", Reach: "unknown"}},
		},
		Cells: []uds.CellInfo{
			{ID: ownActor, Hostname: "one", Self: true, State: "alive"},
			{ID: "00000000000000b2", Hostname: "two", State: "alive", Reach: "public", Path: "direct", Address: "198.51.100.2:12421",
				RTTMicrosecond: 20345, HeardSeconds: 0.5},
			{ID: "00000000000000c3", State: "alive", Reach: "punched", Path: "punched", PathSeconds: 3661, PathAttempts: 1,
				Address: "198.51.100.3:999", HeardSeconds: 0.5},
			{ID: "00000000000000c4", State: "alive", Reach: "punched", Path: "punched", PathSeconds: 61, PathAttempts: 1, PathSearched: true,
				Address: "198.51.100.8:999", HeardSeconds: 0.5},
			{ID: "00000000000000d4", Hostname: "ev\x1b[2Jil", State: "suspect", Reach: "relayed", Path: "relayed",
				Relay: "00000000000000b2", PathAttempts: 3, Address: "198.51.100.4:1"},
			{ID: "00000000000000e5", Hostname: "old", State: "gone", Path: "none"},
			{ID: "00000000000000f6", Hostname: "lost", State: "dead", Path: "none", Address: "198.51.100.6:1"},
		},
	}
}

// What stands before this machine, what works, and the way to each other cell with age and round trip.
func TestNetcheckSaysWhatWorks(t *testing.T) {
	d := newFake(t)
	d.status = behindRouter()
	r := d.run("", "netcheck")
	want := `reach     relayed (global IPv4): others reach this cell through its homes, unless their own router keeps one port
router    gives this cell another port for each destination, keeps strangers out
seen as   203.0.113.7:40001
opened    203.0.113.7:12421, by the router on request
address   192.168.1.10:12421
home      00000000000000b2 two, heard 1.2s ago
home      00000000000000c3 -, not heard

CELL              HOST        REACH    PATH                  AGE     RTT      ATTEMPTS  ADDRESS
00000000000000b2  two         public   direct                -       20.35ms  0         198.51.100.2:12421
00000000000000c3  -           punched  punched               1h1m1s  -        1         198.51.100.3:999
00000000000000c4  -           punched  punched by search     1m1s    -        1         198.51.100.8:999
00000000000000d4  ev?[2Jil    relayed  relayed via 00000000  -       -        3         198.51.100.4:1
00000000000000f6  lost        -        none                  -       -        0         198.51.100.6:1
`
	if r.exit != 0 || squeeze(r.output) != squeeze(want) || strings.Contains(r.output, "\x1b") {
		t.Errorf("exit %d:\n%s\nwant:\n%s", r.exit, r.output, want)
	}
}

// squeeze forgets how wide columns are.
func squeeze(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// Each kind of router has its sentence, and so has a cell that is alone or has nobody to be reached through.
func TestNetcheckSentences(t *testing.T) {
	for _, test := range []struct {
		network uds.NetworkInfo
		want    []string
	}{
		{uds.NetworkInfo{Reach: "public", Scope: "private IPv4", Mapping: "none", Filter: "open"},
			[]string{"reach     public (private IPv4): strangers reach this cell", "does not translate addresses, lets strangers in"}},
		{uds.NetworkInfo{Reach: "punched", Scope: "global IPv6", Mapping: "none", Filter: "closed"},
			[]string{"punched (global IPv6): others reach this cell after both have sent", "does not translate addresses, keeps strangers out"}},
		{uds.NetworkInfo{Reach: "punched", Mapping: "one-port", Filter: "closed"},
			[]string{"gives this cell one port for all destinations, keeps strangers out"}},
		{uds.NetworkInfo{Reach: "relayed", Mapping: "per-destination", Filter: "unknown"},
			[]string{"another port for each destination, may or may not let strangers in", "home      none: no public cell answers"}},
		{uds.NetworkInfo{Reach: "unknown", Scope: "private IPv4", Mapping: "unknown", Filter: "unknown"},
			[]string{"not known yet: it takes other cells to find out", "router    not known yet\n", "no other cell yet: colloid connect HOST"}},
	} {
		d := newFake(t)
		d.status = uds.Status{Cell: uds.CellSelf{ID: ownActor, State: "active"}, Network: test.network}
		r := d.run("", "netcheck")
		for _, want := range test.want {
			if r.exit != 0 || !strings.Contains(r.output, want) {
				t.Errorf("%+v: exit %d, lacks %q:\n%s", test.network, r.exit, want, r.output)
			}
		}
	}
}

// Programs get the same as a document: what is known of the own router, and the peers without this cell and
// without those that are gone.
func TestNetcheckDocument(t *testing.T) {
	d := newFake(t)
	d.status = behindRouter()
	r := d.run("", "netcheck", "-o", "json")
	var got netcheckDocument
	if err := json.Unmarshal([]byte(r.output), &got); err != nil || r.exit != 0 {
		t.Fatalf("exit %d, %v", r.exit, err)
	}
	if !reflect.DeepEqual(got.Network, d.status.Network) || len(got.Peers) != 5 ||
		!reflect.DeepEqual(got.Peers[:4], d.status.Cells[1:5]) {
		t.Errorf("%+v", got)
	}
	d.status.Cells = d.status.Cells[:1]
	if r := d.run("", "netcheck", "-o", "json"); !strings.Contains(r.output, `"peers": []`) {
		t.Errorf("alone: %s", r.output)
	}
}

// cells shows the path to each cell beside its class, and the relay.
func TestCellsShowPaths(t *testing.T) {
	d := newFake(t)
	d.status = behindRouter()
	r := d.run("", "cells")
	for _, want := range []string{"REACH PATH RTT", "public direct 20.35ms", "punched punched - 0.5s ago",
		"suspect (no new work)|suspect", "punched punched by search - 0.5s ago", "relayed relayed via 00000000", "dead - none"} {
		found := false
		for _, one := range strings.Split(want, "|") {
			found = found || strings.Contains(squeeze(r.output), one)
		}
		if !found {
			t.Errorf("lacks %q:\n%s", want, r.output)
		}
	}
}

// Wrong flags and arguments are status 2 with what fits.
func TestNetcheckWrongFlags(t *testing.T) {
	d := newFake(t)
	for _, arguments := range [][]string{{"netcheck", "-o", "yaml"}, {"netcheck", "peer"}, {"netcheck", "--port-mapping", "maybe"},
		{"cells", "-o", "xml"}, {"--port-mapping", "maybe"}, {"--port-search", "maybe"}} {
		if r := d.run("", arguments...); r.exit != ExitUsage || r.errors == "" {
			t.Errorf("%v: exit %d, %q", arguments, r.exit, r.errors)
		}
	}
}
