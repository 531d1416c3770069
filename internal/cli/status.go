package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// watchInterval is the pause between two pictures of `status --watch`.
const watchInterval = 2 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var format outputFormat
	var metrics, watch bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show cells, workloads, conflicts and alarms",
		Long: `Shows the cluster as this cell sees it. Ends with status 3 when something waits for a person. With
--metrics it prints counters and gauges in the text format that Prometheus reads. With --watch it
repeats every two seconds until interrupted; -o json then prints one document per line.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if metrics && (watch || format == formatJSON) {
				return fail(ExitUsage, "--metrics stands alone, without --watch and -o json")
			}
			if watch {
				return a.watchStatus(command.Context(), format)
			}
			return a.with(func(s *session) error { return a.showStatus(s, format, metrics) })
		},
	}
	format.register(command)
	command.Flags().BoolVar(&metrics, "metrics", false, "print metrics in Prometheus text format")
	command.Flags().BoolVarP(&watch, "watch", "w", false, "repeat every two seconds")
	return command
}

func (a *app) showStatus(s *session, format outputFormat, metrics bool) error {
	status, err := s.status(metrics || format == formatJSON)
	if err != nil {
		return err
	}
	switch {
	case metrics:
		return writeMetrics(a.Output, status)
	case format == formatJSON:
		err = a.printJSON(status)
	default:
		err = printStatus(a.Output, status)
	}
	if err == nil && status.NeedsHuman {
		return silent(ExitNeedsHuman)
	}
	return err
}

// watchStatus repeats until ctx ends. A daemon that is restarting meanwhile is said and waited for.
func (a *app) watchStatus(ctx context.Context, format outputFormat) error {
	ctx, stop := a.out.while(ctx)
	defer stop()
	a.watches.Store(true)
	screen := isTerminal(a.Output)
	for {
		var picture strings.Builder
		err := a.with(func(s *session) error {
			status, err := s.status(false)
			if err != nil {
				return err
			}
			if format == formatJSON {
				return json.NewEncoder(&picture).Encode(status)
			}
			return printStatus(&picture, status)
		})
		if err != nil {
			report(a.Errors, err)
		} else {
			if screen && format != formatJSON {
				fmt.Fprint(a.Output, "\x1b[H\x1b[2J") // home, clear
			}
			fmt.Fprint(a.Output, picture.String())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func isTerminal(w io.Writer) bool {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// printStatus is the picture for people.
func printStatus(w io.Writer, status *uds.Status) error {
	if status.Cell.CutOff != "" {
		fmt.Fprintf(w, "ATTENTION: %s\n\n", printable(status.Cell.CutOff))
	}
	printSelf(w, status.Cell)
	alive := 0
	for _, c := range status.Cells {
		if c.State == "alive" && !c.Unreached {
			alive++
		}
	}
	fmt.Fprintf(w, "\nCELLS  %d of %d alive\n", alive, len(status.Cells))
	t := newTable(w, "CELL", "HOST", "ADDRESS", "STATE", "REACH", "HEARD", "INSTANCES")
	for _, c := range status.Cells {
		heard := "never"
		switch {
		case c.Self:
			heard = "self"
		case c.HeardSeconds >= 0:
			heard = fmt.Sprintf("%.1fs ago", c.HeardSeconds)
		}
		state := lifeOf(&c)
		if c.Drained {
			state += " (drained)"
		}
		if c.HeldSeconds > 0 {
			state += fmt.Sprintf(", held back %ds", c.HeldSeconds)
		}
		t.row(c.ID, orDash(c.Hostname), c.Address, state, describeReach(c), heard, fmt.Sprint(c.Instances))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := printWorkloads(w, status.Workloads); err != nil {
		return err
	}
	for _, c := range status.Conflicts {
		printConflict(w, c)
	}
	printAlarms(w, status.Alarms)
	return nil
}

// lifeOf is the state of a cell, with a mark while it is not known to be so any more.
func lifeOf(c *uds.CellInfo) string {
	if c.Unreached && c.State == "alive" {
		return "no answer, last alive"
	}
	return c.State
}

func printSelf(w io.Writer, c uds.CellSelf) {
	fmt.Fprintf(w, "cell %s  %s  cluster %s  door %s  up %s\n", c.ID, printable(c.State), printable(c.Cluster),
		printable(c.Door), duration(c.UptimeSeconds))
	fmt.Fprintf(w, "  at %s, meshd %s, %s, %s, state in %s\n", printable(c.Address), printable(c.Version),
		printable(c.Driver), counted(int(c.Keys), "key"), printable(c.StateDirectory))
	if !c.Authoritative {
		fmt.Fprintln(w, "  still catching up: it stops nothing and takes no configuration yet")
	}
	for _, h := range c.Helpers {
		connected := "not connected"
		if h.Connected {
			connected = "connected"
		}
		if h.SilentSeconds > 0 {
			connected = "does not answer, for " + duration(h.SilentSeconds)
		}
		fmt.Fprintf(w, "  %s %s\n", printable(strings.TrimSpace(h.Name+" "+h.Version)), connected)
		for _, d := range h.Degradations {
			fmt.Fprintf(w, "    without: %s\n", printable(d))
		}
	}
}

// instancesShown bounds the instances listed per workload; -o json has them all.
const instancesShown = 8

func printWorkloads(w io.Writer, workloads []uds.WorkloadStatus) error {
	fmt.Fprintln(w, "\nWORKLOADS")
	if len(workloads) == 0 {
		fmt.Fprintln(w, "none yet: colloid apply -f FILE")
		return nil
	}
	t := newTable(w, "KEY", "RUNTIME", "READY", "STATE", "INSTANCES")
	for _, l := range workloads {
		shown := make([]string, 0, instancesShown)
		for i, instance := range l.Instances {
			if i == instancesShown {
				shown = append(shown, fmt.Sprintf("and %d more", len(l.Instances)-i))
				break
			}
			shown = append(shown, fmt.Sprintf("/%d %s", i, describeInstance(instance)))
		}
		t.row(l.Key, l.Runtime, readiness(&l), l.State+reason(l.Reason),
			orDash(strings.Join(shown, ", ")))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, l := range workloads {
		for _, note := range l.Notes {
			fmt.Fprintf(w, "  %s: %s\n", printable(l.Key), printable(note))
		}
	}
	return nil
}

// readiness counts the copies that answer. Those of another version serve too while an update or a conflict
// lasts, so they count up to what is wanted, and are said to be old.
func readiness(w *uds.WorkloadStatus) string {
	old := 0
	for _, i := range w.Instances {
		if i.State == "ready" && i.Digest != w.Digest {
			old++
		}
	}
	old = min(old, max(w.Replicas-w.Ready, 0))
	text := fmt.Sprintf("%d/%d", w.Ready+old, w.Replicas)
	switch {
	case old == 0:
		return text
	case w.State == "conflict": // which of the versions is the old one is not decided
		return text + fmt.Sprintf(" (%d in another version)", old)
	case w.Ready == 0:
		return text + " (old version)"
	}
	return text + fmt.Sprintf(" (%d in the old version)", old)
}

// describeInstance shows where an instance answers and, unless it is ready, what is wrong.
func describeInstance(i uds.InstanceInfo) string {
	where := shortID(i.Cell)
	if i.Address != "" {
		where += " " + i.Address
	}
	separator := ":"
	for _, port := range i.Ports {
		if port == 0 {
			continue // of a container, and not published
		}
		where += fmt.Sprintf("%s%d", separator, port)
		separator = ","
	}
	var notes []string
	switch {
	case i.ExitCode != nil && *i.ExitCode < 0:
		notes = append(notes, i.State+", exit unknown")
	case i.ExitCode != nil:
		notes = append(notes, fmt.Sprintf("%s, exit %d", i.State, *i.ExitCode))
	case i.State != "ready":
		notes = append(notes, i.State)
	}
	if !i.Placed {
		notes = append(notes, "surplus")
	}
	if i.Restarts > 0 {
		notes = append(notes, counted(int(i.Restarts), "restart"))
	}
	if i.OOMKills > 0 {
		notes = append(notes, fmt.Sprintf("%d killed for their memory limit", i.OOMKills))
	}
	if len(notes) > 0 {
		where += " (" + strings.Join(notes, ", ") + ")"
	}
	return where
}

func printConflict(w io.Writer, c uds.ConflictInfo) {
	fmt.Fprintf(w, "\nCONFLICT on %s: %d values were written at the same time\n", printable(c.Key), len(c.Values))
	texts := describeValues(c.Key, c.Values)
	for i, v := range c.Values {
		fmt.Fprintf(w, "  %d  %s  by cell %s at {%s}\n", i+1, texts[i], v.Actor, dotOf(v))
	}
	if cell, drain := drainedCell(c.Key); drain {
		fmt.Fprintf(w, "  it takes no new work meanwhile; decide with `colloid drain %s` or `colloid uncordon %s`\n", cell, cell)
		return
	}
	fmt.Fprintf(w, "  what runs is left as it is; choose with\n"+
		"    colloid resolve %s --seen %s --take N\n    colloid resolve %s --seen %s --from-file FILE\n",
		printable(c.Key), c.Digest, printable(c.Key), c.Digest)
}

func printAlarms(w io.Writer, alarms []uds.Alarm) {
	if len(alarms) == 0 {
		return
	}
	fmt.Fprintln(w, "\nALARMS")
	for _, alarm := range alarms {
		fmt.Fprintf(w, "%-8s  %s\n", printable(alarm.Severity), printable(alarm.Text))
		if alarm.Hint != "" {
			fmt.Fprintf(w, "          %s\n", printable(alarm.Hint))
		}
	}
}
