package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docs/commands.md is the reference: what is in the program is in there.
func TestManualHasEveryCommandAndFlag(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(text)
	var check func(command *cobra.Command)
	check = func(command *cobra.Command) {
		if command.Runnable() && !strings.Contains(manual, command.CommandPath()) {
			t.Errorf("docs/commands.md lacks %s", command.CommandPath())
		}
		section := sectionsOf(manual, command.CommandPath())
		if strings.Contains(section, "flags as of `colloid`") {
			section += sectionsOf(manual, "colloid")
		}
		command.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Name != "help" && flag.Name != "version" && !strings.Contains(section, "--"+flag.Name) &&
				!strings.Contains(section, "-"+flag.Shorthand+" ") {
				t.Errorf("docs/commands.md lacks --%s of %s", flag.Name, command.CommandPath())
			}
		})
		for _, sub := range command.Commands() {
			check(sub)
		}
	}
	a := &app{Environment: Environment{Variable: func(string) string { return "" }}}
	check(a.rootCommand())
}

// sectionsOf returns the parts of a manual whose heading names a command: alone, or with its arguments.
func sectionsOf(manual, command string) string {
	found := ""
	for _, section := range strings.Split(manual, "\n### ")[1:] {
		heading, _, _ := strings.Cut(section, "\n")
		if strings.Contains(heading, "`"+command+"`") || command != "colloid" && strings.Contains(heading, "`"+command+" ") {
			found += section
		}
	}
	return found
}
