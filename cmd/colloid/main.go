// Command colloid is the command line of Colloid and, without arguments, the launcher of this
// machine's cell. See docs/commands.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"colloid.net/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := cli.Main(ctx, takeArguments(), cli.Environment{
		Input: os.Stdin, Output: os.Stdout, Errors: os.Stderr, Variable: os.Getenv, Root: os.Geteuid() == 0,
		Abandon: os.Exit,
	})
	stop()
	os.Exit(code)
}
