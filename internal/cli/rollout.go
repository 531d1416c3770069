package cli

import (
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
		Short:             "List former versions of a workload, newest first",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error {
				key, err := s.fullKey(arguments[0])
				if err != nil {
					return err
				}
				versions, err := s.formerVersions(key)
				if err != nil {
					return err
				}
				if len(versions) == 0 {
					a.talk("%s has no former versions", key)
				}
				a.printHistory(versions)
				return nil
			})
		},
	}
}

// printHistory names versions as status does, by what their instances run. Where only the number of replicas
// or their placement changed, several have one name: the newest of them keeps it.
func (a *app) printHistory(versions []formerVersion) {
	seen := map[string]bool{}
	for _, v := range versions {
		line := v.name() + "  " + printable(workload.Summary(v.spec))
		if seen[v.name()] {
			line += "  (the same with other replicas or placement: --to " + v.digest + ")"
		}
		seen[v.name()] = true
		a.data("%s", line)
	}
}

// formerVersion is a former specification of a workload.
type formerVersion struct {
	digest  string // of the whole specification
	spec    *workload.Spec
	encoded []byte
}

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

// formerVersions lists what the cluster remembers, newest first.
func (s *session) formerVersions(key string) ([]formerVersion, error) {
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
				v.digest = digest
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
			return &formerVersion{fmt.Sprintf("%016x", spec.Digest()), spec, value.Value}, nil
		}
	}
	return nil, nil
}

func (a *app) rolloutUndoCommand() *cobra.Command {
	var to string
	command := &cobra.Command{
		Use:   "undo NAME",
		Short: "Write the previous version of a workload again",
		Long: `Writes a former version as if it had been applied: the last good one if the present one is not good, else
the one before the present. --to chooses another of "colloid rollout history", by the name that status shows.`,
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
		versions = append([]formerVersion{*good}, versions...)
	}
	var found []formerVersion
	for _, v := range versions {
		if v.is(strings.ToLower(to)) && (to != "" || v.digest != present) {
			found = append(found, v)
		}
	}
	switch {
	case len(found) == 0 && to != "":
		return nil, fail(ExitError, "%s has no former version %q: see `colloid rollout history %s`", key, to, key)
	case len(found) == 0:
		return nil, fail(ExitError, "%s has no former version", key)
	}
	for _, v := range found {
		if to != "" && v.name() != found[0].name() {
			return nil, fail(ExitUsage, "%q means several versions of %s: write more of the digest", to, key)
		}
	}
	return &found[0], nil
}
