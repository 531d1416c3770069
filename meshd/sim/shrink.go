package sim

import "errors"

// Violation is what ends a run: a rule, and how it was broken.
type Violation struct {
	Rule string
	Err  error
}

// Error implements error.
func (v *Violation) Error() string { return v.Rule + ": " + v.Err.Error() }

// Unwrap implements errors.Unwrap.
func (v *Violation) Unwrap() error { return v.Err }

// RuleOf returns the name of the rule that a failure broke, "" if it is none.
func RuleOf(err error) string {
	var violation *Violation
	if errors.As(err, &violation) {
		return violation.Rule
	}
	return ""
}

// Shrink drops faults from a failing scenario, many at first, then one at a time, as long as it breaks
// the same rule. It plays at most runsMax scenarios and returns how many it did.
func Shrink(s Scenario, runsMax int) (shrunk Scenario, runs int) {
	rule := RuleOf(s.Run(nil).Failure)
	fails := func(faults []Fault) bool {
		runs++
		try := s
		try.Faults = faults
		result := try.Run(nil)
		return result.Failure != nil && RuleOf(result.Failure) == rule
	}
	for size := max(1, len(s.Faults)/2); runs < runsMax; size /= 2 {
		dropped := true
		for dropped && runs < runsMax {
			dropped = false
			for at := 0; at < len(s.Faults) && runs < runsMax; {
				end := min(at+size, len(s.Faults))
				without := append(append([]Fault(nil), s.Faults[:at]...), s.Faults[end:]...)
				if fails(without) {
					s.Faults, dropped = without, true
				} else {
					at = end
				}
			}
			dropped = dropped && size == 1
		}
		if size == 1 {
			break
		}
	}
	return s, runs
}
