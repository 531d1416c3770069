package cli

import (
	"context"
	"errors"
	"io"
	"time"
)

// interruptGrace is how long a command may take to end in its own way after control-C or SIGTERM.
const interruptGrace = 500 * time.Millisecond

var errInterrupted = fail(exitInterrupted, "interrupted; what the daemon has been asked for it may do yet")

// execute runs one command, and abandons it soon after ctx. A command may wait for something that knows
// nothing of ctx: a pipe that nobody writes, a terminal, the answer of a daemon. Those that have to clean up,
// or know better what an interruption means, say so with a.endsItself and are waited for.
func (a *app) execute(ctx context.Context, command func(context.Context) error) int {
	done := make(chan struct{})
	if a.Abandon != nil {
		go a.abandonAfter(ctx, done)
	}
	err := a.out.check(command(ctx))
	close(done)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	return report(a.Errors, err)
}

// abandonAfter ends the process for a command that does not end by itself.
func (a *app) abandonAfter(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(interruptGrace):
		switch {
		case a.endsItself.Load():
		case a.watches.Load(): // that is how it ends
			a.abandon(nil)
		default:
			a.abandon(errInterrupted)
		}
	}
}

// abandon ends the process with an error. Whoever does not read standard output may not read what is said
// either, so that is not waited for.
func (a *app) abandon(err error) {
	if a.Abandon == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		report(a.Errors, err)
	}()
	select {
	case <-said:
	case <-time.After(interruptGrace):
	}
	a.Abandon(report(io.Discard, err))
}
