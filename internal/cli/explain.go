package cli

import (
	"fmt"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) explainCommand() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "explain KEY",
		Short: "Say why a workload runs where it runs",
		Long: `Prints the ranking of the cells for a workload, best first, and for each cell whether it was chosen
or why it was passed over.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.explainWorkload(s, arguments[0], format) })
		},
	}
	format.register(command)
	return command
}

func (a *app) explainWorkload(s *session, name string, format outputFormat) error {
	key, err := s.fullKey(name)
	if err != nil {
		return err
	}
	var e uds.Explanation
	if err := s.call(uds.CodeExplain, []byte(key), &e); err != nil {
		return s.explain(key, err)
	}
	if format == formatJSON {
		return a.printJSON(&e)
	}
	a.data("%s: %s%s", e.Key, printable(e.State), reason(e.Reason))
	for _, note := range e.Notes {
		a.data("%s", printable(note))
	}
	t := newTable(a.Output, "RANK", "CELL", "SCORE", "VERDICT", "INSTANCE")
	for i, c := range e.Ranking {
		t.row(fmt.Sprint(i+1), c.Cell, c.Score, c.Verdict, orDash(c.Instance))
	}
	return t.flush()
}

// reason appends a reason if there is one.
func reason(text string) string {
	if text == "" {
		return ""
	}
	return ", " + printable(text)
}
