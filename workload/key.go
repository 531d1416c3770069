package workload

import (
	"fmt"
	"strings"
)

// NameLengthMax bounds the name of a workload or volume (F61).
const NameLengthMax = 63

// ValidName reports whether name can name a workload or a volume: 1 to 63 of a-z, 0-9 and -.
func ValidName(name string) bool {
	for _, r := range []byte(name) {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return name != "" && len(name) <= NameLengthMax
}

// ValidKind reports whether kind is one of those that hold workloads.
func ValidKind(kind Kind) bool {
	return kind == KindSpread || kind == KindStateful || kind == KindWasm
}

// Key gives the key of a workload, for instance "spread.web".
func Key(kind Kind, name string) string { return string(kind) + "." + name }

// SplitKey takes a workload key apart; ok is false when it is not one.
func SplitKey(key string) (kind Kind, name string, ok bool) {
	prefix, name, found := strings.Cut(key, ".")
	kind = Kind(prefix)
	return kind, name, found && ValidKind(kind) && ValidName(name)
}

// CheckKey reports whether s may stand under key (F81): what is under stateful. has the stateful flag
// and nothing else has it; what is under wasm. is a module, and under spread. it is not. A stateful
// workload may have any runtime. It does not validate s itself.
func CheckKey(key string, s *Spec) error {
	kind, _, ok := SplitKey(key)
	if !ok {
		return fmt.Errorf("workload: %q is no workload key, expected spread.NAME, stateful.NAME or wasm.NAME "+
			"with 1 to %d of a-z, 0-9 and - in NAME", key, NameLengthMax)
	}
	if p := checkKind(kind, s); p != nil {
		return fmt.Errorf("workload: %s: %s", key, p.text)
	}
	return nil
}

func checkKind(kind Kind, s *Spec) *problem {
	switch {
	case kind == KindStateful && !s.Stateful:
		return &problem{"", 0, "specification lacks the stateful flag, expected it under stateful."}
	case kind != KindStateful && s.Stateful:
		return &problem{"", 0, "specification has the stateful flag, expected it only under stateful."}
	case kind == KindWasm && s.Runtime != RuntimeWasm:
		return &problem{runtimeKey(s.Runtime), 0, "a wasm workload does not run this, expected module URL"}
	case kind == KindSpread && s.Runtime == RuntimeWasm:
		return &problem{"module", 0, "a spread workload does not run modules, expected image or process " +
			"(or a wasm or stateful block)"}
	}
	return nil
}

// runtimeKey is the configuration key that chooses a runtime.
func runtimeKey(r Runtime) string {
	switch r {
	case RuntimeOCI:
		return "image"
	case RuntimeWasm:
		return "module"
	case RuntimeProcess:
		return "process"
	}
	return ""
}
