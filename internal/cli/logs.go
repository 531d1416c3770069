package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

const (
	// logsLook is how often a followed workload is looked for on other cells.
	logsLook = time.Second
	// logsGather is how long what is kept is waited for, to print it in the order of its times; from
	// logsGatherMax bytes on it is printed as it comes.
	logsGather    = 3 * time.Second
	logsGatherMax = 8 << 20
	// logsRetry is the pause before a log is asked for again.
	logsRetry = 2 * time.Second
	// logsNever is a time, in Unix milliseconds, that no clock has yet.
	logsNever = 1 << 48
	// logsHeld bounds a line that is printed in one piece.
	logsHeld = 64 << 10
)

func (a *app) logsCommand() *cobra.Command {
	var f follower
	var since string
	command := &cobra.Command{
		Use:               "logs WORKLOAD[/INDEX | @CELL]",
		ValidArgsFunction: a.completeFirst(workloadAndReplicaNames),
		Short:             "Show what a workload writes, of all its replicas",
		Long: `Shows standard output and standard error of every replica, wherever it runs, line by line with the replica in
front. WORKLOAD/INDEX is one replica by its number in "colloid status", WORKLOAD@CELL those on one machine.
Each replica keeps its last 10 to 20 MiB, across restarts. With --follow the command goes on with what comes,
and finds replicas that move or come back; of a replica by its number it goes on with the one that takes its place. Ends with status 1 if the output of a replica cannot be had.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			var err error
			if f.reference, err = parseReference(arguments[0]); err != nil {
				return err
			}
			if since != "" {
				if f.since, err = parseSince(since, time.Now()); err != nil {
					return err
				}
			}
			if f.tail < -1 {
				return fail(ExitUsage, "--tail is %d, expected a number of lines or -1 for all", f.tail)
			}
			return a.logs(command.Context(), &f)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "go on with what comes")
	flags.StringVar(&since, "since", "", "not before this: a duration as in 10m, or a time as in 2026-01-02T15:04:05Z")
	flags.IntVar(&f.tail, "tail", -1, "last lines of each replica, -1 = all that is kept")
	flags.BoolVarP(&f.timestamps, "timestamps", "t", false, "show when each line was written, to 0.1 s")
	return command
}

// parseSince reads a point in time, or how long ago it was.
func parseSince(text string, now time.Time) (int64, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return max(1, now.Add(-ago).UnixMilli()), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.UnixMilli() <= 0 {
		return 0, fail(ExitUsage, "--since is %.60q, expected a duration as in 10m or a time as in %s", text,
			now.UTC().Format(time.RFC3339))
	}
	return at.UnixMilli(), nil
}

// follower is one run of `logs`. Its fields belong to the goroutine that prints.
type follower struct {
	reference  reference
	follow     bool
	since      int64 // Unix milliseconds
	tail       int
	timestamps bool

	app     *app
	key     string
	streams *multiplexer
	sources map[instance]*source
	events  chan logEvent
	printer logPrinter
	chain   *chain // where one replica by its number was asked for
	failed  bool   // the output of a replica could not be had
	said    string
}

// source is the log of one replica.
type source struct {
	replica replica
	host    string
	remote  *remote
	open    bool
	fresh   bool      // it was not there at first
	present bool      // what was kept has come
	retry   time.Time // not before, after a failure
	gone    bool      // its cell does not answer, which was said
	// Where to go on: lines of this time were seen so often.
	last int64
	seen int
	skip int // of them to be left out after opening again
	held []byte
}

type logEvent struct {
	from *source
	by   *remote // the stream it came by: an event of an old one is void
	line attach.Line
	kind attach.Kind // KindLine, KindPresent or, at the end, 0
	err  error
}

func (a *app) logs(ctx context.Context, f *follower) (err error) {
	ctx, stop := a.out.while(ctx)
	defer stop()
	f.app, f.sources, f.events = a, map[instance]*source{}, make(chan logEvent, 64)
	f.printer = newLogPrinter(a, f.timestamps)
	s, err := a.dial()
	if err != nil {
		return err
	}
	defer s.close()
	if f.key, err = s.fullKey(f.reference.workload); err != nil {
		return err
	}
	status, err := s.status(false)
	if err != nil {
		return err
	}
	if err := known(status, f.key); err != nil {
		return err
	}
	replicas, err := f.reference.find(status, f.key)
	if err != nil {
		return err
	}
	if len(replicas) == 0 && !f.follow {
		return fail(ExitError, "%s runs nowhere yet: `colloid explain %s` says why", printable(f.key), printable(f.key))
	}
	f.printer.single = f.reference.index >= 0 || f.reference.cell != "" && len(replicas) == 1
	f.printer.gathering = !f.printer.single // one has nothing to be put in order with
	if f.reference.index >= 0 {
		f.chain = newChain(&replicas[0], f.key, status)
	}
	a.watches.Store(f.follow)
	if f.streams, err = dialStreams(s); err != nil {
		return err
	}
	defer f.disconnect()
	s.close() // one connection for each command that stays
	f.look(status, replicas)
	f.printer.started = f.printer.started || !f.printer.gathering
	err = f.run(ctx)
	f.printer.flush()
	if err == nil && f.failed && !f.follow {
		return silent(ExitError)
	}
	return err
}

func (f *follower) disconnect() {
	if f.streams == nil {
		return
	}
	f.streams.close()
	f.streams = nil
	for _, s := range f.sources {
		s.open = false
	}
}

// run prints until everything has ended, or ctx does.
func (f *follower) run(ctx context.Context) error {
	gather := time.NewTimer(logsGather)
	defer gather.Stop()
	look := time.NewTicker(logsLook)
	defer look.Stop()
	for {
		if f.printer.gathering && f.allPresent() {
			f.printer.flush()
		}
		if !f.follow && f.allEnded() {
			return nil
		}
		select {
		case <-ctx.Done():
			if !f.follow {
				return ctx.Err() // not all of it was shown
			}
			return nil
		case event := <-f.events:
			f.handle(event)
		case <-gather.C:
			f.printer.flush()
		case <-look.C:
			if !f.follow {
				continue
			}
			if over := f.lookAgain(); over {
				return nil
			}
		}
	}
}

func (f *follower) allPresent() bool {
	for _, s := range f.sources {
		if s.open && !s.present {
			return false
		}
	}
	return true
}

func (f *follower) allEnded() bool {
	for _, s := range f.sources {
		if s.open {
			return false
		}
	}
	return true
}

// say prints a remark once until another follows.
func (f *follower) say(format string, arguments ...any) {
	f.printer.flush()
	f.app.talk("colloid: "+format, arguments...)
}

func (f *follower) open(s *source) {
	request := s.replica.request()
	request.Follow, request.SinceUnixMilliseconds = f.follow, uint64(f.since)
	switch {
	case s.last > 0: // again: from where it ended
		request.SinceUnixMilliseconds, s.skip = uint64(s.last), s.seen
	case s.fresh: // so all of it is
	case f.tail == 0: // nothing of what is kept, whatever the clock of its cell says
		request.SinceUnixMilliseconds = logsNever
	case f.tail > 0:
		request.TailLines = uint32(min(f.tail, 1<<31))
	}
	opened, err := f.streams.open(uds.StreamLogs, s.replica.cellID(), s.replica.key, nil, request)
	if err != nil {
		f.ended(s, err)
		return
	}
	s.remote, s.open = opened, true
	go f.read(s, opened)
}

// read turns a stream into events, on a goroutine of its own.
func (f *follower) read(s *source, from *remote) {
	defer from.Close()
	if !f.follow {
		_ = from.CloseWrite()
	}
	reader := attach.NewReader(from)
	for {
		event := logEvent{from: s, by: from}
		kind, payload, err := next(reader)
		switch {
		case err != nil:
			event.err = err
		case kind == attach.KindAccepted:
			continue
		case kind == attach.KindPresent:
			event.kind = kind
		case kind == attach.KindLine:
			event.kind = kind
			if event.line, event.err = attach.ParseLine(payload); event.err == nil {
				event.line.Text = append([]byte(nil), event.line.Text...)
			}
		default:
			event.err = attach.ErrMalformed
		}
		f.events <- event
		if event.err != nil {
			return
		}
	}
}

func (f *follower) handle(event logEvent) {
	s := event.from
	switch {
	case event.by != s.remote:
		return
	case event.err != nil:
		f.ended(s, event.err)
	case event.kind == attach.KindPresent:
		s.present = true
	default:
		f.line(s, event.line)
	}
}

func (f *follower) line(s *source, line attach.Line) {
	if s.last > 0 && line.UnixMilliseconds > 0 && s.skip > 0 {
		if line.UnixMilliseconds < s.last {
			return
		}
		if line.UnixMilliseconds == s.last {
			if !line.Partial { // parts of a line are one
				s.skip--
			}
			return
		}
		s.skip = 0
	}
	if line.UnixMilliseconds != s.last {
		s.last, s.seen = line.UnixMilliseconds, 0
	}
	if !line.Partial {
		s.seen++
	}
	f.printer.line(s, line)
}

// ended takes the end of a log: the orderly one of a log that is not followed, or trouble.
func (f *follower) ended(s *source, err error) {
	s.open = false
	f.printer.finish(s)
	if errors.Is(err, io.EOF) && !f.follow {
		s.present = true
		return
	}
	s.retry = time.Now().Add(logsRetry)
	reason := streamTrouble(err)
	f.failed = true
	if text := s.replica.name() + " on " + s.host + ": " + reason; text != f.said {
		f.said = text
		f.say("%s", text)
	}
}
