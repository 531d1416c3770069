package cli

import (
	"fmt"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
	"github.com/spf13/cobra"
)

// specSizeMax is shown beside the size of a specification (F82).
const specSizeMax = workload.SpecSizeMax

func (a *app) getCommand() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "get KEY",
		Short: "Print what the cluster holds under a key",
		Long: `Prints a workload as configuration text, any other key as text or hexadecimal digits. A key with
concurrent values prints all of them and ends with status 5.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.get(s, arguments[0], format) })
		},
	}
	format.register(command)
	return command
}

func (a *app) get(s *session, name string, format outputFormat) error {
	key, err := s.fullKey(name)
	if err != nil {
		return err
	}
	entries, err := s.get(key)
	if err != nil {
		return err
	}
	if len(liveValues(entries)) == 0 {
		return fail(ExitError, "%s: not found", key)
	}
	if format == formatJSON {
		if err := a.printJSON(entries); err != nil {
			return err
		}
	} else {
		fmt.Fprint(a.Output, renderEntries(entries))
	}
	if inConflict(entries) {
		a.adviseConflict(entries)
		return silent(ExitConflict)
	}
	return nil
}

// renderEntries shows one value as it is and several as comments, so that the text of a conflict is
// never applied by accident.
func renderEntries(entries *uds.Entries) string {
	var b strings.Builder
	several := inConflict(entries)
	for _, v := range entries.Entries {
		text, err := formatValue(entries.Key, v)
		if err != nil {
			fmt.Fprintf(&b, "# %s: %d bytes that are no valid specification\n", entries.Key, len(v.Value))
			continue
		}
		fmt.Fprintf(&b, "# %s: %d of %d bytes, written by cell %s\n", entries.Key, len(v.Value), specSizeMax, v.Actor)
		if several {
			text = commented(text)
		}
		for _, name := range v.Sealed {
			fmt.Fprintf(&b, "# sealed: %s\n", printable(name))
		}
		b.WriteString(text)
	}
	return b.String()
}

func (a *app) exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print all workloads as configuration text",
		Long: `Prints every workload in the order of its key, ready for "colloid apply -f -". Workloads in conflict
are printed as comments with all their values, and the command ends with status 5.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.with(a.export) },
	}
}

func (a *app) export(s *session) error {
	exit := ExitOK
	for _, kind := range workloadKinds {
		keys, err := s.list(string(kind) + ".")
		if err != nil {
			return err
		}
		for _, key := range keys {
			entries, err := s.get(key)
			if err != nil {
				return err
			}
			if len(liveValues(entries)) == 0 {
				continue
			}
			fmt.Fprintln(a.Output, renderEntries(entries))
			if inConflict(entries) {
				a.adviseConflict(entries)
				exit = ExitConflict
			}
		}
	}
	if exit != ExitOK {
		return silent(exit)
	}
	return nil
}

// completeKeys offers the workloads' keys to the shell.
func (a *app) completeKeys(_ *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var found []cobra.Completion
	err := a.with(func(s *session) error {
		for _, kind := range workloadKinds {
			keys, err := s.list(string(kind) + ".")
			if err != nil {
				return err
			}
			for _, key := range keys {
				if strings.HasPrefix(key, prefix) {
					found = append(found, key)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
