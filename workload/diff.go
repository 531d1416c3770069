package workload

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Diff tells people what changes from old to new, one line per change in the order of Format:
// "replicas 3 -> 5" where one value replaces another, "+ port 443:8443" and "- port 443:8443" for what
// comes and goes. Equal specifications give nothing; nil stands for no specification.
func Diff(old, new *Spec) []string {
	var before, after []line
	if old != nil {
		before = old.lines()
	}
	if new != nil {
		after = new.lines()
	}
	var changes []string
	for _, l := range before {
		switch i := slices.IndexFunc(after, func(other line) bool { return other.key == l.key }); {
		case slices.Contains(after, l):
		case i >= 0 && !keys[l.key].repeats:
			changes = append(changes, fmt.Sprintf("%s %s -> %s", l.key, l.text, after[i].text))
		default:
			changes = append(changes, fmt.Sprintf("- %s %s", l.key, l.text))
		}
	}
	for _, l := range after {
		same := func(other line) bool { return other == l || other.key == l.key && !keys[l.key].repeats }
		if !slices.ContainsFunc(before, same) {
			changes = append(changes, fmt.Sprintf("+ %s %s", l.key, l.text))
		}
	}
	if len(changes) == 0 && old != nil && new != nil && old.Digest() != new.Digest() {
		changes = append(changes, "order of ports, vips, volumes or constraints")
	}
	return changes
}

// Summary shows a specification on one line, for instance "replicas=5, image=nginx:1.25", for lists
// and conflicts; Diff says everything in which two of them differ.
func Summary(s *Spec) string {
	parts := []string{
		fmt.Sprintf("replicas=%d", s.Replicas),
		fmt.Sprintf("%s=%s", runtimeKey(s.Runtime), s.Image),
	}
	if s.ImageDigest != [32]byte{} {
		parts = append(parts, "sha256="+hex.EncodeToString(s.ImageDigest[:6]))
	}
	if s.CPUMillicores != 0 {
		parts = append(parts, "cpu="+formatCPU(s.CPUMillicores))
	}
	if s.MemoryMiB != 0 {
		parts = append(parts, "mem="+formatUnits(s.MemoryMiB, memoryUnits))
	}
	return strings.Join(parts, ", ")
}

// differenceMax bounds what Summaries adds to one summary, in bytes.
const differenceMax = 240

// Summaries shows the versions of one workload so that people can choose between them: the Summary of each,
// followed by the statements that not all of them share, as in "replicas=1, process=/b, args 7". What is
// longer than a line is cut; a nil version gives "".
func Summaries(versions []*Spec) []string {
	all := make([][]line, len(versions))
	for i, s := range versions {
		if s != nil {
			all[i] = s.lines()
		}
	}
	texts := make([]string, len(versions))
	for i, s := range versions {
		if s == nil {
			continue
		}
		var own []string
		for _, l := range all[i] {
			missing := func(other []line) bool { return other != nil && !slices.Contains(other, l) }
			if !inSummary(l.key) && slices.ContainsFunc(all, missing) {
				own = append(own, l.key+" "+l.text)
			}
		}
		texts[i] = Summary(s)
		if more := strings.Join(own, ", "); len(more) > differenceMax {
			texts[i] += ", " + strings.ToValidUTF8(more[:differenceMax], "") + "..."
		} else if more != "" {
			texts[i] += ", " + more
		}
	}
	return texts
}

// inSummary reports whether Summary shows a statement.
func inSummary(key string) bool {
	switch key {
	case "replicas", "image", "module", "process", "sha256", "cpu", "mem":
		return true
	}
	return false
}
