package cli

import (
	"context"
	"fmt"
	"time"

	"colloid.net/ipc/uds"
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
