package state

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"colloid.net/meshd/wire"
)

// Only the canonical form of these keys is what cells write about; anything else stays the operator's (F61).
func TestF61_CategoriesOfTheLifeCycle(t *testing.T) {
	long := strings.Repeat("a", WorkloadNameMax)
	for name, want := range map[string]Category{
		RolloutKey("web", RolloutVerdict):   Derived,
		RolloutKey("web", RolloutGood):      Derived,
		RolloutKey(long, RolloutPast):       Derived,
		RolloutKey(long, PastField(1)):      Derived,
		RolloutKey(long, RolloutMarks):      Derived,
		"rollout.web.past-1":                Operator,
		"rollout.web.past-000000000000000A": Operator,
		"rollout.Web.good":                  Operator,
		"rollout.web.other":                 Operator,
		"rollout.web":                       Operator,
		EnvironmentKey(long, 0xabc, 7):      Derived,
		"env.web.0000000000000abc.8":        Operator,
		"env.web.0000000000000abc":          Operator,
		"env.web.abc.0":                     Operator,
		DrainKey(7):                         Operator,
		"cell.0000000000000007.drain.x":     Operator,
		"env.web.0000000000000abc.00":       Operator,
		"env..0000000000000abc.0":           Operator,
		"rollout..good":                     Operator,
	} {
		if got := CategoryOf([]byte(name)); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
		if len(name) > wire.NameMax {
			t.Errorf("%s has %d bytes", name, len(name))
		}
	}
	if id, ok := SplitDrain(DrainKey(7)); !ok || id != 7 {
		t.Error("drain key")
	}
	if w, d, p, ok := SplitEnvironment(EnvironmentKey("web", 0xabc, 3)); w != "web" || d != "0000000000000abc" || p != 3 || !ok {
		t.Error(w, d, p, ok)
	}
}

func TestVerdictAndPastRoundTrip(t *testing.T) {
	v := Verdict{Dots: 1, Digest: 2, Cell: 3, Reason: "restarted 3 times"}
	if got, err := ParseVerdict(AppendVerdict(nil, v)); err != nil || got != v {
		t.Errorf("%+v, %v", got, err)
	}
	past := []uint64{1, 1 << 63, 3}
	if got, err := ParsePast(AppendPast(nil, past)); err != nil || !reflect.DeepEqual(got, past) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParsePast(AppendPast(nil, make([]uint64, 20))); err != nil || len(got) != PastMax {
		t.Errorf("%d, %v", len(got), err)
	}
	marks := []Mark{{1, OutcomeGood}, {1 << 63, OutcomeFailed}}
	if got, err := ParseMarks(AppendMarks(nil, marks)); err != nil || !reflect.DeepEqual(got, marks) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseMarks(AppendMarks(nil, make([]Mark, 20))); err != nil || len(got) != PastMax {
		t.Errorf("%d, %v", len(got), err)
	}
	for _, raw := range [][]byte{nil, {2}, {1, 0}, bytes.Repeat([]byte{1}, 1+9*(PastMax+1))} {
		if _, err := ParseMarks(raw); err == nil {
			t.Errorf("%x accepted as marks", raw)
		}
	}
	for _, raw := range [][]byte{nil, {2}, {1, 0}, bytes.Repeat([]byte{1}, 1+8*(PastMax+1))} {
		if _, err := ParsePast(raw); err == nil {
			t.Errorf("%x accepted", raw)
		}
	}
}

func FuzzParseVerdict(f *testing.F) {
	f.Add(AppendVerdict(nil, Verdict{Dots: 1, Digest: 2, Cell: 3, Reason: "x"}))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if v, err := ParseVerdict(raw); err == nil {
			if again, err := ParseVerdict(AppendVerdict(nil, v)); err != nil || again != v {
				t.Fatalf("%+v became %+v, %v", v, again, err)
			}
		}
		_, _ = ParsePast(raw)
		if marks, err := ParseMarks(raw); err == nil && !bytes.Equal(AppendMarks(nil, marks), raw) {
			t.Fatalf("%x became %v", raw, marks)
		}
	})
}
