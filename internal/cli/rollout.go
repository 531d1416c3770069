package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
	"github.com/spf13/cobra"
)

// rolloutInterval is the pause between two looks of `rollout status --watch`.
const rolloutInterval = 500 * time.Millisecond

func (a *app) rolloutCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "rollout",
		Short: "Follow an update, or go back to a former version",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.rolloutStatusCommand(), a.rolloutUndoCommand(), a.rolloutHistoryCommand())
	return command
}

func (a *app) rolloutStatusCommand() *cobra.Command {
	var format outputFormat
	var watch bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "status NAME",
		Short: "Show how far the update of a workload is",
		Long: `Shows each replica with the version it runs. Ends with 0 when all replicas are ready in the wanted
version, with 1 while they are not, and with 3 when the update has failed or the key is in conflict. With --watch
it waits for one of the two: complete means then that all were ready for ten seconds.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(command *cobra.Command, arguments []string) error {
			if timeout != 0 && !watch {
				return fail(ExitUsage, "--timeout is for --watch")
			}
			if timeout < 0 {
				return fail(ExitUsage, "--timeout is %v, expected 0 (never) or more", timeout)
			}
			ctx, stop := a.out.while(command.Context())
			defer stop()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			return a.with(func(s *session) error { return a.rolloutStatus(ctx, s, arguments[0], format, watch) })
		},
	}
	format.register(command)
	command.Flags().BoolVarP(&watch, "watch", "w", false, "wait until the update is complete or has failed")
	command.Flags().DurationVar(&timeout, "timeout", 0, "end --watch after this time with status 1; 0 = never")
	return command
}

func (a *app) rolloutStatus(ctx context.Context, s *session, name string, format outputFormat, watch bool) error {
	key, err := s.fullKey(name)
	if err != nil {
		return err
	}
	last := ""
	for {
		w, err := s.workloadStatus(key)
		if err != nil {
			return err
		}
		exit := rolloutExit(w, watch)
		if line := rolloutLine(w); watch && line != last && format != formatJSON {
			a.talk("%s", line)
			last = line
		}
		if !watch || exit != ExitError {
			return a.printRollout(w, format, exit)
		}
		select {
		case <-ctx.Done():
			return a.printRollout(w, format, ExitError)
		case <-time.After(rolloutInterval):
		}
	}
}

// workloadStatus finds one workload in the status of the cell.
func (s *session) workloadStatus(key string) (*uds.WorkloadStatus, error) {
	status, err := s.status(false)
	if err != nil {
		return nil, err
	}
	for i := range status.Workloads {
		if status.Workloads[i].Key == key {
			return &status.Workloads[i], nil
		}
	}
	return nil, fail(ExitError, "%s: not found: see colloid status", key)
}

// rolloutExit is the exit status that a workload's state means: ExitError while the update is under way.
func rolloutExit(w *uds.WorkloadStatus, settled bool) int {
	switch w.State {
	case "held", "stalled", "conflict", "invalid":
		return ExitNeedsHuman
	case "ok":
		for _, instance := range w.Instances {
			if instance.Digest != w.Digest && instance.State != "unreachable" {
				return ExitError // an old copy still has to go
			}
		}
		if !settled || w.Good || w.Replicas == 0 {
			return ExitOK
		}
	}
	return ExitError
}

func rolloutLine(w *uds.WorkloadStatus) string {
	line := fmt.Sprintf("%s: %s%s, %d of %d ready in version %s", w.Key, printable(w.State), reason(w.Reason), w.Ready,
		w.Replicas, printable(w.Digest))
	if w.Ready < w.Replicas && w.Serving > w.Ready {
		line += fmt.Sprintf(", %d serve in all", w.Serving)
	}
	return line
}

func (a *app) printRollout(w *uds.WorkloadStatus, format outputFormat, exit int) error {
	if format == formatJSON {
		if err := a.printJSON(w); err != nil {
			return err
		}
	} else if err := a.printReplicas(w); err != nil {
		return err
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

func (a *app) printReplicas(w *uds.WorkloadStatus) error {
	a.data("%s", rolloutLine(w))
	t := newTable(a.Output, "CELL", "SLOT", "VERSION", "STATE", "RESTARTS")
	for _, i := range w.Instances {
		version := "old " + i.Digest
		switch i.Digest {
		case w.Digest:
			version = "new " + i.Digest
		case w.Wanted:
			version = "failed " + i.Digest
		}
		t.row(i.Cell, fmt.Sprint(i.Slot), version, i.State+reason(i.Reason), fmt.Sprint(i.Restarts))
	}
	return t.flush()
}

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

// printHistory names versions as status does, by what their instances run, and says what became of each. Where only
// the number of replicas or their placement changed, several have one name: the newest of them keeps it.
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

// is reports whether to, in lower case, is the beginning of a digest of the version: of its instances or of the
// whole specification.
func (v *formerVersion) is(to string) bool {
	return strings.HasPrefix(v.name(), to) || strings.HasPrefix(v.digest, to)
}

// rolloutKey names what cells keep about the roll-outs of a workload.
func rolloutKey(key, field string) string {
	_, name, _ := workload.SplitKey(key)
	return "rollout." + name + "." + field
}

// presentVersion is what was applied, with what has become of it; nil if several values are in conflict or it cannot
// be read.
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

// lastGood is the newest good version besides the present one. What failed, or was replaced before anybody knew, is
// never chosen without being named.
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
