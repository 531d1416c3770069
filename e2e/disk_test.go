package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
)

// withSmallDisks puts the directories of meshd and runnerd of the first cell on a file system of a few megabytes each.
func withSmallDisks(options cluster.Options) cluster.Options {
	options.Policy = func(c *cluster.Cluster, cell int) (string, error) {
		text := ""
		for _, name := range []string{"hello", "misbehave"} {
			text += fmt.Sprintf("process %s {\n    sha256 any\n    port 1024-65535\n    args any\n    env any\n}\n", c.Program(name))
		}
		if cell != 0 {
			return text, nil
		}
		for _, name := range []string{"meshd", "runnerd"} {
			path := filepath.Join(c.Directory, "cell-1", name)
			if err := os.MkdirAll(path, 0o711); err != nil {
				return "", err
			}
			if err := unix.Mount("colloid-e2e", path, "tmpfs", unix.MS_NODEV, "size=8m,mode=0711"); err != nil {
				return "", err
			}
		}
		return text, nil
	}
	return options
}

// fillDisk writes to a file in a directory until nothing fits any more; the result takes it away.
func (f *fixture) fillDisk(directory string) (release func()) {
	f.t.Helper()
	path := filepath.Join(directory, "filler")
	file, err := os.Create(path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	for chunk := 1 << 16; chunk > 0; {
		if _, err := file.Write(make([]byte, chunk)); err != nil {
			chunk /= 2
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			f.t.Fatal(err)
		}
	}
}

// alarmed waits until the status of a cell has an alarm with these words and ends with 3, or has none.
func (f *fixture) alarmed(cell *cluster.Cell, want bool, words ...string) {
	f.t.Helper()
	f.wait(fmt.Sprintf("the alarm %q to be %v", words, want), func(ctx context.Context) error {
		result, err := cell.Run(ctx, "status")
		if err != nil {
			return err
		}
		_, alarms, _ := strings.Cut(result.Output, "ALARMS")
		found := true
		for _, word := range words {
			found = found && strings.Contains(alarms, word)
		}
		if found != want || want && result.Exit != 3 {
			return fmt.Errorf("exit %d: %s", result.Exit, result.Output)
		}
		return nil
	})
}

// The disk of a cell is full. It refuses what it cannot store and says why, still passes on and runs what others
// store, and serves as before; a person is told of both daemons, and told that it is over (F157).
func TestF157_FullDisksAreAlarms(t *testing.T) {
	needRoot(t, "mounts small file systems")
	t.Parallel()
	f := startWith(t, withSmallDisks(cluster.Options{Cells: 2}))
	full, other := f.Cells[0], f.Cells[1]
	f.run(full, 0, "apply", "-f", f.config(2, ""))
	f.answers(full, 2)
	before := f.instances()

	release := f.fillDisk(filepath.Join(full.Directory, "meshd"))
	// What is left of the last page of the log still takes some writes.
	var result cluster.Result
	var err error
	for n := 0; n < 100 && err == nil && result.Exit == 0; n++ {
		result, err = full.Run(t.Context(), "apply", "-f", f.config(2, "priority "+strconv.Itoa(n%2+10)))
	}
	refused(t, "apply on a full disk", result, err, 1, "disk", "full")
	f.alarmed(full, true, "critical", "no space left on device")
	f.run(other, 0, "apply", "-f", f.config(2, "priority 2"))
	f.wait("what the other cell stored", func(ctx context.Context) error {
		text, err := full.Command(ctx, "get", "hello")
		if err == nil && !strings.Contains(text, "priority 2\n") {
			err = fmt.Errorf("it holds %s", text)
		}
		return err
	})
	release()
	f.run(full, 0, "apply", "-f", f.config(2, "priority 3"))
	f.alarmed(full, false, "no space left on device")

	release = f.fillDisk(filepath.Join(full.Directory, "runnerd"))
	f.run(other, 0, "apply", "-f", f.file(fmt.Sprintf("spread crash {\n process %s\n args crash\n replicas 2\n}\n", f.Program("misbehave"))))
	f.alarmed(full, true, "critical", "runnerd", "no space left on device", "make room")
	release()
	f.alarmed(full, false, "no space left on device")
	same(t, "processes", before, f.instances())
}

// A process that prints without end costs a bounded part of the disk: two files per instance, and what does not fit is
// counted and dropped (F147).
func TestF147_EndlessOutputIsBounded(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	cell := f.Cells[0]
	f.run(cell, 0, "apply", "-f", f.file(fmt.Sprintf("spread yes {\n process %s\n args yes\n}\n", f.Program("misbehave"))))
	var text string
	f.wait("a part to be dropped", func(ctx context.Context) (err error) {
		text, err = cell.Command(ctx, "logs", "yes", "--tail", "2000")
		if err == nil && !strings.Contains(text, "dropped") {
			err = fmt.Errorf("%d bytes of output", len(text))
		}
		return err
	})
	logs, err := filepath.Glob(filepath.Join(cell.Directory, "runnerd", "instances", "*", "log*"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	size := int64(0)
	for _, path := range logs {
		if info, err := os.Stat(path); err == nil {
			size += info.Size()
		}
	}
	if len(logs) > 4 || size > 21<<20 { // each with the times of its lines
		t.Errorf("%d bytes in %v", size, logs)
	}
	f.run(cell, 0, "apply", "-f", f.config(1, "")) // others are started and serve beside it
	f.answers(cell, 1)
}
