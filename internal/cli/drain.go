package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

// drainInterval is the pause between two looks of `drain`.
const drainInterval = 500 * time.Millisecond

func (a *app) drainCommand() *cobra.Command {
	var timeout time.Duration
	var abandon bool
	command := &cobra.Command{
		Use:               "drain CELL",
		ValidArgsFunction: a.completeFirst(cellNames),
		Short:             "Empty a machine and keep new work away from it",
		Long: `CELL is an id, a unique beginning of one, or a host name; the command can be given on any machine of the
cluster. Each copy stops when its successor elsewhere is ready. Waits until the machine is empty; at --timeout it
says what is left and ends with status 1. The machine gets no new work until "colloid uncordon". When the local daemon
restarts meanwhile, the command waits for it.

A machine with volumes of stateful workloads is refused: what is in them does not go with the copies. --abandon-volumes
goes on; the files stay on that machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.drain(command.Context(), s, arguments[0], timeout, abandon) })
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait; 0 = not at all")
	command.Flags().BoolVar(&abandon, "abandon-volumes", false, "drain though volumes of stateful workloads stay behind")
	return command
}

func (a *app) uncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "uncordon CELL",
		ValidArgsFunction: a.completeFirst(cellNames),
		Short:             "Let a drained machine have work again",
		Args:              cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error {
				id, err := s.setDrained(arguments[0], drainNo)
				if err != nil {
					return err
				}
				a.data("%s takes work again", id)
				return nil
			})
		},
	}
}

// Wishes of a DRAIN request.
const (
	drainNo      = 0
	drainYes     = 1
	drainAbandon = 2 // though volumes stay behind
)

// setDrained writes the wish and returns the id of the cell that was meant.
func (s *session) setDrained(name string, wish byte) (string, error) {
	status, err := s.status(false)
	if err != nil {
		return "", err
	}
	cell, err := findCell(status.Cells, name)
	if err != nil {
		return "", err
	}
	if cell.State == "gone" && !cell.Drained { // a wish that is left of its life can be taken back
		return "", fail(ExitError, "cell %s is gone: it left the cluster or was forgotten", cell.ID)
	}
	var id uint64
	if _, err := fmt.Sscanf(cell.ID, "%016x", &id); err != nil {
		return "", fail(ExitError, "the daemon sent the cell id %q: %w", printable(cell.ID), err)
	}
	return cell.ID, s.explain("cell "+cell.ID, s.call(uds.CodeDrain, append(binary.BigEndian.AppendUint64(nil, id), wish), nil))
}

func (a *app) drain(ctx context.Context, s *session, name string, timeout time.Duration, abandon bool) error {
	if timeout < 0 {
		return fail(ExitUsage, "--timeout is %v, expected 0 (not at all) or more", timeout)
	}
	wish := byte(drainYes)
	if abandon {
		wish = drainAbandon
	}
	id, err := s.setDrained(name, wish)
	if err != nil {
		return err
	}
	if timeout == 0 {
		a.data("%s takes no new work", id)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := ""
	var left []string
	for {
		status, again, err := a.statusAgain(ctx, s)
		if err != nil {
			return fail(ExitUnreachable, "%s takes no new work, and the local daemon is gone, so nobody knows here whether it is "+
				"empty: %w", id, err)
		}
		if again != s { // the first one is closed by whoever opened it
			defer again.close()
			s = again
		}
		left = leftOn(status, id)
		if len(left) == 0 && ranPlan(status, id) {
			a.data("%s is empty and takes no new work", id)
			return nil
		}
		if line := strings.Join(left, ", "); line != last {
			a.talk("colloid: still on %s: %s", shortID(id), orDash(line))
			last = line
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fail(ExitError, "%s takes no new work, and nobody waits any more until it is empty: still there %s",
					id, strings.Join(left, ", "))
			}
			return fail(ExitError, "%s takes no new work but is not empty after %v: %s", id, timeout, strings.Join(left, ", "))
		case <-time.After(drainInterval):
		}
	}
}

// statusAgain asks for the status, of a daemon that has restarted over a new connection. It ends with ctx.
func (a *app) statusAgain(ctx context.Context, s *session) (*uds.Status, *session, error) {
	first := s
	said := false
	for {
		var status *uds.Status
		var err error
		if s == nil {
			s, err = a.dial()
		}
		if err == nil {
			if status, err = s.status(false); err == nil {
				if said {
					a.talk("colloid: connected to the daemon again")
				}
				return status, s, nil
			}
			if s != first {
				s.close()
			}
			s = nil
		}
		if !said {
			a.talk("colloid: the local daemon is gone, waiting for it")
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, first, err
		case <-time.After(drainInterval):
		}
	}
}

// ranPlan reports whether the answering cell has seen the wish.
func ranPlan(status *uds.Status, id string) bool {
	for _, c := range status.Cells {
		if c.ID == id {
			return c.Drained
		}
	}
	return true // it has gone meanwhile
}

// leftOn lists the instances of a cell, with the reason why one stays.
func leftOn(status *uds.Status, id string) []string {
	var left []string
	for _, w := range status.Workloads {
		for _, i := range w.Instances {
			if i.Cell != id {
				continue
			}
			text := fmt.Sprintf("%s (%s)", w.Key, printable(i.State))
			if w.State == "unsatisfied" {
				text = fmt.Sprintf("%s (%s, %s)", w.Key, printable(i.State), printable(w.Reason))
			}
			left = append(left, text)
		}
	}
	return left
}

// drainedCell takes the key of an operator's wish apart.
func drainedCell(key string) (cell string, ok bool) {
	cell, ok = strings.CutPrefix(key, "cell.")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(cell, ".drain")
}
