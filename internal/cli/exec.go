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
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

func (a *app) execCommand() *cobra.Command {
	var interactive, terminal bool
	command := &cobra.Command{
		Use:               "exec WORKLOAD/INDEX -- COMMAND [ARGUMENT...]",
		ValidArgsFunction: a.completeFirst(replicaNames),
		Short:             "Run a program in a replica",
		Long: `Runs a program beside a replica, wherever that runs, as its user, in its control group and its namespaces. Ends
with the exit status of the program, 128+n for signal n, 127 if it could not be started, and 255 if the
connection was lost. INDEX is the number of the replica in "colloid status"; one of several on one machine is
WORKLOAD@CELL. The host must allow it and know your key: see "colloid help operator".

With -i your input goes to the program, with -t it has a terminal; a shell wants both: -it. Signals go to the
program; a second one of INT, TERM, HUP and QUIT ends the connection and with it the program.`,
		Example:     "  colloid exec -it web/0 -- sh",
		Args:        cobra.MinimumNArgs(2),
		Annotations: map[string]string{takesWords: "yes"},
		RunE: func(command *cobra.Command, arguments []string) error {
			words := arguments[1:]
			if words[0] == "--" { // options end with the replica, so it is one of the words
				words = words[1:]
			}
			if len(words) == 0 || words[0] == "" {
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

// exitInterrupted is the status of what a person interrupted, as shells have it.
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
		s.close() // one connection for each command that stays
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

	allowance *allowance

	// For copies, instead of the app's and of what a person types.
	output      io.Writer
	errors      io.Writer
	input       func(*attach.Writer) error
	interrupted atomic.Bool // the copy, by a person
	cut         atomic.Bool // the connection, from here
}

func (x *execution) run(ctx context.Context) error {
	x.app.endsItself.Store(true)
	x.allowance = newAllowance()
	stop := make(chan struct{})
	defer close(stop)
	go x.signals(ctx, stop)
	defer func() {
		if x.local != nil {
			x.local.restore()
		}
	}()
	reader := attach.NewReader(x.stream)
	accepted := false
	for {
		kind, payload, err := next(reader)
		var no *refused
		switch {
		case errors.As(err, &no):
			return fail(ExitError, "%s: %s", x.name, no.reason)
		case x.interrupted.Load():
			return fail(exitInterrupted, "%s: interrupted", x.name)
		case err != nil && (ctx.Err() != nil || x.cut.Load()):
			return fail(exitLost, "%s: interrupted", x.name)
		case err != nil:
			return fail(lostOrRefused(err, accepted), "%s: %s", x.name, streamTrouble(err))
		case kind == attach.KindAccepted:
			accepted = true
			x.begin.Do(x.started)
			if limit, ok := attach.ParseLimit(payload); ok {
				x.allowance.raise(limit)
			}
		case kind == attach.KindOutput:
			if err := x.write(payload, x.app.Output); err != nil {
				return err // x.output's, or remembered
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

// lostOrRefused is the status for a stream that ended: refused if surely nothing was started, and else lost.
func lostOrRefused(err error, accepted bool) int {
	var reply *uds.ReplyError
	if !accepted && errors.As(err, &reply) && (reply.Errno == uds.ErrorBusy || reply.Errno == uds.ErrorPermission ||
		reply.Errno == uds.ErrorInvalid) {
		return ExitError
	}
	return exitLost
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
	last := byte('\n')
	for {
		n, err := x.app.Input.Read(buffer)
		if n > 0 {
			last = buffer[n-1]
		}
		for rest := buffer[:n]; len(rest) > 0; {
			size := x.allowance.take(len(rest))
			if x.frames.Write(attach.KindInput, rest[:size]) != nil {
				return
			}
			rest = rest[size:]
		}
		if err != nil {
			if x.request.Terminal && last != '\n' { // behind half a line the host's character for the end only sends the line
				_ = x.frames.Write(attach.KindInput, []byte{endOfTransmission})
			}
			_ = x.frames.Write(attach.KindInputEnd, nil)
			return
		}
	}
}

// endOfTransmission is control-D, which a terminal takes for the end of the input at the beginning of a line.
const endOfTransmission = 4

// allowance is how much input the host takes without waiting for the program, so that what is behind it in
// the stream, signals above all, arrives also while the program does not read. Hosts of earlier versions say
// nothing about it.
type allowance struct {
	mutex sync.Mutex
	more  sync.Cond
	sent  uint64
	limit uint64 // 0 = not known
	free  bool   // the host does not say
}

// allowancePatience is how long the host may need to say its limit once attach.InputFirst bytes were sent.
const allowancePatience = time.Second

func newAllowance() *allowance {
	a := &allowance{}
	a.more.L = &a.mutex
	return a
}

// take waits until something may be sent, and returns how much of n.
func (a *allowance) take(n int) int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.limit == 0 && a.sent >= attach.InputFirst && !a.free {
		timer := time.AfterFunc(allowancePatience, func() {
			a.mutex.Lock()
			defer a.mutex.Unlock()
			a.free = true
			a.more.Broadcast()
		})
		defer timer.Stop()
	}
	for {
		room := uint64(n)
		switch {
		case a.limit > 0:
			room = a.limit - min(a.sent, a.limit)
		case !a.free:
			room = attach.InputFirst - min(a.sent, attach.InputFirst)
		}
		if room > 0 {
			n = int(min(uint64(n), room))
			a.sent += uint64(n)
			return n
		}
		a.more.Wait()
	}
}

// raise takes what the host says.
func (a *allowance) raise(limit uint64) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.limit = max(a.limit, limit)
	a.more.Broadcast()
}

// passed are the signals that go to the program: all that somebody could mean for it. Left out are those that
// cannot be caught, those that this process raises itself (SIGPIPE, SIGURG, SIGCHLD, faults), and what stops
// and continues jobs, which is about this command.
func passed() []os.Signal {
	list := []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
		unix.SIGVTALRM, unix.SIGWINCH, unix.SIGIO, unix.SIGPWR, unix.SIGXCPU, unix.SIGXFSZ}
	const firstRealTime = 34 // those below belong to C libraries
	for number := firstRealTime; number <= attach.SignalMax; number++ {
		list = append(list, syscall.Signal(number))
	}
	return list
}

// signals passes on what a person or a script sends to the command; the second of those that ask to end ends
// the connection, and the program with it. Nothing in here waits for the stream, which may take nothing.
func (x *execution) signals(ctx context.Context, stop <-chan struct{}) {
	received := make(chan os.Signal, 16)
	signal.Notify(received, passed()...)
	defer signal.Stop(received)
	out := make(chan attachFrame, 16)
	defer close(out)
	go func() {
		for frame := range out {
			_ = x.frames.Write(frame.kind, frame.payload)
		}
	}()
	send := func(kind attach.Kind, payload []byte) {
		select {
		case out <- attachFrame{kind, payload}:
		default: // the stream takes nothing for long: it is no loss beside the first sixteen
		}
	}
	interrupts := 0
	for {
		select {
		case <-stop:
			return
		case s := <-received:
			number, ok := s.(syscall.Signal)
			ends := number == unix.SIGINT || number == unix.SIGTERM || number == unix.SIGHUP || number == unix.SIGQUIT
			switch {
			case !ok:
			case number == unix.SIGWINCH && x.local != nil:
				if columns, rows, err := term.GetSize(x.local.fd); err == nil {
					send(attach.KindResize, attach.AppendSize(nil, uint16(rows), uint16(columns)))
				}
			case x.output != nil || x.input != nil: // a copy hears of it by the end of its input
				if ends {
					x.interrupted.Store(true)
					x.abandon()
					x.endAnyway(stop, exitInterrupted)
					return
				}
			default:
				if ends {
					interrupts++
				}
				if interrupts > 1 && ends || ctx.Err() != nil && number == unix.SIGHUP {
					x.abandon()
					x.endAnyway(stop, exitLost)
					return
				}
				send(attach.KindSignal, []byte{byte(number)})
			}
		}
	}
}

type attachFrame struct {
	kind    attach.Kind
	payload []byte
}

// endAnyway ends this command if it does not end by itself after abandon: whoever reads its output may not
// do so any more, and a signal that was caught would then be of no use.
func (x *execution) endAnyway(stop <-chan struct{}, status int) {
	select {
	case <-stop:
	case <-time.After(abandonGrace):
		if x.local != nil {
			x.local.restore()
		}
		x.app.abandon(fail(status, "%s: interrupted", x.name))
	}
}

// abandonGrace is what a copy may need to remove what is not complete.
const abandonGrace = 2 * time.Second

// abandon ends the connection, also while somebody waits to write to it; the cell then ends the stream.
func (x *execution) abandon() {
	x.cut.Store(true)
	_ = x.stream.of.connection.Close()
}
