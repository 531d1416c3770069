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
		command.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Name != "help" && flag.Name != "version" && !strings.Contains(manual, "--"+flag.Name) &&
				!strings.Contains(manual, "-"+flag.Shorthand+" ") {
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
