package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) connectCommand() *cobra.Command {
	var merge bool
	command := &cobra.Command{
		Use:   "connect HOST[:PORT][#KEY]",
		Short: "Join the cluster of another machine",
		Long: `Joins the cluster that the machine HOST belongs to. If no cell runs here yet, starts one that joins
and stays in the foreground; where joining fails, it stops again and says why. KEY is needed when the door of that cluster is locked (colloid lock).

A cell that already holds workloads of its own refuses to join another cluster, because both sets of
workloads would become one; --merge does it nevertheless.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			target, err := parseTarget(arguments[0])
			if err != nil {
				return err
			}
			s, err := a.dial()
			var f *failure
			if errors.As(err, &f) && f.exit == ExitUnreachable && a.socket == "" {
				return a.runAppliance(command.Context(), func(s *session) error { return a.connect(s, target, merge) })
			}
			if err != nil {
				return err
			}
			defer s.close()
			return a.connect(s, target, merge)
		},
	}
	command.Flags().BoolVar(&merge, "merge", false, "join although this cell holds workloads of its own")
	a.run.register(command.Flags())
	return command
}

const connectMerge = 1 // flag of a CONNECT request

func (a *app) connect(s *session, target uds.Target, merge bool) error {
	payload := []byte{0}
	if merge {
		payload[0] = connectMerge
	}
	var reply uds.ConnectReply
	if err := s.call(uds.CodeConnect, append(payload, target.String()...), &reply); err != nil {
		return s.explain("connect "+target.Address(), err)
	}
	a.data("joined cluster %s, %s", printable(reply.Cluster), counted(reply.Members, "member"))
	return nil
}

// parseTarget reads HOST[:PORT][#KEY].
func parseTarget(text string) (uds.Target, error) {
	t, err := uds.ParseTarget(text)
	if err != nil {
		return t, fail(ExitUsage, "%w", err)
	}
	return t, nil
}

func (a *app) leaveCommand() *cobra.Command {
	var drain time.Duration
	var force, abandon bool
	command := &cobra.Command{
		Use:   "leave",
		Short: "Take this machine out of its cluster",
		Long: `Hands this cell's workloads over to the others, waits at most --drain for their replacements to
answer, stops what runs here and ends the daemon. The last cell of a cluster stops its workloads.

While a key in CONFLICT, or one that cannot be read, has an instance here, the cell stays: nobody would take
that instance over. Resolve the key first, or give it up with --force. It also stays while runnerd is gone, since
nothing could be stopped; --force leaves what runs then, and says what that is, with status 1.

A cell with volumes of stateful workloads stays as well: what is in them does not go with the copies. --abandon-volumes
goes on; the files stay in the state directory of runnerd.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			seconds := int64((drain + time.Second - 1) / time.Second)
			if drain < 0 || seconds > 1<<16-1 {
				return fail(ExitUsage, "--drain %v: use 0s to %ds", drain, 1<<16-1)
			}
			request := binary.BigEndian.AppendUint16(nil, uint16(seconds))
			if force || abandon {
				flags := byte(0)
				if force {
					flags |= leaveForce
				}
				if abandon {
					flags |= leaveAbandon
				}
				request = append(request, flags)
			}
			return a.with(func(s *session) error { return a.leave(command.Context(), s, request, drain) })
		},
	}
	command.Flags().DurationVar(&drain, "drain", 30*time.Second, "longest wait for replacements elsewhere")
	command.Flags().BoolVar(&force, "force", false, "also stop what runs here of keys in CONFLICT; leave though runnerd is gone")
	command.Flags().BoolVar(&abandon, "abandon-volumes", false, "leave though volumes of stateful workloads stay behind")
	return command
}

// Flags of a LEAVE request.
const (
	leaveForce   = 1
	leaveAbandon = 2
)

// leaveSlack is how much longer than the drain limit leaving may take: stopping has its own grace.
const leaveSlack = 30 * time.Second

