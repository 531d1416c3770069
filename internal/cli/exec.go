package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

func (a *app) execCommand() *cobra.Command {
	var interactive, terminal bool
	command := &cobra.Command{
		Use:   "exec WORKLOAD/INDEX -- COMMAND [ARGUMENT...]",
		Short: "Run a program in a replica",
		Long: `Runs a program beside a replica, wherever that runs, as its user, in its control group and its namespaces. Ends
with the exit status of the program, 128+n for signal n, 127 if it could not be started, and 255 if the
connection was lost. INDEX is the number of the replica in "colloid status"; one of several on one machine is
WORKLOAD@CELL. The host must allow it and know your key: see "colloid help operator".

With -i your input goes to the program, with -t it has a terminal; a shell wants both: -it. Interrupt goes to
the program; a second one within a second ends the connection and with it the program.`,
		Example: "  colloid exec -it web/0 -- sh",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(command *cobra.Command, arguments []string) error {
			words := arguments[1:]
			if words[0] == "--" { // options end with the replica, so it is one of the words
				words = words[1:]
			}
			if len(words) == 0 {
				return fail(ExitUsage, "no command was given: write the replica, --, and the command")
			}
			return a.exec(command.Context(), arguments[0], &attach.Request{
				Arguments: words, Terminal: terminal, Input: interactive,
			})
		},
	}
	command.Flags().SetInterspersed(false)
	command.Flags().BoolVarP(&interactive, "interactive", "i", false, "pass standard input on")
	command.Flags().BoolVarP(&terminal, "tty", "t", false, "give the program a terminal")
	return command
}

// exitLost is the status of exec when it is not known how the program ended.
const exitLost = 255

// exitInterrupted is the status of a copy that a person interrupted, as shells have it.
const exitInterrupted = 130

// openInside opens a stream of exec or copy to a replica.
func (a *app) openInside(s *session, kind uint8, name string, request *attach.Request) (*multiplexer, *remote, *replica, error) {
	target, _, err := a.one(s, name)
	if err != nil {
		return nil, nil, nil, err
	}
	permission, err := a.grant(target.key)
	if err != nil {
		return nil, nil, nil, err
	}
	whole := target.request()
	whole.Arguments, whole.Terminal, whole.Input = request.Arguments, request.Terminal, request.Input
	whole.Rows, whole.Columns, whole.Path, whole.Into = request.Rows, request.Columns, request.Path, request.Into
	streams, err := dialStreams(s)
	if err != nil {
		return nil, nil, nil, err
	}
	stream, err := streams.open(kind, target.cellID(), target.key, permission, whole)
	if err != nil {
		streams.close()
		return nil, nil, nil, s.explain(target.name(), err)
	}
	return streams, stream, target, nil
}

func (a *app) exec(ctx context.Context, name string, request *attach.Request) error {
	local := a.terminal()
	if request.Terminal && local != nil {
		if columns, rows, err := term.GetSize(local.fd); err == nil {
			request.Rows, request.Columns = uint16(rows), uint16(columns)
		}
	}
	return a.with(func(s *session) error {
		streams, stream, target, err := a.openInside(s, uds.StreamExec, name, request)
		if err != nil {
			return err
		}
		defer streams.close()
		x := &execution{app: a, stream: stream, frames: attach.NewWriter(stream), name: target.name(), request: request}
		if request.Terminal && local != nil && request.Input {
			x.local = local
		}
		return x.run(ctx)
	})
}

// localTerminal is the terminal that the command was started on.
type localTerminal struct {
	fd    int
	saved *term.State
}

func (a *app) terminal() *localTerminal {
	if file, ok := a.Input.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &localTerminal{fd: int(file.Fd())}
	}
	return nil
}

func (t *localTerminal) raw() (err error) {
	t.saved, err = term.MakeRaw(t.fd)
	return err
}

func (t *localTerminal) restore() {
	if t.saved != nil {
		_ = term.Restore(t.fd, t.saved)
	}
}

// execution is one run of exec.
type execution struct {
	app     *app
	stream  *remote
	frames  *attach.Writer
	local   *localTerminal
	name    string
	request *attach.Request
	begin   sync.Once

	// For copies, instead of the app's and of what a person types.
	output      io.Writer
	errors      io.Writer
	input       func(*attach.Writer) error
	interrupted atomic.Bool
}

