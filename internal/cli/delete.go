package cli

import (
	"errors"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) deleteCommand() *cobra.Command {
	var files fileFlags
	var force bool
	command := &cobra.Command{
		Use:   "delete KEY... | -f FILE",
		Short: "Delete workloads",
		Long: `Deletes the named workloads, or those of a file. Their instances stop on every cell. A key of the
command line must exist; one of a file may be absent, so that deleting twice is no error.`,
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, keys []string) error {
			if (len(keys) > 0) == (len(files.files) > 0) {
				return fail(ExitUsage, "name either keys or -f FILE")
			}
			mustExist := len(keys) > 0
			if !mustExist {
				all, err := a.loadKeys(files, named)
				if err != nil {
					return err
				}
				for _, d := range all {
					keys = append(keys, d.key)
				}
			}
			return a.with(func(s *session) error { return a.deleteAll(s, keys, mustExist, force) })
		},
	}
	files.register(command)
	command.Flags().BoolVar(&force, "force", false, "delete concurrent values too")
	return command
}

// deleteAll checks every key before it deletes the first.
func (a *app) deleteAll(s *session, names []string, mustExist, force bool) error {
	var held []*uds.Entries
	for _, name := range names {
		key, err := s.fullKey(name)
		if err != nil {
			return err
		}
		entries, err := s.get(key)
		if err != nil {
			return err
		}
		if len(liveValues(entries)) == 0 && mustExist {
			return fail(ExitError, "%s: not found: see colloid status", key)
		}
		held = append(held, entries)
	}
	exit := ExitOK
	for _, entries := range held {
		result, err := a.deleteOne(s, entries, force)
		if err != nil {
			return err
		}
		a.data("%s %s", entries.Key, result)
		if result == conflicted {
			exit = ExitConflict
		}
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

const (
	deleted verdict = "deleted"
	absent  verdict = "absent"
)

func (a *app) deleteOne(s *session, entries *uds.Entries, force bool) (verdict, error) {
	if len(liveValues(entries)) == 0 {
		return absent, nil
	}
	if inConflict(entries) && !force {
		a.adviseConflict(entries)
		return conflicted, nil
	}
	expect, err := expectation(entries)
	if err != nil {
		return "", err
	}
	if force {
		expect = uds.ExpectAny
	}
	var changed *uds.ConflictError
	err = s.write(uds.CodeDelete, uds.WriteRequest{Expect: expect, Key: entries.Key})
	if errors.As(err, &changed) {
		a.talk("colloid: %s changed while this ran; look at it with `colloid get` and delete again", entries.Key)
		return conflicted, nil
	}
	return deleted, s.explain(entries.Key, err)
}