// leave asks the daemon to leave and waits until it is gone. That it leaves is said when it does: a request
// that is refused has begun nothing.
func (a *app) leave(ctx context.Context, s *session, request []byte, drain time.Duration) error {
	last := lastCell{app: a}
	last.look()
	answer := make(chan error, 1)
	var left uds.LeaveReply // read after an answer
	go func() { answer <- s.callOptional(uds.CodeLeave, request, &left) }()
	limit := time.Now().Add(drain + leaveSlack)
	said, accepted := false, false
	for {
		last.look()
		select {
		case err := <-answer:
			if err != nil && !(said && a.gone()) {
				return s.explain("leave", err)
			}
			accepted, answer = true, nil
		case <-ctx.Done():
			return fail(ExitError, "interrupted; the cell goes on leaving")
		case <-time.After(200 * time.Millisecond):
		}
		state, err := a.state()
		if accepted || state == "leaving" {
			last.say()
		}
		if accepted && (err != nil || state == "gone") {
			if len(left.Left) > 0 {
				return leftRunning(left.Left)
			}
			a.data("left the cluster")
			return nil
		}
		if !said && state == "leaving" {
			a.talk("leaving, at most %v for the hand-over", drain)
			said = true
		}
		if time.Now().After(limit) {
			return fail(ExitError, "this cell is still %s: see colloid status", printable(state))
		}
	}
}

// lastCell warns when nobody is left who would keep the configuration: the cell is the only one, or all
// others are leaving as well, also if they began at the same moment.
type lastCell struct {
	app  *app
	text string // the warning, once there is one
	said bool
}

func (l *lastCell) look() {
	if l.text != "" {
		return
	}
	s, err := l.app.dial()
	if err != nil {
		return
	}
	defer s.close()
	status, err := s.status(false)
	if err != nil || len(status.Workloads) == 0 || status.Cell.State == "gone" {
		return
	}
	for _, c := range status.Cells {
		if !c.Self && c.State != "leaving" && c.State != "gone" {
			return // one that does not answer may come back, and has what this one has
		}
	}
	l.text = fmt.Sprintf("no other cell stays: the configuration of %s ends with this cell",
		counted(len(status.Workloads), "workload"))
}

// say prints the warning once it is certain that the cell leaves.
func (l *lastCell) say() {
	if l.text != "" && !l.said {
		l.said = true
		l.app.talk("colloid: %s", l.text)
	}
}

// leftRunning says what nobody looks after any more, and how to end it.
func leftRunning(left []uds.LeftInstance) error {
	run := "run"
	if len(left) == 1 {
		run = "runs"
	}
	f := &failure{exit: ExitError, lines: []string{
		fmt.Sprintf("left the cluster, but %s still %s here:", counted(len(left), "instance"), run),
	}}
	for _, l := range left {
		line := fmt.Sprintf("%s/%d", printable(l.Key), l.Slot)
		if l.PID > 0 {
			line += fmt.Sprintf(", process %d: end it with `kill %d`", l.PID, l.PID)
		}
		f.lines = append(f.lines, line)
	}
	f.lines = append(f.lines, "the next `colloid` with this state directory finds them again and stops them, since nobody wants them then")
	return f
}

// state asks a daemon where it is in its life, over a connection of its own.
func (a *app) state() (string, error) {
	probe, err := a.dial()
	if err != nil {
		return "", err
	}
	defer probe.close()
	reply, err := probe.hello()
	if err != nil {
		return "", err
	}
	return reply.State, nil
}

// gone reports that no daemon answers any more.
func (a *app) gone() bool {
	_, err := a.state()
	return err != nil
}

func (a *app) lockCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lock",
		Short: "Let only those join who have the cluster's key",
		Long: `Closes the door of the cluster: from now on joining needs HOST#KEY. Prints the key. Printing it again
is harmless; whoever has it can join.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.door(1) },
	}
}

func (a *app) unlockCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unlock",
		Short: "Let everybody join who can reach a cell",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return a.door(0) },
	}
}

func (a *app) door(lock byte) error {
	return a.with(func(s *session) error {
		var reply uds.DoorReply
		if err := s.call(uds.CodeDoor, []byte{lock}, &reply); err != nil {
			return s.explain("door", err)
		}
		if !reply.Locked {
			a.talk("the door is open: colloid connect HOST")
			return nil
		}
		a.talk("the door is locked; join with: colloid connect HOST#KEY, where KEY is")
		if reply.Key != "" {
			a.data("%s", reply.Key)
		}
		return nil
	})
}
