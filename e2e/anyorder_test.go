package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
	"colloid.net/meshd/wire"
)

// Any cells of three lose power together and come back in any order, again and again. It stays the same cluster of the
// same three cells, and what is written the moment they are back is no conflict (F3, F4, F56). No sealed datagram has
// the counter of another one (F13).
func TestF3_F4_F13_F56_AnyCellsRestartInAnyOrder(t *testing.T) {
	t.Parallel()
	f := start(t, 3)
	rounds := 7 // every choice of cells once
	if long() {
		rounds = 60 // more than a hundred restarts
	}
	watched := f.watchCounters()
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	f.answers(f.Cells[0], 2)
	members := f.members()
	random := rand.New(rand.NewPCG(3, 4))
	restarts, writer := 0, f.Cells[0]
	for round := range rounds {
		var chosen []*cluster.Cell
		for i, cell := range f.Cells {
			if (round%7+1)>>i&1 == 1 {
				chosen = append(chosen, cell)
			}
		}
		random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		for _, cell := range chosen {
			if err := cell.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		// Who has seen the last write? A snapshot of what others wrote is up to ten seconds old. Whoever wrote it has it in
		// a log, and whoever did not fail has it. The writer asks one of them before anybody else can be asked.
		file := f.config(2, "priority "+strconv.Itoa(round+1))
		if len(chosen) == len(f.Cells) {
			i := slices.Index(chosen, writer)
			chosen[0], chosen[i] = chosen[i], chosen[0]
		}
		writer = chosen[0]
		for i, cell := range chosen {
			if err := cell.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i == 0 && len(chosen) < len(f.Cells) {
				f.writeEarly(writer, file)
			}
		}
		if len(chosen) == len(f.Cells) {
			f.writeEarly(writer, file)
		}
		restarts += len(chosen)
		if err := f.WaitConverged(t.Context(), patience); err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("members after round %d", round+1), members, f.members())
		for _, cell := range f.Cells {
			f.wait("the last write on "+cell.Name, func(ctx context.Context) error {
				text, err := cell.Command(ctx, "get", "hello")
				if err == nil && !strings.Contains(text, fmt.Sprintf("priority %d\n", round+1)) {
					err = fmt.Errorf("it holds %s", text)
				}
				return err
			})
		}
	}
	f.answers(f.Cells[1], 2)
	sealed, again := watched()
	t.Logf("%d restarts of cells, %d sealed datagrams", restarts, sealed)
	if again != "" {
		t.Error(again)
	}
}

// writeEarly applies a file on a cell that has just been started, until it takes it: before, it has no socket, or
// says that it is syncing.
func (f *fixture) writeEarly(cell *cluster.Cell, file string) {
	f.t.Helper()
	f.wait("a write right after the start", func(ctx context.Context) error {
		result, err := cell.Run(ctx, "apply", "-f", file)
		switch {
		case err != nil:
			return err
		case result.Exit == 0:
			return nil
		case result.Exit == 4, strings.Contains(result.Errors, "still syncing"),
			strings.Contains(result.Errors, "changed while this ran"): // it has heard of a newer value in between
			return fmt.Errorf("exit %d: %s", result.Exit, result.Errors)
		}
		f.t.Fatalf("exit %d: %s%s", result.Exit, result.Output, result.Errors)
		return nil
	})
}

// members are the cluster and its cells as every cell sees them, without anything in conflict.
func (f *fixture) members() (all []string) {
	f.t.Helper()
	for i, cell := range f.Cells {
		status, err := cell.Status(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		if len(status.Conflicts) != 0 {
			f.t.Fatalf("%s has conflicts: %+v", cell.Name, status.Conflicts)
		}
		seen := []string{status.Cell.Cluster}
		for _, c := range status.Cells {
			seen = append(seen, c.ID)
		}
		slices.Sort(seen[1:])
		if i > 0 {
			same(f.t, "members on "+cell.Name, all, seen)
		}
		all = seen
	}
	return all
}

// watchCounters looks at every sealed datagram between the cells. The result ends it, says how many there were, and
// names one whose counter another one of its sender had.
func (f *fixture) watchCounters() (stop func() (sealed int, again string)) {
	f.t.Helper()
	if !f.Namespaced() {
		return func() (int, string) { return 0, "" }
	}
	type counter struct{ sender, number uint64 }
	seen, seed := make(map[counter]uint64), maphash.MakeSeed()
	again := ""
	socket := -1
	err := cluster.InNamespace(filepath.Join(f.Directory, "network", "switch"), func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300) // ETH_P_ALL
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	_ = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(socket)
		frame := make([]byte, 1<<16)
		for !end.Load() {
			n, _, err := unix.Recvfrom(socket, frame, 0)
			if err != nil || n < 14+20+8 || frame[23] != unix.IPPROTO_UDP ||
				binary.BigEndian.Uint16(frame[36:]) != cluster.Port {
				continue
			}
			datagram := frame[14+20+8 : n]
			header, _, trailer, err := wire.ParseHeader(datagram)
			if err != nil || header.Type.Joining() || len(trailer) < 8 {
				continue
			}
			// A frame passes the bridge and its ports, so equal ones are the same one.
			of := counter{uint64(header.Sender), binary.BigEndian.Uint64(trailer)}
			content := maphash.Bytes(seed, datagram)
			if before, known := seen[of]; known && before != content {
				again = fmt.Sprintf("cell %v used counter %016x twice", header.Sender, of.number)
			}
			seen[of] = content
		}
	}()
	return func() (int, string) {
		end.Store(true)
		<-done
		return len(seen), again
	}
}
