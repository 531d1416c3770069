package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// annotationDaemon marks the flags of the cell that a command starts. Help lists them by themselves.
const annotationDaemon = "colloid_daemon"

// markDaemonFlags marks all flags that are there by now.
func markDaemonFlags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) { _ = flags.SetAnnotation(f.Name, annotationDaemon, []string{"true"}) })
}

// flagsOfHelp is the place of the flags in the library's usage text.
const flagsOfHelp = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"

// splitHelp has usage texts list the flags of the daemon in a section of their own.
func splitHelp(root *cobra.Command) {
	text := root.UsageTemplate()
	if !strings.Contains(text, flagsOfHelp) {
		panic("cli: the usage text of cobra has no place for flags: " + text)
	}
	root.SetUsageTemplate(strings.Replace(text, flagsOfHelp, "{{colloidFlags .LocalFlags | trimTrailingWhitespaces}}", 1))
}

func init() { cobra.AddTemplateFunc("colloidFlags", flagSections) } // the library knows no other place than a global one

func flagSections(all *pflag.FlagSet) string {
	own, daemon := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		if _, is := f.Annotations[annotationDaemon]; is {
			daemon.AddFlag(f)
		} else {
			own.AddFlag(f)
		}
	})
	text := "Flags:\n" + own.FlagUsages()
	if daemon.HasAvailableFlags() {
		text += "\nFlags of the daemon:\n" + daemon.FlagUsages()
	}
	return text
}
