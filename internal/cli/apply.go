package cli

import (
	"bytes"
	"errors"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) applyCommand() *cobra.Command {
	var files fileFlags
	var dryRun, force bool
	command := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the cluster hold the workloads of a file",
		Long: `Reads all files, checks every block, compares with what the cluster holds and writes what differs.
Nothing is written when any block is invalid. Each key is reported on standard output:

  spread.web created|updated|unchanged|retried|conflict

A key that holds concurrent values, or that changed while this ran, is a conflict and stays as it is
unless --force is given. Applying a file again changes nothing, unless the update of a workload had failed: then
it is tried once more. Workloads that are not in the file
stay; "colloid delete" removes them.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := a.load(files)
			if err != nil {
				return err
			}
			return a.with(func(s *session) error {
				steps, err := s.plan(all)
				if err != nil {
					return err
				}
				if dryRun {
					return a.printPlan(steps, force)
				}
				return a.carryOut(s, steps, force)
			})
		},
	}
	files.register(command)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done and write nothing")
	command.Flags().BoolVar(&force, "force", false, "replace whatever the key holds, concurrent values too")
	return command
}

// carryOut writes the steps one by one. A failure stops it: what is already written was reported.
func (a *app) carryOut(s *session, steps []step, force bool) error {
	exit := ExitOK
	for _, st := range steps {
		result, err := a.write(s, st, force)
		if err != nil {
			return err
		}
		a.data("%s %s", st.key, result)
		if result == conflicted {
			exit = ExitConflict
		}
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

// write does one step and tells what became of it.
func (a *app) write(s *session, st step, force bool) (verdict, error) {
	if st.verdict == unchanged {
		failed, err := s.hasFailed(st.key)
		if err != nil || !failed {
			return unchanged, err
		}
		st.verdict = retried
	}
	if st.verdict == conflicted && !force {
		a.adviseConflict(st.held)
		return conflicted, nil
	}
	if err := s.seal(&st.desired, true); err != nil {
		return "", err
	}
	request := uds.WriteRequest{Expect: uds.ExpectAny, Key: st.key, Value: st.encoded}
	if !force {
		expect, err := expectation(st.held)
		if err != nil {
			return "", err
		}
		request.Expect = expect
	}
	done := st.verdict
	if done == conflicted {
		done = updated
	}
	var changed *uds.ConflictError
	err := s.write(uds.CodeSet, request)
	switch {
	case err == nil:
		return done, nil
	case errors.As(err, &changed):
		return a.lostRace(st, &changed.Entries), nil
	}
	return "", s.explain(st.key, err)
}

// lostRace handles a key that changed between reading and writing. If somebody wrote the very same
// value, all is well.
func (a *app) lostRace(st step, now *uds.Entries) verdict {
	if len(now.Entries) == 1 && !now.Entries[0].Deleted && bytes.Equal(now.Entries[0].Value, st.encoded) {
		return unchanged
	}
	if inConflict(now) {
		a.adviseConflict(now)
		return conflicted
	}
	a.talk("colloid: %s changed while this ran; look at it with `colloid diff` and apply again", st.key)
	return conflicted
}

func (a *app) printPlan(steps []step, force bool) error {
	exit := ExitOK
	for _, st := range steps {
		a.data("%s %s (dry run, %d of %d bytes)", st.key, st.verdict, len(st.encoded), specSizeMax)
		a.printChanges(st)
		if st.verdict == conflicted && !force {
			a.adviseConflict(st.held)
			exit = ExitConflict
		}
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

func (a *app) printChanges(st step) {
	for _, change := range st.changes {
		a.data("  %s", printable(change))
	}
}

func (a *app) diffCommand() *cobra.Command {
	var files fileFlags
	command := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show how a file differs from what the cluster holds",
		Long:  `Prints what "colloid apply" would change, nothing if it would change nothing. Writes nothing.`,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := a.load(files)
			if err != nil {
				return err
			}
			return a.with(func(s *session) error {
				steps, err := s.plan(all)
				if err != nil {
					return err
				}
				return a.printDifferences(steps)
			})
		},
	}
	files.register(command)
	return command
}

func (a *app) printDifferences(steps []step) error {
	exit := ExitOK
	for _, st := range steps {
		switch st.verdict {
		case unchanged:
			continue
		case conflicted:
			a.adviseConflict(st.held)
			exit = ExitConflict
		}
		a.data("%s %s", st.key, map[verdict]string{
			created: "is new", updated: "differs", conflicted: "is in conflict"}[st.verdict])
		a.printChanges(st)
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

// hasFailed reports whether the update of a workload waits for a person.
func (s *session) hasFailed(key string) (bool, error) {
	entries, err := s.get(rolloutKey(key, "verdict"))
	if err != nil || len(liveValues(entries)) == 0 {
		return false, err
	}
	w, err := s.workloadStatus(key)
	if err != nil {
		return false, err
	}
	return w.State == "held" || w.State == "stalled", nil
}
