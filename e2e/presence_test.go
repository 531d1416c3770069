package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// beside is an address on the network of a cell that no other one has.
func beside(address netip.Addr) netip.Addr {
	raw := address.AsSlice()
	raw[len(raw)-1] += 100
	other, _ := netip.AddrFromSlice(raw)
	return other
}

// present waits until check finds nothing wrong with what a cell says.
func (f *fixture) present(cell *cluster.Cell, what string, limit time.Duration, check func(*uds.Status) error) {
	f.t.Helper()
	begun := time.Now()
	err := cluster.WaitFor(f.t.Context(), limit, what, func(ctx context.Context) error {
		status, err := cell.Status(ctx)
		if err == nil {
			err = check(status)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("%s after %v", what, time.Since(begun).Round(100*time.Millisecond))
}

// A host that gets another address is followed: the cell says it itself, every cell lists its instances there, what
// starts from now on is told that address, and nothing speaks of a router (F101, F158).
func TestF158_AHostThatMovesIsFollowed(t *testing.T) {
	t.Parallel()
	needRoot(t, "changes the address of a host")
	for _, version6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("version6=%v", version6), func(t *testing.T) {
			t.Parallel()
			f := startWith(t, cluster.Options{BindAny: true, Version6: version6})
			f.run(f.Cells[0], 0, "apply", "-f", f.config(3, ""))
			f.answers(f.Cells[0], 3)
			moved := f.Cells[2]
			id, to := f.id(moved), beside(moved.Address)
			if err := moved.SetAddress(to); err != nil {
				t.Fatal(err)
			}
			f.present(moved, "the cell says where it is", 15*time.Second, func(s *uds.Status) error {
				if s.Cell.Address != moved.Endpoint() || s.Network.Translated || s.Network.Reach == "punched" {
					return fmt.Errorf("at %s, %+v", s.Cell.Address, s.Network)
				}
				return nil
			})
			for _, cell := range f.Cells {
				f.present(cell, cell.Name+" lists its instance there", 15*time.Second, func(s *uds.Status) error {
					for _, i := range s.Workloads[0].Instances {
						if i.Cell == id && i.Address != to.String() {
							return fmt.Errorf("instance at %s", i.Address)
						}
					}
					return nil
				})
			}
			f.run(f.Cells[0], 0, "apply", "-f", f.config(3, "env GENERATION 2"))
			f.present(f.Cells[0], "the new version answers", patience, func(s *uds.Status) error {
				if w := s.Workloads[0]; w.State != "ok" || w.Ready != 3 {
					return fmt.Errorf("%s: %s", w.State, w.Reason)
				}
				return nil
			})
			f.answers(f.Cells[1], 3)
		})
	}
}

// A cell that an operator has tied to an address of which the host no longer has anything says so (F158).
func TestF158_ABoundAddressThatVanishesIsCritical(t *testing.T) {
	t.Parallel()
	needRoot(t, "changes the address of a host")
	f := start(t, 2)
	cell := f.Cells[1]
	if err := cell.SetAddress(netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	text := "no longer has the address " + cell.Address.String()
	f.wait("the alarm", func(ctx context.Context) error {
		result, err := cell.Run(ctx, "status")
		if err != nil || result.Exit != 3 || !strings.Contains(result.Output, text) {
			return fmt.Errorf("exit %d, %v: %s", result.Exit, err, result.Output)
		}
		return nil
	})
	if err := cell.SetAddress(cell.Address); err != nil {
		t.Fatal(err)
	}
	f.present(cell, "the alarm ends", 15*time.Second, func(s *uds.Status) error {
		for _, alarm := range s.Alarms {
			if strings.Contains(alarm.Text, text) {
				return fmt.Errorf("%s", alarm.Text)
			}
		}
		return nil
	})
}

// A runnerd that keeps its connection and does nothing is as bad as one that is gone, and status says which cell
// waits for it and that it does not answer (F134). This takes the 20 s that a runnerd may be away.
func TestF134_AHungRunnerdIsCritical(t *testing.T) {
	t.Parallel()
	f := start(t, 2)
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	cell := f.Cells[1]
	if n, err := cell.SignalProgram("runnerd", unix.SIGSTOP); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, "env GENERATION 2"))
	id := f.id(cell)
	f.present(cell, "the alarm", 40*time.Second, func(s *uds.Status) error {
		if !s.NeedsHuman || s.Cell.Helpers[0].SilentSeconds < 15 || !slices.ContainsFunc(s.Alarms, func(a uds.Alarm) bool {
			return a.Severity == "critical" && strings.Contains(a.Text, "runnerd has not answered for")
		}) {
			return fmt.Errorf("%+v %+v", s.Cell.Helpers, s.Alarms)
		}
		return nil
	})
	f.present(f.Cells[0], "the reason on the other cell", 5*time.Second, func(s *uds.Status) error {
		if w := s.Workloads[0]; w.State != "unsupervised" || !strings.Contains(w.Reason, id) {
			return fmt.Errorf("%s: %s", w.State, w.Reason)
		}
		return nil
	})
	if n, err := cell.SignalProgram("runnerd", unix.SIGCONT); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	f.present(cell, "the update goes on", patience, func(s *uds.Status) error {
		if w := s.Workloads[0]; w.State != "ok" || s.NeedsHuman || s.Cell.Helpers[0].SilentSeconds != 0 {
			return fmt.Errorf("%s: %s, %+v", w.State, w.Reason, s.Alarms)
		}
		return nil
	})
}

// A cell that is cut off says so before anything else, calls nobody alive whom it does not reach, and shows no figures
// that are of the past (F64, F66).
func TestF66_ACellThatIsCutOffSaysSoFirst(t *testing.T) {
	t.Parallel()
	needRoot(t, "takes a link away")
	f := start(t, 3)
	cell := f.Cells[2]
	if err := cell.Cut(); err != nil {
		t.Fatal(err)
	}
	f.wait("the cell to say so", func(ctx context.Context) error {
		result, err := cell.Run(ctx, "status")
		if err != nil || result.Exit != 3 || !strings.HasPrefix(result.Output, "ATTENTION: this cell is cut off: it reaches 0 of") ||
			!strings.Contains(result.Output, "CELLS  1 of 3 alive") {
			return fmt.Errorf("exit %d, %v: %s", result.Exit, err, result.Output)
		}
		return nil
	})
	f.present(cell, "no figures of the others", 5*time.Second, func(s *uds.Status) error {
		for _, c := range s.Cells {
			if !c.Self && (c.CPUPercent != nil || c.MemoryPercent != nil) {
				return fmt.Errorf("%s has figures", c.ID)
			}
		}
		return nil
	})
	if err := cell.Heal(); err != nil {
		t.Fatal(err)
	}
	f.wait("it to be over", func(ctx context.Context) error {
		result, err := cell.Run(ctx, "status")
		if err != nil || result.Exit != 0 || strings.Contains(result.Output, "cut off") {
			return fmt.Errorf("exit %d, %v: %s", result.Exit, err, result.Output)
		}
		return nil
	})
}
