package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"golang.org/x/sys/unix"
)

// Three copies of a web server come from a registry and answer, each on a cell of its own. All daemons die by
// SIGKILL, one after the other and all at once; the copies keep their processes and go on answering (F134). A
// machine that is drained hands its copy over first, and takes none until that is over (D7). What is deleted goes
// with everything that it had.
func TestF134_ContainersServeAndOutliveTheDaemons(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.published = true
	c.push("web:1", "one", nil)
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 3))
	before := pids(c.serve(3, "one"))
	for _, programs := range [][]string{{"runnerd"}, {"meshd"}, {"runnerd", "meshd", "colloid"}} {
		for _, cell := range c.Cells {
			for _, program := range programs {
				endProgram(t, cell, program, unix.SIGKILL)
			}
		}
		c.waitLong("the cells to be active", func(ctx context.Context) error { return active(ctx, c.Cells) })
		same(t, fmt.Sprintf("copies after the death of %v", programs), before, pids(c.serve(3, "one")))
	}

	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 2))
	holders := c.serve(2, "one")
	left, stays := holders[0].cell, holders[1]
	status, err := left.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	t.Log(c.run(stays.cell, 0, "drain", status.Cell.ID, "--timeout", "50s"))
	t.Logf("drained in %v", time.Since(began).Round(10*time.Millisecond))
	for _, i := range c.serve(2, "one") {
		if i.cell == left {
			t.Errorf("a copy runs on %s, which is drained", left.Name)
		}
		if i.cell == stays.cell && i.instance.PID != stays.instance.PID {
			t.Errorf("the copy on %s was started again", stays.cell.Name)
		}
	}
	c.run(stays.cell, 0, "uncordon", status.Cell.ID)
	c.run(c.Cells[1], 0, "apply", "-f", c.webFile(c.in("web:1"), 3))
	c.serve(3, "one")

	c.run(c.Cells[2], 0, "delete", "web")
	for _, cell := range c.Cells {
		c.waitLong("nothing to be left of the copies on "+cell.Name, func(context.Context) error { return c.nothingRuns(cell) })
	}
}

// nothingRuns looks at what instances leave behind: mounted roots, directories, processes.
func (c *containers) nothingRuns(cell *cluster.Cell) error {
	for _, name := range []string{"images/roots", "instances"} {
		entries, err := os.ReadDir(cell.Directory + "/runnerd/" + name)
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s holds %v", name, entries)
		}
	}
	if mounts := cluster.MountsBelow(cell.Directory + "/runnerd/images"); len(mounts) > 0 {
		return fmt.Errorf("mounted: %v", mounts)
	}
	for _, id := range cell.Processes() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		if err == nil && strings.Contains(string(line), "httpd") {
			return fmt.Errorf("process %d still runs", id)
		}
	}
	return nil
}

// A container that takes more memory than it may is ended by the kernel, and status says why; one that always
// ends is started with growing pauses. Others beside them notice nothing. (F76, F141)
func TestF141_MemoryAndCrashLoopsAreShown(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.push("web:1", "one", nil)
	eater := `spread eater {
	image %[1]s
	mem 32mb
	health exec true interval=1s
	args sh -c "sleep 1; exec dd if=/dev/zero of=/dev/null bs=200M"
}
spread crash {
	image %[1]s
	health exec true interval=1s
	args sh -c "exit 7"
}
`
	c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 1))
	quiet := pids(c.serve(1, "one"))
	began := time.Now()
	c.run(c.Cells[0], 0, "apply", "-f", c.file(fmt.Sprintf(eater, c.in("web:1"))))
	watcher := c.Cells[1] // not always the cell that runs them
	c.waitLong("status to say why", func(ctx context.Context) error {
		text, err := watcher.Command(ctx, "status")
		for _, words := range []string{"memory limit of 32 MiB", "exited with code 7"} {
			if err == nil && !strings.Contains(text, words) {
				err = fmt.Errorf("it does not say %q:\n%s", words, text)
			}
		}
		return err
	})
	t.Log(c.run(watcher, 0, "status"))
	eaters, err := c.copiesOf(t.Context(), "spread.eater")
	if err != nil || len(eaters) != 1 || eaters[0].instance.OOMKills == 0 {
		t.Errorf("its own cell does not count the kills: %+v, %v", eaters, err)
	}
	window, most := 20*time.Second, 4 // starts at 0, 1, 3.5, 9.75 s
	if long() {
		window, most = 5*time.Minute, 8
	}
	time.Sleep(time.Until(began.Add(window)))
	status, err := watcher.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := workloadOf(status, "spread.crash")
	if err != nil || len(w.Instances) != 1 {
		t.Fatalf("%+v, %v", w, err)
	}
	starts := w.Instances[0].Restarts + 1
	if w.Instances[0].State == "backoff" {
		starts-- // the next start counts as soon as it is planned
	}
	t.Logf("%d starts in %v: %s", starts, window, w.Instances[0].Reason)
	if starts < 3 || starts > most {
		t.Errorf("%d starts in %v, want 3 to %d", starts, window, most)
	}
	same(t, "the copy beside them", quiet, pids(c.serve(1, "one")))
}

// Two hosts refuse an image, one because it wants no containers at all. The copy runs on the third, and explain says on
// every cell why not on the others; when a host changes its mind, copies come (D2).
func TestD2_DeniedImageMovesElsewhere(t *testing.T) {
	t.Parallel()
	c := startContainers(t, func(registry string, cell int) string {
		return []string{"containers none\n", "image_deny " + registry + "/web*\n", ""}[cell]
	})
	c.push("web:1", "one", nil)
	c.run(c.Cells[2], 0, "apply", "-f", c.webFile(c.in("web:1"), 1))
	if only := c.serve(1, "one"); only[0].cell != c.Cells[2] {
		t.Errorf("it runs on %s", only[0].cell.Name)
	}
	c.run(c.Cells[2], 0, "apply", "-f", c.webFile(c.in("web:1"), 3))
	for _, cell := range c.Cells {
		c.waitLong("the reasons on "+cell.Name, func(ctx context.Context) error {
			text, err := cell.Command(ctx, "explain", "web")
			for _, words := range []string{"runtime oci not offered", "image_deny"} {
				if err == nil && !strings.Contains(text, words) {
					err = fmt.Errorf("explain does not say %q:\n%s", words, text)
				}
			}
			return err
		})
	}
	t.Log(c.run(c.Cells[0], 0, "explain", "web"))
	for cell := range 2 {
		if err := c.WritePolicy(cell, c.basicPolicy(c.Cluster)); err != nil {
			t.Fatal(err)
		}
	}
	c.serve(3, "one")
}
