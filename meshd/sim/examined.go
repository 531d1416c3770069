package sim

import "slices"

// examined notes that a rule has really looked at something that it could have objected to. A rule that
// never does so over many seeds holds nothing; see Unexamined.
func (w *World) examined(rule string) { w.examinations[rule]++ }

// worldRules are held by the world itself and by the end of a scenario, beside the checkers.
var worldRules = []string{"BOOT-2", "CONV-2", "EXEC-1", "RES-2", "SAFE-3", "SAFE-4", "SOCKET", "storage"}

// Rules lists the names of all rules that count what they examine, sorted: the checkers and what the world
// itself insists on. "panic" is none of them, for an assertion is examined by being passed.
func Rules() []string {
	names := slices.Clone(worldRules)
	for _, c := range Checkers() {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Unexamined lists the rules that have examined nothing in some runs together, given the sum of their
// Result.Examined.
func Unexamined(sum map[string]int) (vacuous []string) {
	for _, rule := range Rules() {
		if sum[rule] == 0 {
			vacuous = append(vacuous, rule)
		}
	}
	return vacuous
}
