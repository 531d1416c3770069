package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// canBeDirect is the theory: whether two cells can talk without a relay.
func canBeDirect(first, a, b *cluster.Cell) bool {
	x, y := a.Router(), b.Router()
	switch {
	case x == cluster.Blocked || y == cluster.Blocked:
		return a == first || b == first
	case x == cluster.Symmetric && y == cluster.Symmetric:
		return false
	}
	return true
}

// netcheck is what the command prints with -o json.
type netcheck struct {
	Network uds.NetworkInfo `json:"network"`
	Peers   []uds.CellInfo  `json:"peers"`
}

func (f *fixture) netcheck(ctx context.Context, cell *cluster.Cell) (netcheck, error) {
	var answer netcheck
	text, err := cell.Command(ctx, "netcheck", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	return answer, err
}

// matrix is how every cell reaches every other one.
type matrix struct {
	table string
	again []string           // pairs that took more than one attempt
	odd   [][2]*cluster.Cell // these, and those that are not as theory has it
	ids   map[*cluster.Cell]string
}

// matrix asks every cell how it reaches every other one and compares with the theory.
func (f *fixture) matrix(ctx context.Context) (seen matrix, problem error) {
	ids := make(map[string]*cluster.Cell)
	seen.ids = make(map[*cluster.Cell]string)
	answers := make([]netcheck, len(f.Cells))
	for i, cell := range f.Cells {
		status, err := cell.Status(ctx)
		if err != nil {
			return matrix{}, err
		}
		ids[status.Cell.ID], seen.ids[cell] = cell, status.Cell.ID
		if answers[i], err = f.netcheck(ctx, cell); err != nil {
			return matrix{}, err
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-16s", "from \\ to")
	for _, cell := range f.Cells {
		fmt.Fprintf(&text, " %-4.4s", cell.Router())
	}
	text.WriteString("\n")
	for i, cell := range f.Cells {
		fmt.Fprintf(&text, "%-16s", cell.Router())
		peers := make(map[*cluster.Cell]uds.CellInfo)
		for _, peer := range answers[i].Peers {
			peers[ids[peer.ID]] = peer
		}
		for _, other := range f.Cells {
			if other == cell {
				text.WriteString("  -  ")
				continue
			}
			want := "r"
			if canBeDirect(f.Cells[0], cell, other) {
				want = "d"
			}
			peer, known := peers[other]
			path := "?"
			if known && peer.Path != "" {
				path = peer.Path[:1]
			}
			mark := " "
			direct := path == "d" || path == "p"
			if direct != (want == "d") || path != "r" && !direct {
				mark = "!"
				seen.odd = append(seen.odd, [2]*cluster.Cell{cell, other})
				problem = fmt.Errorf("%s (%s) to %s (%s): %q, want %s", cell.Name, cell.Router(), other.Name,
					other.Router(), peer.Path, want)
			}
			if peer.PathSearched {
				path = "s"
			}
			if want == "d" && peer.PathAttempts > 1 {
				seen.again = append(seen.again, fmt.Sprintf("%s (%s) to %s (%s) took %d attempts", cell.Name, cell.Router(),
					other.Name, other.Router(), peer.PathAttempts))
				seen.odd = append(seen.odd, [2]*cluster.Cell{cell, other})
			}
			fmt.Fprintf(&text, " %s/%s%s", want, path, mark)
		}
		text.WriteString("\n")
	}
	seen.table = text.String()
	return seen, problem
}

// history prints what the daemons of a few pairs said about their paths and their classes.
func (f *fixture) history(seen matrix) {
	f.t.Helper()
	for _, pair := range seen.odd[:min(len(seen.odd), 6)] {
		var lines []string
		for side, cell := range pair {
			other := seen.ids[pair[1-side]]
			for line := range strings.Lines(cell.LogTail(8 << 20)) {
				_, path, about := strings.Cut(line, "debug: path to ")
				if !about && strings.Contains(line, "debug: ") || strings.HasPrefix(path, other) {
					lines = append(lines, line[:min(len(line), 26)]+" "+cell.Name+line[min(len(line), 26):])
				}
			}
		}
		slices.Sort(lines)
		f.t.Logf("%s (%s) and %s (%s):\n%s", pair[0].Name, pair[0].Router(), pair[1].Name, pair[1].Router(), strings.Join(lines, ""))
	}
}

// natRouters are two cells of each kind, and one of the last.
var natRouters = []cluster.Router{cluster.NoRouter, cluster.NoRouter,
	cluster.FullCone, cluster.FullCone, cluster.PortRestricted, cluster.PortRestricted,
	cluster.Symmetric, cluster.Symmetric, cluster.OneToOne, cluster.OneToOne,
	cluster.DoubleNAT, cluster.DoubleNAT, cluster.NoHairpin, cluster.NoHairpin,
	cluster.RestrictedCone, cluster.RestrictedCone, cluster.Blocked, cluster.Blocked, cluster.Firewalled}

// Every pair of routers in real namespaces: whoever can be reached directly is, at the first attempt; everybody
// else through a relay. Then routers forget and fail, and the cells behind them come back (F31 to F36).
func TestF31_F33_F35_F36_EveryPairOfRouters(t *testing.T) {
	needRoot(t, "makes namespaces with routers between them")
	t.Setenv("COLLOID_DEBUG", "1")
	f := startWith(t, cluster.Options{Routers: natRouters})
	var seen matrix
	begin := time.Now()
	// A symmetric cell searches for one partner after the other, and begins when it has something to say to it.
	err := cluster.WaitFor(t.Context(), 120*time.Second, "every pair to be as theory has it", func(ctx context.Context) error {
		now, err := f.matrix(ctx)
		if now.table != "" { // else a daemon was too slow to tell, and what the last look showed is worth more
			seen = now
		}
		time.Sleep(2 * time.Second)
		return err
	})
	t.Logf("want/seen: d direct, p punched, s punched by search, r relayed; %v after all cells were there\n%s",
		time.Since(begin).Round(time.Millisecond), seen.table)
	f.history(seen)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen.again) > 0 {
		t.Errorf("not at the first attempt: %v", seen.again)
	}
	f.classes()
	f.rebinding()
}

// classes checks what the cells say of their own routers (F31, F32). A router that lets everybody in proves it
// by a call of somebody whom its cell never sent to; all cells start within seconds here, so there may be none,
// and the cell takes the safe side. The other way round would be wrong: a restricted cone is not public.
func (f *fixture) classes() {
	f.t.Helper()
	want := map[cluster.Router][]string{
		cluster.NoRouter: {"public"}, cluster.FullCone: {"public", "punched"}, cluster.OneToOne: {"public", "punched"},
		cluster.PortRestricted: {"punched"}, cluster.NoHairpin: {"punched"}, cluster.DoubleNAT: {"punched"},
		cluster.RestrictedCone: {"punched"}, cluster.Firewalled: {"punched"}, cluster.Symmetric: {"relayed"}, cluster.Blocked: {"unknown"},
	}
	for _, cell := range f.Cells {
		answer, err := f.netcheck(f.t.Context(), cell)
		if err != nil {
			f.t.Fatal(err)
		}
		if !slices.Contains(want[cell.Router()], answer.Network.Reach) {
			f.t.Errorf("%s (%s) calls itself %s, want %s: %+v", cell.Name, cell.Router(), answer.Network.Reach,
				want[cell.Router()], answer.Network)
		}
	}
}

// of returns the first cell behind a kind of router.
func (f *fixture) of(kind cluster.Router) *cluster.Cell {
	for _, cell := range f.Cells {
		if cell.Router() == kind {
			return cell
		}
	}
	f.t.Fatalf("no cell behind a %s router", kind)
	return nil
}

// reaches writes a key on one cell and measures until another one shows it.
func (f *fixture) reaches(from, to *cluster.Cell, name string, limit time.Duration) time.Duration {
	f.t.Helper()
	text := fmt.Sprintf("spread %s {\n\tprocess %s\n\treplicas 0\n}\n", name, f.Program("hello"))
	path := filepath.Join(f.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Error(err)
	}
	if _, err := from.Command(f.t.Context(), "apply", "-f", path); err != nil {
		f.t.Error(err)
	}
	begin := time.Now()
	err := cluster.WaitFor(f.t.Context(), limit, name+" on "+to.Name, func(ctx context.Context) error {
		_, err := to.Command(ctx, "get", "spread."+name)
		return err
	})
	if err != nil {
		f.t.Errorf("%s (%s) to %s (%s): %v", from.Name, from.Router(), to.Name, to.Router(), err)
	}
	return time.Since(begin)
}

// rebinding lets routers forget everything, or lose power for a moment: once, or twenty times with
// COLLOID_E2E_LONG, and prints how long it took until a write was there and one of its own was seen elsewhere.
func (f *fixture) rebinding() {
	f.t.Helper()
	rounds := 1
	if long() {
		rounds = 20
	}
	kinds := []cluster.Router{cluster.FullCone, cluster.PortRestricted, cluster.Symmetric, cluster.DoubleNAT}
	var rebinds, reboots []time.Duration
	for round := range rounds {
		for _, kind := range kinds {
			if err := f.of(kind).Rebind(); err != nil {
				f.t.Fatal(err)
			}
		}
		rebinds = append(rebinds, f.recovered(kinds, fmt.Sprintf("rebind%d", round))...)
		time.Sleep(5 * time.Second)
		for _, kind := range kinds {
			if err := f.of(kind).Cut(); err != nil {
				f.t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		for _, kind := range kinds {
			if err := f.of(kind).Heal(); err != nil {
				f.t.Fatal(err)
			}
		}
		reboots = append(reboots, f.recovered(kinds, fmt.Sprintf("reboot%d", round))...)
		time.Sleep(time.Duration(rounds/20*5) * time.Second)
	}
	for what, all := range map[string][]time.Duration{"rebind": rebinds, "reboot": reboots} {
		slices.Sort(all)
		f.t.Logf("%s, %d times: median %v, p90 %v, slowest %v", what, len(all),
			all[len(all)/2].Round(time.Millisecond), all[len(all)*9/10].Round(time.Millisecond),
			all[len(all)-1].Round(time.Millisecond))
	}
}

// recovered measures both ways for each kind of router: how long until the last of both was there.
func (f *fixture) recovered(kinds []cluster.Router, what string) []time.Duration {
	f.t.Helper()
	var all sync.WaitGroup
	longest := make([]time.Duration, len(kinds))
	for i, kind := range kinds {
		all.Go(func() {
			cell := f.of(kind)
			took := f.reaches(f.Cells[0], cell, fmt.Sprintf("%s-%d", what, i), 10*time.Second)
			back := f.reaches(cell, f.Cells[1], fmt.Sprintf("%s-%d-back", what, i), 10*time.Second)
			longest[i] = max(took, back)
			f.t.Logf("%s of a %s router: there after %v, back after %v", what, kind, took.Round(time.Millisecond), back.Round(time.Millisecond))
		})
	}
	all.Wait()
	return longest
}
