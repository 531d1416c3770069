package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

var rewriteFlag = flag.Bool("rewrite", false, "write the traces that scenario files expect")

// The scenario files are stories: what is done, and the whole trace that follows from it, cell by cell.
// They are the place to read what the cluster does. After a change that is meant to change a story, run
//
//	go test ./meshd/sim -run Stories -rewrite
//
// and look at the difference before committing it.
func TestSim_Stories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			story, err := tell(string(raw))
			if err != nil {
				t.Fatal(err)
			}
			if *rewriteFlag {
				if err := os.WriteFile(file, []byte(story), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			compare(t, string(raw), story)
		})
	}
}

func compare(t *testing.T, want, got string) {
	t.Helper()
	wanted, told := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(wanted), len(told)) {
		w, g := "(end)", "(end)"
		if i < len(wanted) {
			w = wanted[i]
		}
		if i < len(told) {
			g = told[i]
		}
		if w != g {
			t.Fatalf("line %d:\n expected %s\n now      %s\n(-rewrite accepts the new story)", i+1, w, g)
		}
	}
}

// tell plays a story and returns its file with the traces that came out. Lines that begin with | are
// traces, with # comments; all others are commands:
//
//	cells 3 seed 7          form a cluster
//	VERB ...                a fault, see Verb; "for D" ends it while the story goes on
//	run 10s                 let time pass
//	show cells|state|workloads|KEY    print what each cell thinks
//	check                   every rule that must hold at any time, and in calm
func tell(text string) (string, error) {
	var out strings.Builder
	var w *World
	for number, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if strings.HasPrefix(line, "|") {
			continue
		}
		out.WriteString(line + "\n")
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" || strings.HasPrefix(line, "#") {
			continue
		}
		trace := func(text string) { fmt.Fprintf(&out, "| %s\n", rounded(text)) }
		if w != nil {
			w.options.Trace = trace
		}
		var err error
		if w, err = act(w, fields, line, trace); err != nil {
			return "", fmt.Errorf("line %d: %s: %w", number+1, line, err)
		}
	}
	return out.String(), nil
}

// rounded shortens the time in front of a trace line to a tenth of a second: stories are not to change with
// every microsecond.
func rounded(text string) string {
	if len(text) > 12 {
		if at, err := strconv.ParseFloat(strings.TrimSpace(text[:12]), 64); err == nil {
			return fmt.Sprintf("%7.1f%s", at, text[12:])
		}
	}
	return text
}

func act(w *World, fields []string, line string, trace func(string)) (*World, error) {
	if w == nil && fields[0] != "cells" {
		return nil, fmt.Errorf("the first command must be: cells N seed S")
	}
	switch fields[0] {
	case "cells":
		return begin(fields, trace)
	case "run":
		d, err := time.ParseDuration(fields[len(fields)-1])
		if err != nil {
			return w, err
		}
		return w, w.Run(d)
	case "show":
		for _, n := range w.nodes {
			trace(fmt.Sprintf("n%d %s", n.Index, show(n, fields[len(fields)-1])))
		}
		return w, nil
	case "check":
		return w, w.CheckCalm()
	}
	f, err := ParseFault(line)
	if err != nil {
		return w, err
	}
	w.Apply(f)
	return w, w.Run(50 * time.Millisecond) // what an operator is told belongs to the command
}

func begin(fields []string, trace func(string)) (*World, error) {
	if len(fields) != 4 {
		return nil, fmt.Errorf("want: cells N seed S")
	}
	cells, err := strconv.Atoi(fields[1])
	if err != nil {
		return nil, err
	}
	seed, err := strconv.ParseUint(fields[3], 10, 64)
	if err != nil {
		return nil, err
	}
	w := New(Options{Seed: seed, Cells: cells, Trace: trace})
	oracle := newOracle(w)
	for _, c := range append(Checkers(), oracle.checker()) {
		w.AddChecker(c)
	}
	if err := w.Form(time.Minute); err != nil {
		return nil, err
	}
	return w, nil
}

// show prints what one cell thinks of something.
func show(n *Node, what string) string {
	switch {
	case n.cell == nil:
		return "is down"
	case what == "state":
		same := "as n0"
		if first := n.world.nodes[0].cell; first == nil || first.Store().Root() != n.cell.Store().Root() {
			same = "of its own"
		}
		return fmt.Sprintf("%s, state %s, runs %v", n.cell.Phase(), same, n.Running())
	case what == "cells":
		return showCells(n)
	case what == "workloads":
		return showWorkloads(n)
	}
	register, found := n.cell.Store().Get([]byte(what))
	if !found {
		return what + ": nothing"
	}
	var values []string
	for raw := register.Entries(); len(raw) > 0; {
		dot, value, rest, _ := wire.NextEntry(raw)
		raw = rest
		text := "deleted"
		if len(value) > 0 {
			text = showValue(what, value)
		}
		values = append(values, fmt.Sprintf("%s (%s)", text, dot.Actor))
	}
	verdict := ""
	if register.Conflicted() {
		verdict = "CONFLICT "
	}
	return fmt.Sprintf("%s: %s%s", what, verdict, strings.Join(values, " | "))
}

func showCells(n *Node) string {
	var parts []string
	for _, m := range n.world.nodes {
		life := "unknown"
		if register, found := n.cell.Store().Get([]byte(state.StatusKey(m.ID()))); found {
			if value, live := register.Live(); live {
				if status, err := state.ParseCellStatus(value); err == nil {
					life = status.Life.String()
				}
			}
		}
		parts = append(parts, fmt.Sprintf("n%d %s", m.Index, life))
	}
	return strings.Join(parts, ", ")
}

func showValue(key string, value []byte) string {
	_, field, _ := state.SplitRollout(key)
	switch {
	case field == state.RolloutVerdict:
		if v, err := state.ParseVerdict(value); err == nil {
			return fmt.Sprintf("%016x on %s: %s", v.Digest, v.Cell, v.Reason)
		}
	case field == state.RolloutPast:
		if digests, err := state.ParsePast(value); err == nil {
			return fmt.Sprintf("%016x", digests)
		}
	case field == state.RolloutMarks:
		if marks, err := state.ParseMarks(value); err == nil {
			return fmt.Sprint(marks)
		}
	case strings.HasPrefix(key, state.PrefixCell):
		return string(value)
	}
	spec, err := workload.Decode(value)
	if err != nil {
		return err.Error()
	}
	return workload.Summary(spec)
}
