package policy

import (
	"encoding/hex"
	"strings"
	"testing"

	"colloid.net/ipc/grant"
)

// Without a statement nobody opens anything; with one, exactly what it names (F137).
func TestF137_ExecIsOffUnlessThePolicyNamesTheWorkload(t *testing.T) {
	if Empty().AllowsExec("spread.web") {
		t.Fatal("allowed by nobody")
	}
	p, err := Parse("policy", []byte("exec web db-*\nexec wasm.f\n"))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{
		"spread.web": true, "stateful.web": true, "stateful.db-1": true, "wasm.f": true,
		"spread.f": false, "spread.web2": false, "spread.we": false, "stateful.db": false, "": false,
	} {
		if p.AllowsExec(key) != want {
			t.Errorf("%s: %v", key, !want)
		}
	}
	if all, err := Parse("policy", []byte("exec *\n")); err != nil || !all.AllowsExec("spread.anything") {
		t.Fatal(err)
	}
}

func TestF137_OperatorsAreNamedByWholeKeys(t *testing.T) {
	key := strings.Repeat("ab", 31) + "cd"
	p, err := Parse("policy", []byte("operator anna "+key+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := hex.DecodeString(key)
	if o := p.Operator(grant.KeyID(raw)); o == nil || o.Name != "anna" || p.Operator([8]byte{1}) != nil {
		t.Fatal(o)
	}
	for _, text := range []string{
		"operator anna", "operator anna abcd", "operator anna " + strings.Repeat("00", 32), "operator anna " + key + " x",
		"operator anna " + key + "\noperator berta " + key, "exec", "exec [", "exec web {\n}", "operator anna { key x\n}",
		"operator " + strings.Repeat("n", 65) + " " + key,
	} {
		if _, err := Parse("policy", []byte(text+"\n")); err == nil {
			t.Errorf("%s: taken", text)
		}
	}
}
