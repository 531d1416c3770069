package sim

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// FuzzParseFault holds the lines of stories and reports: what a failure prints is what plays it again.
func FuzzParseFault(f *testing.F) {
	for _, text := range []string{"partition 0,1|2,3 for 30s", "crash 1 for 1m", "weather loss=5% duplicate=1% reorder=2% delay=1ms..20ms for 1m",
		"write 0 spread.web replicas=2 image=/bin/web", "forget 0>2", "partition 65536 for 1s", "weather loss=NaN%", "drain 0>1",
		"write 0 k rollback=true", "resolve 1 spread.a replicas=1 image=x", "equip 1 memory=5 labels=a=b,c=d arch=x runtimes=oci,wasm deny=/b",
		"write 0 stateful.d replicas=1 image=/b ports=80:80,53/udp where=a=b,c!=d priority=-1 grace=3 pile=true volume=true secret=3",
		"drain 0>1 abandon=true"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			return
		}
		if len(fault.Groups) > faultNodesMax+1 || fault.For < 0 || fault.Node < 0 || fault.Other < 0 {
			t.Fatalf("%q became %+v", text, fault)
		}
		again, err := ParseFault(fault.String())
		if err != nil || again.String() != fault.String() || again.Verb != fault.Verb || !reflect.DeepEqual(again.Groups, fault.Groups) {
			t.Fatalf("%q became %q, and that %+v, %v", text, fault, again, err)
		}
	})
}

// FuzzParseVerbs holds the argument of -faults and the names of routers.
func FuzzParseVerbs(f *testing.F) {
	for _, text := range []string{"all", "none", "crash,weather", "crash,crash", "", ",", "symmetric", "no-hairpin"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if verbs, err := ParseVerbs(text); err == nil {
			for i, verb := range verbs {
				if !slices.Contains(Verbs(), verb) || slices.Contains(verbs[:i], verb) {
					t.Fatalf("%q became %v", text, verbs)
				}
			}
		} else if verbs != nil || !strings.Contains(err.Error(), "want") {
			t.Fatalf("%v beside %q", verbs, err)
		}
		if kind, err := ParseNATKind(text); err == nil && kind.String() != text {
			t.Fatalf("%q became %v", text, kind)
		}
	})
}