func (x *execution) run(ctx context.Context) error {
	stop := make(chan struct{})
	defer close(stop)
	go x.signals(ctx, stop)
	defer func() {
		if x.local != nil {
			x.local.restore()
		}
	}()
	reader := attach.NewReader(x.stream)
	for {
		kind, payload, err := next(reader)
		var no *refused
		switch {
		case errors.As(err, &no):
			return fail(ExitError, "%s: %s", x.name, no.reason)
		case x.interrupted.Load():
			return fail(exitInterrupted, "%s: interrupted", x.name)
		case err != nil && ctx.Err() != nil:
			return fail(exitLost, "%s: interrupted", x.name)
		case err != nil:
			return fail(exitLost, "%s: %s", x.name, streamTrouble(err))
		case kind == attach.KindAccepted:
			x.begin.Do(x.started)
		case kind == attach.KindOutput:
			if err := x.write(payload, x.app.Output); err != nil {
				return fail(ExitError, "write: %w", err)
			}
		case kind == attach.KindErrors:
			_, _ = cmp.Or(x.errors, x.app.Errors).Write(payload)
		case kind == attach.KindExit:
			return x.exited(payload)
		default:
			return fail(exitLost, "%s: the host sent something that is not understood: are the cells of one version?", x.name)
		}
	}
}

func (x *execution) write(payload []byte, to io.Writer) error {
	if x.output != nil {
		to = x.output
	}
	_, err := to.Write(payload)
	return err
}

func (x *execution) exited(payload []byte) error {
	exit, err := attach.ParseExit(payload)
	switch {
	case err != nil:
		return fail(exitLost, "%s: %w", x.name, err)
	case exit.Reason != "" && exit.Code < 0:
		return fail(exitLost, "%s: %s", x.name, printable(exit.Reason))
	case exit.Reason != "":
		return fail(int(exit.Code), "%s: %s", x.name, printable(exit.Reason))
	case exit.Code != 0:
		return silent(int(exit.Code))
	}
	return nil
}

// started is called when the program runs: from now on the keys are its.
func (x *execution) started() {
	if x.local != nil {
		if err := x.local.raw(); err != nil {
			x.app.talk("colloid: %v", err)
		}
	}
	if x.input != nil {
		go func() {
			if x.input(x.frames) == nil {
				_ = x.frames.Write(attach.KindInputEnd, nil)
			}
		}()
	} else if x.request.Input {
		go x.passInput()
	}
}

func (x *execution) passInput() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := x.app.Input.Read(buffer)
		if n > 0 && x.frames.Write(attach.KindInput, buffer[:n]) != nil {
			return
		}
		if err != nil {
			_ = x.frames.Write(attach.KindInputEnd, nil)
			return
		}
	}
}

// signals passes on what a person or a script sends to the command. ctx ends with the first interrupt, of
// which the program hears; the second ends the connection.
func (x *execution) signals(ctx context.Context, stop <-chan struct{}) {
	received := make(chan os.Signal, 8)
	signal.Notify(received, unix.SIGWINCH, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(received)
	interrupts := 0
	for {
		select {
		case <-stop:
			return
		case s := <-received:
			number, ok := s.(syscall.Signal)
			switch {
			case !ok:
			case number == unix.SIGWINCH:
				x.resize()
			case x.output != nil || x.input != nil: // a copy hears of it by the end of its input
				x.interrupted.Store(true)
				x.stream.Close()
				_ = x.stream.of.connection.Close()
				return
			default:
				if interrupts++; interrupts > 1 || ctx.Err() != nil && number == unix.SIGHUP {
					x.stream.Close()
					_ = x.stream.of.connection.Close()
					return
				}
				_ = x.frames.Write(attach.KindSignal, []byte{byte(number)})
			}
		}
	}
}

func (x *execution) resize() {
	if x.local == nil {
		return
	}
	if columns, rows, err := term.GetSize(x.local.fd); err == nil {
		_ = x.frames.Write(attach.KindResize, attach.AppendSize(nil, uint16(rows), uint16(columns)))
	}
}
