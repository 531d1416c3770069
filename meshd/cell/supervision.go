package cell

import (
	"fmt"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// runnerdGrace is how long runnerd may be away before its absence counts: the launcher's longest pause before a start
// is 10 s, and then it has its instances to list.
const runnerdGrace = 20 * time.Second

// endsShown is from how many ends within the launcher's window on status speaks of a program that keeps ending.
const endsShown = 3

// ProgramNotice is what the launcher saw of a program of this cell that ended without being told to.
type ProgramNotice struct {
	Program     string        // "meshd" or "runnerd"; others are ignored
	Ends        int           // within Window
	Window, Ago time.Duration // Ago is since the last end
	Reason      string        // of the last one, a line
	Down        bool          // nobody starts it again
}

// supervision is what this cell knows of the ends of its own programs, at most two.
type supervision struct {
	notices map[string]ProgramNotice
	until   map[string]clock.Instant // a notice is shown
}

// ProgramEnded takes a notice of the launcher; it replaces the earlier one about the program.
func (c *Cell) ProgramEnded(now clock.Instant, notice ProgramNotice) {
	c.now = now
	if notice.Program != "meshd" && notice.Program != "runnerd" {
		return
	}
	if c.supervision.notices == nil {
		c.supervision.notices = make(map[string]ProgramNotice)
		c.supervision.until = make(map[string]clock.Instant)
	}
	c.supervision.notices[notice.Program] = notice
	c.supervision.until[notice.Program] = now.Add(max(0, notice.Window-notice.Ago))
	c.drain()
}

// endAlarms speaks of programs that keep ending, and of one that nobody starts any more.
func (c *Cell) endAlarms(add func(severity, text, hint string)) {
	for _, name := range [...]string{"meshd", "runnerd"} {
		n, noticed := c.supervision.notices[name]
		switch {
		case !noticed:
		case n.Down && !c.runner.connected:
			add("critical", name+" cannot run with its configuration and is not started again: "+orSeeLog(n.Reason),
				"put right what it names, then start colloid again; instances run on meanwhile")
		case n.Ends >= endsShown && !c.supervision.until[name].Reached(c.now):
			add("critical", fmt.Sprintf("%s ended %d times within %v and was started again, the last time: %s", name, n.Ends,
				n.Window.Round(time.Minute), orSeeLog(n.Reason)), "the launcher's output has all that it said")
		}
	}
}

func orSeeLog(reason string) string {
	if reason == "" {
		return "it did not say why"
	}
	return reason
}

// runnerExpected reports whether there should be a runnerd: there was one, the launcher starts one, or an earlier life of
// this cell has said that instances are here.
func (c *Cell) runnerExpected() bool {
	return c.runner.known || c.config.RunnerExpected || c.runner.ranBefore
}

// ranBefore reports whether the cell's own endpoints list instances. Only runnerd can say that they are no more.
func (c *Cell) ranBefore() bool {
	for id, endpoint := range c.views.endpoints {
		if id.cell == c.config.Self && len(endpoint.Instances) > 0 {
			return true
		}
	}
	return false
}

// unsupervised reports whether runnerd is away for longer than a restart takes, so that nobody looks after what runs
// on this host.
func (c *Cell) unsupervised() bool {
	return !c.runner.connected && c.runnerExpected() && c.now.Sub(c.runner.away) >= runnerdGrace
}

// tickSupervision tells the others when that changes.
func (c *Cell) tickSupervision() {
	if now := c.unsupervised(); now != c.runner.marked {
		c.runner.marked = now
		c.schedule.restate = true
	}
}

func (c *Cell) supervisionDeadline() clock.Instant {
	if c.runner.connected || c.runner.marked || !c.runnerExpected() {
		return clock.Never
	}
	return c.runner.away.Add(runnerdGrace)
}

// runnerFlags are the flags of this cell's contact that come from runnerd. Until the first word of one that is to be
// expected, they stay what they were: a start of the cell does not take away what runs on it.
func (c *Cell) runnerFlags() uint32 {
	flags := c.runner.flags(c.store.Degraded())
	if view := c.views.cells[c.config.Self]; !c.runner.known && c.runnerExpected() && view != nil && view.hasContact {
		flags |= view.contact.Flags & runnerFlagsMask
	}
	if c.runner.marked {
		flags |= state.FlagUnsupervised
	}
	return flags
}

// unsupervisedAt reports whether nobody looks after the instances of a cell.
func (c *Cell) unsupervisedAt(id wire.CellID) bool {
	if id == c.config.Self {
		return c.unsupervised()
	}
	view := c.views.cells[id]
	return view != nil && view.hasContact && view.contact.Flags&state.FlagUnsupervised != 0
}

// absenceAlarms speaks of a runnerd that is not there, of this cell or of another.
func (c *Cell) absenceAlarms(add func(severity, text, hint string)) {
	switch {
	case c.unsupervised():
		add("critical", fmt.Sprintf("runnerd has been gone for %v: nothing is started, stopped or watched here; %s",
			c.now.Sub(c.runner.away).Round(time.Second), c.runsOn(c.config.Self)),
			"the launcher's output says why it does not come back; when that is repaired, start colloid again")
	case !c.runner.connected:
		add("warning", "runnerd is not connected: this cell runs workloads but starts and stops none", "")
	}
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		alive := view.hasStatus && (view.status.Life == state.Alive || view.status.Life == state.Suspect)
		if id != c.config.Self && alive && c.unsupervisedAt(id) {
			add("critical", "cell "+id.String()+" has lost its runnerd: nothing is started, stopped or watched there; "+c.runsOn(id),
				"look at `colloid status` on that machine")
		}
	}
}

func (c *Cell) runsOn(id wire.CellID) string {
	n := 0
	for at, endpoint := range c.views.endpoints {
		if at.cell == id {
			n += len(endpoint.Instances)
		}
	}
	if n == 1 {
		return "1 instance was there last"
	}
	return fmt.Sprintf("%d instances were there last", n)
}

// stateUnsupervised is the state of an instance of which nobody knows whether it still runs, and of a workload that
// lacks nothing but such news.
const stateUnsupervised = "unsupervised"

// unsupervisedReason names the cell of the first such instance, "" if there is none.
func unsupervisedReason(instances []uds.InstanceInfo) string {
	for _, instance := range instances {
		if instance.State == stateUnsupervised {
			return "not known, since cell " + instance.Cell + " has lost its runnerd; what ran there probably runs on"
		}
	}
	return ""
}
