package sim

import (
	"context"
	"errors"
	"slices"
)

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

// RuleInterrupted is what RuleOf gives for a run that ended because nobody waits for it any more: no rule was broken.
const RuleInterrupted = "interrupted"

// RunUntil is Run that ends soon after ctx does, with a failure of RuleInterrupted.
func (s Scenario) RunUntil(ctx context.Context, trace func(line string)) Result {
	checkers := s.Checkers
	if checkers == nil {
		checkers = Checkers() // they have state: new ones for each run
	}
	s.Checkers = append(slices.Clone(checkers), &Checker{
		Name: RuleInterrupted,
		Step: func(*World, *Node) error { return ctx.Err() },
	})
	return s.Run(trace)
}

// Shrink drops faults from a failing scenario, many at first, then one at a time, as long as it breaks
// the same rule. It plays at most runsMax scenarios and returns how many it did. When ctx ends it returns what it has
// dropped so far.
func Shrink(ctx context.Context, s Scenario, runsMax int) (shrunk Scenario, runs int) {
	rule := RuleOf(s.RunUntil(ctx, nil).Failure)
	goOn := func() bool { return runs < runsMax && ctx.Err() == nil }
	fails := func(faults []Fault) bool {
		runs++
		try := s
		try.Faults = faults
		result := try.RunUntil(ctx, nil)
		return ctx.Err() == nil && result.Failure != nil && RuleOf(result.Failure) == rule
	}
	for size := max(1, len(s.Faults)/2); goOn(); size /= 2 {
		dropped := true
		for dropped && goOn() {
			dropped = false
			for at := 0; at < len(s.Faults) && goOn(); {
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
