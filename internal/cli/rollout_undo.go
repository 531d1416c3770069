package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
	"github.com/spf13/cobra"
)

func (a *app) rolloutHistoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "history NAME",
		Short:             "List the versions of a workload, newest first",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error {
				key, err := s.fullKey(arguments[0])
				if err != nil {
					return err
				}
				present, err := s.presentVersion(key)
				if err != nil {
					return err
				}
				versions, err := s.formerVersions(key)
				if err != nil {
					return err
				}
				a.printHistory(present, versions)
				if len(versions) == 0 {
					a.talk("%s has no former versions", key)
				}
				return nil
			})
		},
	}
}

// printHistory names versions as status does, by what their instances run, and says what became of each.
// Where only the number of replicas or their placement changed, several have one name: the newest of them
// keeps it.
func (a *app) printHistory(present *formerVersion, versions []formerVersion) {
	seen := map[string]bool{}
	line := func(v *formerVersion, mark string) {
		text := fmt.Sprintf("%s  %-15s  %s", v.name(), mark, printable(workload.Summary(v.spec)))
		if seen[v.name()] {
			text += "  (the same with other replicas or placement: --to " + v.digest + ")"
		}
		seen[v.name()] = true
		a.data("%s", text)
	}
	if present != nil {
		line(present, strings.TrimSuffix("current, "+present.outcome, ", "))
	}
	for i := range versions {
		if v := &versions[i]; present == nil || v.digest != present.digest {
			line(v, cmp.Or(v.outcome, outcomeOpen))
		}
	}
}

// formerVersion is a former specification of a workload.
type formerVersion struct {
	digest  string // of the whole specification
	spec    *workload.Spec
	encoded []byte
	outcome string // outcomeGood or outcomeFailed, "" = it was replaced before it was either
}

// Outcomes of versions, as cells write them, and as history calls one without.
const (
	outcomeGood   = "good"
	outcomeFailed = "failed"
	outcomeOpen   = "unproven"
)

// name is the digest under which status shows the instances of the version.
func (v *formerVersion) name() string { return fmt.Sprintf("%016x", v.spec.InstanceDigest()) }

// is reports whether to, in lower case, is the beginning of a digest of the version: of its instances or of
// the whole specification.
func (v *formerVersion) is(to string) bool {
	return strings.HasPrefix(v.name(), to) || strings.HasPrefix(v.digest, to)
}

// rolloutKey names what cells keep about the roll-outs of a workload.
func rolloutKey(key, field string) string {
	_, name, _ := workload.SplitKey(key)
	return "rollout." + name + "." + field
}

// presentVersion is what was applied, with what has become of it; nil if several values are in conflict or it
// cannot be read.
func (s *session) presentVersion(key string) (*formerVersion, error) {
	present, err := s.version(key)
	if err != nil || present == nil {
		return nil, err
	}
	good, err := s.version(rolloutKey(key, "good"))
	if err != nil {
		return nil, err
	}
	status, err := s.status(false)
	if err != nil {
		return nil, err
	}
	for i := range status.Workloads {
		if w := &status.Workloads[i]; w.Key == key && (w.State == "held" || w.State == "stalled") {
			present.outcome = outcomeFailed
		}
	}
	if good != nil && good.digest == present.digest {
		present.outcome = outcomeGood
	}
	return present, nil
}

// outcomes reads what became of former versions, by their digests.
func (s *session) outcomes(key string) (map[string]string, error) {
	entries, err := s.get(rolloutKey(key, "marks"))
	if err != nil {
		return nil, err
	}
	outcomes := map[string]string{}
	for _, value := range liveValues(entries) {
		for mark := range strings.FieldsSeq(value.Text) {
			if digest, outcome, _ := strings.Cut(mark, "="); outcome == outcomeGood || outcome == outcomeFailed {
				outcomes[digest] = outcome
			}
		}
	}
	good, err := s.version(rolloutKey(key, "good"))
	if good != nil {
		outcomes[good.digest] = outcomeGood
	}
	return outcomes, err
}

