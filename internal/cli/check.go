package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// CheckArguments parses a command line like Main and says what is wrong with it, but runs nothing. The
// tests hold every command that the manuals show to it.
func CheckArguments(arguments []string) error {
	a := &app{Environment: Environment{Variable: func(string) string { return "" }}}
	root := a.rootCommand()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	command, rest, err := root.Find(arguments)
	if err != nil {
		return err
	}
	command.InitDefaultHelpFlag()
	command.InitDefaultVersionFlag()
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	if err := command.ValidateRequiredFlags(); err != nil {
		return err
	}
	if err := command.ValidateFlagGroups(); err != nil {
		return err
	}
	if command.Args == nil {
		return cobra.ArbitraryArgs(command, command.Flags().Args())
	}
	return command.ValidateArgs(command.Flags().Args())
}

// Usage returns the help text of a command, "" being colloid itself and "image pull" one below another, and
// whether there is such a command.
func Usage(name string) (text string, known bool) {
	a := &app{Environment: Environment{Variable: func(string) string { return "" }}}
	command := a.rootCommand()
	command.InitDefaultHelpCmd()
	command.InitDefaultCompletionCmd()
	if name != "" {
		found, rest, err := command.Find(strings.Fields(name))
		if err != nil || found == command || len(rest) > 0 {
			return "", false
		}
		command = found
	}
	command.InitDefaultHelpFlag()
	text = command.UsageString()
	if name != "" {
		for _, sub := range command.Commands() { // as in "rollout status NAME --watch"
			text += sub.UsageString()
		}
	}
	return text, true
}
