package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"github.com/vishvananda/netlink"
)

// Cells that have nothing but IP version 6 form a cluster and run workloads (F34).
func TestF34_Version6Only(t *testing.T) {
	t.Parallel()
	needRoot(t, "makes networks without IP version 4")
	f := startWith(t, cluster.Options{Version6: true})
	f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
	for _, answer := range f.answers(f.Cells[2], 2) {
		t.Log(answer)
	}
}

// The other driver of the socket carries the whole product, whether it was chosen or forced (F125).
func TestF125_EpollEndToEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, driver string
		options      cluster.Options
	}{
		{"chosen", "epoll", cluster.Options{Cells: 2, CellArguments: []string{"--driver", "epoll"}}},
		{"refused by seccomp", "epoll (io_uring refused: operation not permitted)",
			cluster.Options{Cells: 2, DenyRing: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := startWith(t, test.options)
			f.run(f.Cells[0], 0, "apply", "-f", f.config(2, ""))
			f.answers(f.Cells[1], 2)
			for _, cell := range f.Cells {
				status, err := cell.Status(t.Context())
				if err != nil || status.Cell.Driver != test.driver {
					t.Errorf("%s: driver %q, want %q; %v", cell.Name, status.Cell.Driver, test.driver, err)
				}
				if text := f.run(cell, 0, "status"); !strings.Contains(text, test.driver) {
					t.Errorf("status does not say %q:\n%s", test.driver, text)
				}
			}
		})
	}
}

// Which way of using the socket the kernel allows is printed, and where io_uring is not used, why not (F124).
func TestF124_TheDriverIsShown(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	status, err := f.Cells[0].Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	driver := status.Cell.Driver
	if !strings.HasPrefix(driver, "io_uring (") && !strings.HasPrefix(driver, "epoll (io_uring refused: ") {
		t.Errorf("driver %q", driver)
	}
	if text := f.run(f.Cells[0], 0, "status"); !strings.Contains(text, driver) {
		t.Errorf("status does not say %q:\n%s", driver, text)
	}
	t.Log(driver)
}

// A link that carries 1100 bytes loses full datagrams. The cell behind it says so, and so does every other, whose
// datagrams to it vanish without an error (F30).
func TestF30_NarrowPathIsReported(t *testing.T) {
	t.Parallel()
	needRoot(t, "changes the MTU of a link")
	f := start(t, 3)
	narrow := f.Cells[2]
	setMTU := func(mtu int) {
		t.Helper()
		if err := narrow.Do(func() error { return setOnlyMTU(mtu) }); err != nil {
			t.Fatal(err)
		}
	}
	setMTU(1100)
	for _, cell := range f.Cells {
		f.wait(cell.Name+" says that the path is unusable", func(ctx context.Context) error {
			result, err := cell.Run(ctx, "status")
			if err != nil || result.Exit != 3 || !strings.Contains(result.Output, "unusable") {
				return fmt.Errorf("exit %d, %v: %s", result.Exit, err, result.Output)
			}
			return nil
		})
	}
	setMTU(1500)
	for _, cell := range f.Cells {
		f.wait(cell.Name+" says nothing of it any more", func(ctx context.Context) error {
			result, err := cell.Run(ctx, "status")
			if err != nil || result.Exit != 0 {
				return fmt.Errorf("exit %d, %v: %s", result.Exit, err, result.Output)
			}
			return nil
		})
	}
}

// setOnlyMTU changes the link of the present namespace that is not the loopback one.
func setOnlyMTU(mtu int) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback == 0 && link.Type() == "veth" {
			return netlink.LinkSetMTU(link, mtu)
		}
	}
	return errors.New("no link")
}

// burst is what one anti-entropy session or a healing cluster of 200 cells may send at once.
const burst = 2000

// A burst of datagrams is read to the last one: the socket buffer holds it (F29).
func TestF29_BurstOfDatagramsIsNotLost(t *testing.T) {
	t.Parallel()
	needRoot(t, "a socket buffer above the host's limit takes privilege")
	f := start(t, 1)
	cell := f.Cells[0]
	before := f.metric(cell, "colloid_datagrams_received_total")
	connection, err := dialDatagrams(cell)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	for range burst {
		if _, err := connection.Write(make([]byte, 1200)); err != nil {
			t.Fatal(err)
		}
	}
	var received float64
	err = cluster.WaitFor(t.Context(), 5*time.Second, "the burst", func(context.Context) error {
		if received = f.metric(cell, "colloid_datagrams_received_total") - before; received < burst {
			return fmt.Errorf("%v datagrams of %d", received, burst)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func dialDatagrams(cell *cluster.Cell) (connection net.Conn, err error) {
	err = cell.Do(func() error {
		connection, err = net.Dial("udp", cell.Endpoint())
		return err
	})
	return connection, err
}

func (f *fixture) metric(cell *cluster.Cell, name string) float64 {
	f.t.Helper()
	value, found := f.metrics(cell)[name]
	if !found {
		f.t.Fatalf("no metric %s", name)
	}
	return value
}

// metrics are all figures without labels that a cell gives.
func (f *fixture) metrics(cell *cluster.Cell) map[string]float64 {
	f.t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(f.run(cell, 0, "status", "--metrics")) {
		if words := strings.Fields(line); len(words) == 2 {
			if value, err := strconv.ParseFloat(words[1], 64); err == nil {
				all[words[0]] = value
			}
		}
	}
	return all
}
