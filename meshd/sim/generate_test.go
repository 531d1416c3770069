package sim

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Operators can repair what the random scenarios do to a cluster behind routers: of the machines that can be called one
// never loses its memory, and it is the first where a filter lets through no other.
func TestGenerate_SomebodyWhoCanBeCalledKeepsItsMemory(t *testing.T) {
	behind := 0
	for seed := range uint64(4000) {
		s := Small(seed)
		if s.NAT == nil {
			continue
		}
		behind++
		lost := map[int]bool{}
		for _, f := range s.Faults {
			switch f.Verb {
			case Wipe, Leave:
				lost[f.Node] = true
			case Clone:
				lost[f.Other] = true
			}
		}
		if lost[0] && (lost[1] || slices.Contains(s.NAT, Blocked)) {
			t.Errorf("seed %d: the machines %v lose their memory, before them %v", seed, lost, s.NAT)
		}
	}
	if behind < 300 {
		t.Errorf("only %d of 4000 scenarios have routers", behind)
	}
}

// A scenario can be written down and read again: shrinking drops lines, and a failure is passed on as lines.
func TestGenerate_EveryFaultIsReadAsItIsWritten(t *testing.T) {
	for seed := range uint64(300) {
		for _, f := range Small(seed).Faults {
			f.At = 0
			f.check()
			again, err := ParseFault(f.String())
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			form := verbForms[f.Verb]
			if !form.other {
				f.Other = 0
			}
			if !form.node {
				f.Node = 0
			}
			if f.Verb == Weather { // percents are not exact
				f.Weather, again.Weather = NetworkOptions{}, NetworkOptions{}
			}
			if !reflect.DeepEqual(f, again) {
				t.Fatalf("seed %d: %v\n was %+v\n now %+v", seed, f, f, again)
			}
		}
	}
}

// Whatever can be asked for happens, also when it is asked for alone.
func TestGenerate_EveryVerbCanBeNamed(t *testing.T) {
	for _, verb := range Verbs() {
		verbs, err := ParseVerbs(string(verb))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(Generate(1, 7, time.Hour, verbs).Faults, func(f Fault) bool { return f.Verb == verb }) {
			t.Errorf("-faults %s never plays it", verb)
		}
	}
}

// ciSeeds is how many scenarios continuous integration plays, see cmd/colloid-sim.
const ciSeeds = 850

// The scenarios of continuous integration have every verb, and all that a specification and a machine can say.
func TestGenerate_ContinuousIntegrationHasEverything(t *testing.T) {
	verbs, said := make(map[Verb]int), make(map[string]int)
	for seed := range uint64(ciSeeds) {
		for _, f := range Small(1 + seed).Faults {
			verbs[f.Verb]++
			kind, _, _ := strings.Cut(f.Key, ".")
			said[string(f.Verb)+" "+kind]++
			for _, value := range []any{f.Shape, f.Machine} {
				fields := reflect.ValueOf(value)
				for i := range fields.NumField() {
					if !fields.Field(i).IsZero() {
						said[fields.Type().Name()+"."+fields.Type().Field(i).Name]++
					}
				}
			}
		}
	}
	for _, verb := range Verbs() {
		if verbs[verb] < 10 {
			t.Errorf("%s occurs %d times", verb, verbs[verb])
		}
	}
	for _, value := range []any{Shape{}, Machine{}} {
		fields := reflect.TypeOf(value)
		for i := range fields.NumField() {
			if name := fields.Name() + "." + fields.Field(i).Name; said[name] < 50 {
				t.Errorf("%s is said %d times", name, said[name])
			}
		}
	}
	for _, what := range []string{"write spread", "write stateful", "write wasm", "resolve stateful", "delete wasm"} {
		if said[what] < 100 {
			t.Errorf("%s occurs %d times", what, said[what])
		}
	}
}

// A line with something wrong in it is refused.
func TestParseFault_RefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, text := range []string{
		"write 0 spread.a ports=x", "write 0 spread.a ports=80:0", "write 0 spread.a where=zone",
		"write 0 spread.a priority=200", "write 0 spread.a memory=-1", "write 0 spread.a secret=1000",
		"write 0 spread.a volume=perhaps", "write 0 spread.a zone=a", "delete 0 spread.a memory=5", "equip 0 labels=zone",
		"equip 0 runtimes=vm", "equip 0 memory=much", "equip 0 size=5", "drain 0>1 abandon=2", "uncordon 0>1 abandon=true",
	} {
		if _, err := ParseFault(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