// formerVersions lists what the cluster remembers, newest first.
func (s *session) formerVersions(key string) ([]formerVersion, error) {
	outcomes, err := s.outcomes(key)
	if err != nil {
		return nil, err
	}
	entries, err := s.get(rolloutKey(key, "past"))
	if err != nil {
		return nil, err
	}
	var versions []formerVersion
	seen := map[string]bool{}
	for _, value := range liveValues(entries) {
		for digest := range strings.FieldsSeq(value.Text) {
			if seen[digest] {
				continue
			}
			seen[digest] = true
			v, err := s.version(rolloutKey(key, "past-"+digest))
			if err != nil {
				return nil, err
			}
			if v != nil {
				v.digest, v.outcome = digest, outcomes[digest]
				versions = append(versions, *v)
			}
		}
	}
	return versions, nil
}

// version reads a specification that cells keep, nil if there is none.
func (s *session) version(name string) (*formerVersion, error) {
	entries, err := s.get(name)
	if err != nil {
		return nil, err
	}
	for _, value := range liveValues(entries) {
		if spec, err := workload.Decode(value.Value); err == nil {
			return &formerVersion{digest: fmt.Sprintf("%016x", spec.Digest()), spec: spec, encoded: value.Value}, nil
		}
	}
	return nil, nil
}

func (a *app) rolloutUndoCommand() *cobra.Command {
	var to string
	command := &cobra.Command{
		Use:   "undo NAME",
		Short: "Write the last good version of a workload again",
		Long: `Writes a former version as if it had been applied: the last one besides the present one that was good, which
means ready everywhere for ten seconds. If there is none it writes nothing. --to chooses any other of "colloid rollout
history", by the name that status shows, also one that failed.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.rolloutUndo(s, arguments[0], to) })
		},
	}
	command.Flags().StringVar(&to, "to", "", "DIGEST, or its beginning, of the version to go back to")
	return command
}

func (a *app) rolloutUndo(s *session, name, to string) error {
	key, err := s.fullKey(name)
	if err != nil {
		return err
	}
	held, err := s.get(key)
	if err != nil {
		return err
	}
	live := liveValues(held)
	if inConflict(held) {
		a.adviseConflict(held)
		return silent(ExitConflict)
	}
	if len(live) == 0 {
		return fail(ExitError, "%s: not found: see colloid status", key)
	}
	present := ""
	if spec, err := workload.Decode(live[0].Value); err == nil {
		present = fmt.Sprintf("%016x", spec.Digest())
	}
	chosen, err := s.chooseVersion(key, present, to)
	if err != nil {
		return err
	}
	expect, err := expectation(held)
	if err != nil {
		return err
	}
	var changed *uds.ConflictError
	err = s.write(uds.CodeSet, uds.WriteRequest{Expect: expect, Key: key, Value: chosen.encoded})
	if errors.As(err, &changed) {
		return fail(ExitConflict, "%s changed while this ran: look at it with `colloid get` and undo again", key)
	}
	if err != nil {
		return s.explain(key, err)
	}
	a.data("%s back to %s: %s", key, chosen.name(), printable(workload.Summary(chosen.spec)))
	return nil
}

// chooseVersion finds the version that `rollout undo` means.
func (s *session) chooseVersion(key, present, to string) (*formerVersion, error) {
	versions, err := s.formerVersions(key)
	if err != nil {
		return nil, err
	}
	good, err := s.version(rolloutKey(key, "good"))
	if err != nil {
		return nil, err
	}
	if good != nil {
		good.outcome = outcomeGood
		versions = append([]formerVersion{*good}, versions...)
	}
	if to == "" {
		return lastGood(key, present, versions)
	}
	var found *formerVersion
	for i := range versions {
		v := &versions[i]
		switch {
		case !v.is(strings.ToLower(to)):
		case found == nil:
			found = v
		case v.name() != found.name():
			return nil, fail(ExitUsage, "%q means several versions of %s: write more of the digest", to, key)
		}
	}
	if found == nil {
		return nil, fail(ExitError, "%s has no former version %q: see `colloid rollout history %s`", key, to, key)
	}
	return found, nil
}

// lastGood is the newest good version besides the present one. What failed, or was replaced before anybody
// knew, is never chosen without being named.
func lastGood(key, present string, versions []formerVersion) (*formerVersion, error) {
	others := 0
	for i := range versions {
		v := &versions[i]
		if v.digest == present {
			continue
		}
		if v.outcome == outcomeGood {
			return v, nil
		}
		others++
	}
	if others == 0 {
		return nil, fail(ExitError, "%s has no former version", key)
	}
	return nil, fail(ExitError, "%s has no other version that is known to be good: choose one of "+
		"`colloid rollout history %s` with --to", key, key)
}
