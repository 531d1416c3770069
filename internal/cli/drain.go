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
	command := &cobra.Command{
		Use:   "drain CELL",
		Short: "Empty a machine and keep new work away from it",
		Long: `CELL is an id, a unique beginning of one, or a host name; the command can be given on any machine of the
cluster. Each copy stops when its successor elsewhere is ready. Waits until the machine is empty; at --timeout it
says what is left and ends with status 1. The machine gets no new work until "colloid uncordon".`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.drain(command.Context(), s, arguments[0], timeout) })
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait; 0 = not at all")
	return command
}

func (a *app) uncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "uncordon CELL",
		Short: "Let a drained machine have work again",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error {
				id, err := s.setDrained(arguments[0], false)
				if err != nil {
					return err
				}
				a.data("%s takes work again", id)
				return nil
			})
		},
	}
}

// setDrained writes the wish and returns the id of the cell that was meant.
func (s *session) setDrained(name string, wish bool) (string, error) {
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
	flag := byte(0)
	if wish {
		flag = 1
	}
	return cell.ID, s.explain("cell "+cell.ID, s.call(uds.CodeDrain, append(binary.BigEndian.AppendUint64(nil, id), flag), nil))
}

func (a *app) drain(ctx context.Context, s *session, name string, timeout time.Duration) error {
	if timeout < 0 {
		return fail(ExitUsage, "--timeout is %v, expected 0 (not at all) or more", timeout)
	}
	id, err := s.setDrained(name, true)
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
	for {
		status, err := s.status(false)
		if err != nil {
			return err
		}
		left := leftOn(status, id)
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
