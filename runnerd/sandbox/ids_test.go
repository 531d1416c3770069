package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/runnerd/record"
)

// TestF139_RangesAreNeverShared takes, returns and restarts in any order.
func TestF139_RangesAreNeverShared(t *testing.T) {
	directory := t.TempDir()
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		path := filepath.Join(directory, fmt.Sprint(round))
		a, err := OpenAllocator(path)
		if err != nil {
			t.Fatal(err)
		}
		owners := map[string]uint32{}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := fmt.Sprintf("i%d", rapid.IntRange(0, 5).Draw(t, "name"))
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				base, err := a.Take(name)
				if err != nil {
					t.Fatal(err)
				}
				if had, again := owners[name]; again && had != base {
					t.Fatalf("%s has %d, had %d", name, base, had)
				}
				for other, theirs := range owners {
					if other != name && theirs == base {
						t.Fatalf("%s and %s have %d", name, other, base)
					}
				}
				if base < idFirst || base%IDCount != 0 || uint64(base)+IDCount > 1<<31 {
					t.Fatalf("range from %d", base)
				}
				owners[name] = base
			case 2:
				if err := a.Return(name); err != nil {
					t.Fatal(err)
				}
				delete(owners, name)
			case 3:
				if a, err = OpenAllocator(path); err != nil {
					t.Fatal(err)
				}
			}
			if len(a.Names()) != len(owners) {
				t.Fatalf("%v, expected %v", a.Names(), owners)
			}
		}
	})
}

func TestF139_RangesRunOutAndComeBackLate(t *testing.T) {
	a := &Allocator{path: filepath.Join(t.TempDir(), "ids"), taken: map[string]int{}}
	for n := range rangesMax - 1 {
		a.taken[fmt.Sprint("x", n)] = n
	}
	a.next = rangesMax - 1
	last, err := a.Take("last")
	if err != nil || last != baseOf(rangesMax-1) {
		t.Fatal(last, err)
	}
	if _, err := a.Take("more"); err == nil {
		t.Fatal("took a range that is not there")
	}
	if err := a.Return("x7"); err != nil {
		t.Fatal(err)
	}
	if base, err := a.Take("more"); err != nil || base != baseOf(7) {
		t.Fatal(base, err)
	}
	b := &Allocator{path: filepath.Join(t.TempDir(), "ids"), taken: map[string]int{}}
	first, _ := b.Take("a")
	_ = b.Return("a")
	if second, _ := b.Take("a"); second == first {
		t.Error("a range was given again at once")
	}
}

func TestF139_ADamagedFileGivesNoRange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ids")
	for _, text := range []string{
		"range \"1 a\"\nrange \"1 b\"\n", "range \"1\"\n", "range \"x a\"\n", "range \"4096 a\"\n", "next \"9999\"\n", "rubbish",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := OpenAllocator(path); err == nil {
			t.Errorf("%q gave %v", text, a.taken)
		}
	}
	_ = os.Remove(path)
	if a, err := OpenAllocator(path); err != nil || len(a.Names()) != 0 {
		t.Error(err)
	}
	if a, err := OpenAllocator(t.TempDir()); err == nil {
		t.Error(a)
	}
}

func FuzzParseRecord(f *testing.F) {
	c := &Config{
		Rootfs: "/r", UIDBase: idFirst, GIDBase: idFirst, Count: IDCount, User: "app", Init: true,
		Mounts: []Mount{{Target: "/tmp", Tmpfs: true}}, Files: []File{{Path: "/etc/hosts", Mode: 0o644, Content: []byte("x\x00")}},
		AdditionalGIDs: []uint32{5}, StopSignal: 3,
	}
	f.Add(c.Record().Encode())
	f.Add([]byte("uid_base \"1\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := record.Parse(text)
		if err != nil {
			return
		}
		parsed, err := ParseRecord(r)
		if err != nil {
			return
		}
		if parsed.UIDBase < idLowest || parsed.Count == 0 || len(parsed.Mounts) > MountsMax {
			t.Fatalf("%+v", parsed)
		}
		again, err := ParseRecord(parsed.Record())
		if err != nil || again.User != parsed.User || len(again.Files) != len(parsed.Files) {
			t.Fatalf("%v: %+v became %+v", err, parsed, again)
		}
	})
}

func TestF138_WhatWouldUndoTheSandboxIsRefused(t *testing.T) {
	good := Config{UIDBase: idFirst, GIDBase: idFirst, Count: IDCount}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"ids of the host":    func(c *Config) { c.UIDBase = 0 },
		"groups of the host": func(c *Config) { c.GIDBase = 1000 },
		"ids beyond":         func(c *Config) { c.UIDBase = 1<<31 - 5 },
		"no ids":             func(c *Config) { c.Count = 0 },
		"user beyond":        func(c *Config) { c.UID = IDCount },
		"SYS_ADMIN":          func(c *Config) { c.Capabilities = []string{"SYS_ADMIN"} },
		"unknown":            func(c *Config) { c.Capabilities = []string{"ALL"} },
		"over /proc":         func(c *Config) { c.Mounts = []Mount{{Target: "/proc/sys", Tmpfs: true}} },
		"over /sys":          func(c *Config) { c.Mounts = []Mount{{Target: "/sys", Source: "/x"}} },
		"over /":             func(c *Config) { c.Mounts = []Mount{{Target: "/", Tmpfs: true}} },
		"upwards":            func(c *Config) { c.Files = []File{{Path: "/etc/../../x"}} },
		"relative":           func(c *Config) { c.Files = []File{{Path: "etc"}} },
		"both":               func(c *Config) { c.Mounts = []Mount{{Target: "/x", Source: "/y", Tmpfs: true}} },
		"large":              func(c *Config) { c.Files = []File{{Path: "/x", Content: make([]byte, FileSizeMax+1)}} },
		"many":               func(c *Config) { c.Mounts = make([]Mount, MountsMax+1) },
		"signal":             func(c *Config) { c.StopSignal = 65 },
	} {
		c := good
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestSignalNumber(t *testing.T) {
	for text, want := range map[string]int{
		"SIGTERM": 15, "QUIT": 3, "sigusr1": 10, "9": 9, "SIGRTMIN+3": 37, "RTMIN": 34, "": 0, "SIGNOTHING": 0, "65": 0,
	} {
		if got := SignalNumber(text); got != want {
			t.Errorf("%q is %d, expected %d", text, got, want)
		}
	}
}
