package runnerd

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"colloid.net/ipc/grant"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
	"colloid.net/workload"
)

func FuzzParseInstanceID(f *testing.F) {
	f.Add(InstanceID{1, 2, 3}.String())
	f.Add("0000000000000001-02-0000000000000003")
	f.Add("0000000000000001-65536-0000000000000003")
	f.Fuzz(func(t *testing.T, name string) {
		if id, ok := parseInstanceID(name); ok && id.String() != name {
			t.Fatalf("%q became %s", name, id)
		}
	})
}

// someInstance is the record of a running instance.
func someInstance(t testing.TB) (record.Record, InstanceID) {
	t.Helper()
	spec := &workload.Spec{Runtime: workload.RuntimeProcess, Image: "/bin/x"}
	encoded, err := workload.Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{id: InstanceID{5, 0, spec.InstanceDigest()}, key: "spread.x", specBytes: encoded, phase: phaseRunning,
		ready: readinessReady, restarts: 3}
	return i.record(), i.id
}

// FuzzParseInstance holds the state file of an instance: what is understood can be shown, and written again.
func FuzzParseInstance(f *testing.F) {
	r, id := someInstance(f)
	f.Add(r.Encode())
	r.Set("phase", "dancing")
	f.Add(r.Encode())
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		i, err := parseInstance(r, "/d", id)
		if i == nil || err == nil && i.spec == nil {
			t.Fatalf("%+v, %v", i, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if m := i.message(); len(m.Reason) > 1<<10 || m.Key != i.key {
			t.Fatalf("%v", m)
		}
		if again, err := parseInstance(i.record(), "/d", id); err != nil || !reflect.DeepEqual(again, i) {
			t.Fatalf("%+v became %+v, %v", i, again, err)
		}
	})
}

// A state that runnerd does not know let it end with a panic at its start, again and again.
func TestAnInstanceOfUnknownPhaseIsRefused(t *testing.T) {
	for name, value := range map[string]string{"phase": "dancing", "ready": "7", "delay": "-1", "spec": "", "restarts": "x"} {
		r, id := someInstance(t)
		if _, err := parseInstance(r, "/d", id); err != nil {
			t.Fatal(err)
		}
		r.Set(name, value)
		if i, err := parseInstance(r, "/d", id); err == nil {
			t.Errorf("%s %q is taken for %+v", name, value, i)
		}
	}
}

// FuzzParseExit holds how a process ended: a code that a process can have, about this one, or nothing.
func FuzzParseExit(f *testing.F) {
	for _, code := range []string{"0", "137", "-1", "256", "4294967296", "x"} {
		f.Add([]byte("boot \"b\"\ncode \"" + code + "\"\npid \"5\"\nreason \"r\"\nticks \"6\"\n"))
	}
	p := procfs.Process{PID: 5, StartTicks: 6}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		code, reason := parseExit(r, "b", p)
		if code < shim.UnknownCode || code > exitCodeMax || code == shim.UnknownCode && reason == "" && r.Get("code") != "-1" {
			t.Fatalf("%q became %d %q", text, code, reason)
		}
		if found := parseProcess(r, "b"); found.PID < 0 || found.PID > math.MaxInt32 || found == (procfs.Process{}) &&
			code != shim.UnknownCode {
			t.Fatalf("%q is about %+v", text, found)
		}
	})
}

// FuzzParseGrants holds the file of used grants: a nonce that was read is not forgotten.
func FuzzParseGrants(f *testing.F) {
	g := &grants{floor: 5, used: map[[grant.NonceSize]byte]int64{{1}: 7, {2}: 8}}
	f.Add(g.encode())
	f.Add(make([]byte, 8+grantSize-1))
	f.Add(bytes.Repeat([]byte{1}, 8+2*grantSize))
	f.Fuzz(func(t *testing.T, text []byte) {
		g := &grants{used: map[[grant.NonceSize]byte]int64{}}
		if !g.parse(text) {
			if g.floor != 0 || len(g.used) > 0 {
				t.Fatalf("%+v of what was refused", g)
			}
			return
		}
		if len(g.used) > grantsMax {
			t.Fatalf("%d grants", len(g.used))
		}
		again := &grants{used: map[[grant.NonceSize]byte]int64{}}
		if !again.parse(g.encode()) || !reflect.DeepEqual(again, g) {
			t.Fatalf("%+v became %+v", g, again)
		}
	})
}

func FuzzParseTraffic(f *testing.F) {
	f.Add([]byte("Inter-|   Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10\n  eth0: 100 2 3 4 5 6 7 8 200 10\n"))
	f.Add([]byte("e:x 2 3 4 5 6 7 8 -9"))
	f.Fuzz(func(t *testing.T, text []byte) {
		received, sent := parseTraffic(text)
		double := append(append(bytes.Clone(text), '\n'), text...)
		if in, out := parseTraffic(double); in != 2*received || out != 2*sent {
			t.Fatalf("%d and %d, twice as much is %d and %d", received, sent, in, out)
		}
	})
}

// FuzzParseReason: the last of several lines, never the prefix alone, always one that is there.
func FuzzParseReason(f *testing.F) {
	f.Add("x\n" + wasm.ReasonPrefix + "it is no module\n" + wasm.ReasonPrefix + "\n")
	f.Fuzz(func(t *testing.T, tail string) {
		reason := parseReason(tail)
		if reason != "" && (strings.Contains(reason, "\n") || !strings.Contains(tail, wasm.ReasonPrefix+reason)) {
			t.Fatalf("%q out of %q", reason, tail)
		}
		if got := parseReason(fmt.Sprintf("%s\n%slast\n", tail, wasm.ReasonPrefix)); got != "last" {
			t.Fatalf("%q", got)
		}
	})
}
