package cli

import (
	"errors"
	"strconv"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

type resolveFlags struct {
	file      string
	variables []string
	take      int
	seen      string
}

func (a *app) resolveCommand() *cobra.Command {
	var flags resolveFlags
	command := &cobra.Command{
		Use:   "resolve KEY --take N | --from-file FILE",
		Short: "End a conflict by choosing a value",
		Long: `Replaces the concurrent values of a key by one of them (--take, counted as "colloid status" shows
them) or by the block of this key in a file (--from-file). With --seen, as printed by status, the
choice is only carried out if the key still holds exactly the values that were shown. Every value that
is replaced is printed on standard error in full, so that none vanishes without a trace.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(command *cobra.Command, arguments []string) error {
			if (flags.file != "") == command.Flags().Changed("take") {
				return fail(ExitUsage, "choose with either --take N or --from-file FILE")
			}
			return a.with(func(s *session) error { return a.resolve(s, arguments[0], flags) })
		},
	}
	command.Flags().StringVar(&flags.file, "from-file", "",
		"take the block of this key from a file, - for standard input")
	registerVariables(command, &flags.variables)
	command.Flags().IntVar(&flags.take, "take", 0, "take value number `N` of those that status shows")
	command.Flags().StringVar(&flags.seen, "seen", "", "`DIGEST` of the values the choice is based on")
	return command
}

func (a *app) resolve(s *session, name string, flags resolveFlags) error {
	key, err := s.fullKey(name)
	if err != nil {
		return err
	}
	entries, err := s.get(key)
	if err != nil {
		return err
	}
	if flags.seen != "" && flags.seen != entries.Digest {
		if !inConflict(entries) {
			return fail(ExitConflict, "%s is no longer in conflict, somebody has decided: see colloid get %s", key, key)
		}
		a.adviseConflict(entries)
		return fail(ExitConflict, "%s has changed since it was shown (now %s)", key, entries.Digest)
	}
	if !inConflict(entries) {
		return fail(ExitError, "%s is not in conflict: change it with colloid apply", key)
	}
	chosen, err := a.choose(s, entries, flags)
	if err != nil {
		return err
	}
	expect, err := expectation(entries)
	if err != nil {
		return err
	}
	request := uds.WriteRequest{Expect: expect, Key: key, Value: chosen}
	code := uds.CodeResolve
	if len(chosen) == 0 { // a deletion was chosen
		code = uds.CodeDelete
	}
	var changed *uds.ConflictError
	err = s.write(code, request)
	if errors.As(err, &changed) {
		a.adviseConflict(&changed.Entries)
		return fail(ExitConflict, "%s changed while this ran: look again and choose again", key)
	}
	if err != nil {
		return s.explain(key, err)
	}
	a.showReplaced(entries, string(chosen))
	a.data("%s resolved", key)
	return nil
}

// choose returns the bytes to write, none for a deletion.
func (a *app) choose(s *session, entries *uds.Entries, flags resolveFlags) ([]byte, error) {
	if flags.file == "" {
		if flags.take < 1 || flags.take > len(entries.Entries) {
			a.adviseConflict(entries)
			return nil, fail(ExitUsage, "--take %d: %s has values 1 to %d", flags.take, entries.Key,
				len(entries.Entries))
		}
		v := entries.Entries[flags.take-1]
		if v.Deleted {
			return nil, nil
		}
		return v.Value, nil
	}
	all, err := a.load(fileFlags{files: []string{flags.file}, variables: flags.variables})
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if d.key == entries.Key {
			if err := s.seal(&d, true); err != nil {
				return nil, err
			}
			return d.encoded, nil
		}
	}
	return nil, fail(ExitUsage, "%s has no block for %s", strconv.Quote(flags.file), entries.Key)
}

// showReplaced leaves a trace of the values that lost.
func (a *app) showReplaced(entries *uds.Entries, chosen string) {
	for _, v := range entries.Entries {
		if string(v.Value) == chosen || v.Deleted {
			continue
		}
		text, err := formatValue(entries.Key, v)
		if err != nil {
			text = describeValue(entries.Key, v)
		}
		a.talk("# replaced value, written by cell %s, its write %d:\n%s", v.Actor, v.Sequence, commented(text))
	}
}
