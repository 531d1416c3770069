package cli

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) cellsCommand() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "cells",
		Short: "List the machines of the cluster as this one sees them",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(s *session) error {
				status, err := s.status(false)
				if err != nil {
					return err
				}
				if format == formatJSON {
					return a.printJSON(status.Cells)
				}
				return printCells(a.Output, status.Cells)
			})
		},
	}
	format.register(command)
	return command
}

func printCells(w io.Writer, cells []uds.CellInfo) error {
	t := newTable(w, "CELL", "HOST", "ADDRESS", "STATE", "REACH", "PATH", "RTT", "HEARD", "CPU", "MEMORY", "RUNTIMES",
		"INSTANCES", "VERSION")
	for _, c := range cells {
		state := lifeOf(&c)
		switch {
		case c.Drained:
			state += " (drained)"
		case !c.InPlacement && c.State == "alive":
			state += " (no new work)"
		}
		heard := "never"
		switch {
		case c.Self:
			heard = "self"
		case c.HeardSeconds >= 0:
			heard = fmt.Sprintf("%.1fs ago", c.HeardSeconds)
		}
		t.row(c.ID, orDash(c.Hostname), c.Address, state, describeReach(c), describePath(c), describeRTT(c), heard,
			fmt.Sprintf("%dm", c.CPUMillicores), fmt.Sprintf("%dMiB", c.MemoryMiB),
			orDash(strings.Join(c.Runtimes, ",")), fmt.Sprint(c.Instances), orDash(c.Version))
	}
	return t.flush()
}

func (a *app) forgetCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "forget CELL",
		ValidArgsFunction: a.completeFirst(cellNames),
		Short:             "Declare a dead machine gone for good",
		Long: `CELL is an id, a unique beginning of one, or a host name. The cluster stops waiting for the machine
and cleans up after it. A machine that is alive is refused: use "colloid leave" on it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			return a.with(func(s *session) error { return a.forget(s, arguments[0]) })
		},
	}
}

func (a *app) forget(s *session, name string) error {
	status, err := s.status(false)
	if err != nil {
		return err
	}
	cell, err := findCell(status.Cells, name)
	if err != nil {
		return err
	}
	if cell.State == "alive" || cell.State == "leaving" || cell.Self {
		return fail(ExitError, "cell %s is %s: run `colloid leave` on that machine", cell.ID, printable(cell.State))
	}
	if cell.State == "gone" {
		a.data("%s was forgotten already, or has left", cell.ID)
		return nil
	}
	var id uint64
	if _, err := fmt.Sscanf(cell.ID, "%016x", &id); err != nil {
		return fail(ExitError, "the daemon sent the cell id %q: %w", printable(cell.ID), err)
	}
	if err := s.call(uds.CodeForget, binary.BigEndian.AppendUint64(nil, id), nil); err != nil {
		return s.explain("forget "+cell.ID, err)
	}
	a.data("%s forgotten", cell.ID)
	return nil
}

// findCell finds the one cell that a name means.
func findCell(cells []uds.CellInfo, name string) (uds.CellInfo, error) {
	var found []uds.CellInfo
	for _, c := range cells {
		if c.ID == strings.ToLower(name) {
			return c, nil
		}
		if name != "" && (strings.HasPrefix(c.ID, strings.ToLower(name)) || c.Hostname == name) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return uds.CellInfo{}, fail(ExitError, "no cell is called %q: see colloid cells", name)
	case 1:
		return found[0], nil
	}
	return uds.CellInfo{}, fail(ExitUsage, "%q means %d cells: write more of the id", name, len(found))
}

// describeReach is what strangers can expect of a cell. Of one that is not there it says nothing.
func describeReach(c uds.CellInfo) string {
	if c.State == "dead" || c.State == "gone" {
		return "-"
	}
	return orDash(c.Reach)
}
