package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
	"colloid.net/ipc/uds"
)

// client is what a program does that uses a workload as long as there are no service addresses: it reads from one
// cell which copies are ready, again every listInterval, and sends each request to one of them, in turn. It tries
// nothing a second time and asks no other copy. So "no request fails" means: whatever was listed as ready at most
// listAgeMax ago takes a connection and answers it in full. The list travels from the cell of a copy to the cell
// that is asked like everything else, so its delay counts too.
type client struct {
	c      *containers
	cancel context.CancelFunc
	done   sync.WaitGroup

	mutex   sync.Mutex
	ready   []uds.InstanceInfo // as the first cell says
	read    time.Time
	pids    map[string]copyOf // by cell, slot and digest: from the cells themselves
	result  cluster.LoadResult
	stale   int            // turns in which no fresh list was there, so nothing was sent
	answers map[string]int // how often each version answered
}

const (
	listInterval = 100 * time.Millisecond
	listAgeMax   = time.Second // copies are announced as draining for two seconds before they stop
)

func (c *containers) startClient() *client {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &client{c: c, cancel: cancel, pids: map[string]copyOf{}, answers: map[string]int{}}
	for n := range c.Cells {
		l.done.Go(func() { l.watch(ctx, n) })
	}
	l.done.Go(func() { l.send(ctx) })
	return l
}

func nameOf(i uds.InstanceInfo) string { return fmt.Sprintf("%s/%d/%s", i.Cell, i.Slot, i.Digest) }

// watch reads the status of a cell over its socket.
func (l *client) watch(ctx context.Context, n int) {
	var connection *uds.Client
	defer func() {
		if connection != nil {
			connection.Close()
		}
	}()
	for ctx.Err() == nil {
		began := time.Now()
		status, err := new(uds.Status), error(nil)
		if connection == nil {
			connection, err = uds.Dial(l.c.Cells[n].Socket())
		}
		if err == nil {
			err = connection.DoJSON(uds.CodeStatus, []byte{0}, status)
		}
		if err == nil {
			l.take(n, status, began)
		} else if connection != nil {
			connection.Close()
			connection = nil
		}
		time.Sleep(listInterval)
	}
}

func (l *client) take(n int, status *uds.Status, began time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	w, err := workloadOf(status, web)
	if err != nil {
		return
	}
	if n == 0 {
		l.ready, l.read = nil, began
		for _, i := range w.Instances {
			if i.State == "ready" {
				l.ready = append(l.ready, i)
			}
		}
	}
	for _, i := range w.Instances {
		if i.PID > 0 && i.Cell == status.Cell.ID {
			l.pids[nameOf(i)] = copyOf{l.c.Cells[n], i}
		}
	}
}

// choose gives the copy whose turn it is.
func (l *client) choose(turn int) (copyOf, bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if time.Since(l.read) > listAgeMax || len(l.ready) == 0 {
		l.stale++
		return copyOf{}, false
	}
	i, known := l.pids[nameOf(l.ready[turn%len(l.ready)])]
	return i, known
}

func (l *client) send(ctx context.Context) {
	for turn := 0; ctx.Err() == nil; turn++ {
		if i, ok := l.choose(turn); ok {
			began := time.Now()
			answer, err := i.get(ctx)
			if ctx.Err() != nil {
				return
			}
			l.mutex.Lock()
			l.result.Requests++
			l.result.Longest = max(l.result.Longest, time.Since(began))
			if err != nil {
				l.result.Errors++
				l.result.LastError = fmt.Errorf("%s on %s: %w", nameOf(i.instance), i.cell.Name, err)
			} else {
				l.answers[answer]++
			}
			l.mutex.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stop ends the client and judges what became of its requests.
func (l *client) stop(t *testing.T, what string) {
	t.Helper()
	l.cancel()
	l.done.Wait()
	t.Logf("%s: %d requests, %d failed, longest %v, answers %v, %d turns without a fresh list", what, l.result.Requests,
		l.result.Errors, l.result.Longest.Round(time.Millisecond), l.answers, l.stale)
	if l.result.Errors > 0 || l.result.Requests < 30 {
		t.Errorf("%s: %d of %d requests failed, last with %v", what, l.result.Errors, l.result.Requests, l.result.LastError)
	}
}

// While requests run, a new version replaces the old one copy by copy, and none fails (F75). A version that never gets
// ready is then taken back without anybody's help, and the copies that serve are not touched by it (D7); status says
// what happened and asks for a person.
func TestF75_UpdateAndRollbackFailNoRequest(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.push("web:1", "one", nil)
	c.push("web:2", "two", nil)
	c.push("web:3", "three", nil)
	first := c.Cells[0]
	update := "update rollback=true deadline=20s"
	c.run(first, 0, "apply", "-f", c.webFile(c.in("web:1"), 3, update))
	c.serve(3, "one")
	load := c.startClient()
	time.Sleep(time.Second)
	began := time.Now()
	c.run(first, 0, "apply", "-f", c.webFile(c.in("web:2"), 3, update))
	two := pids(c.serve(3, "two"))
	t.Logf("updated in %v", time.Since(began).Round(10*time.Millisecond))
	load.stop(t, "update")
	if load.answers["one"] == 0 || load.answers["two"] == 0 {
		t.Errorf("answers %v, want some of each version", load.answers)
	}
	c.waitLong("the version to be good", func(ctx context.Context) error {
		result, err := first.Run(ctx, "rollout", "status", "web")
		if err == nil && result.Exit != 0 {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Output)
		}
		if err != nil {
			return err
		}
		status, err := first.Status(ctx)
		if err != nil {
			return err
		}
		if w, err := workloadOf(status, web); err != nil || !w.Good {
			return fmt.Errorf("not good yet: %+v, %v", w, err)
		}
		return nil
	})

	load = c.startClient()
	began = time.Now()
	c.run(first, 0, "apply", "-f", c.webFile(c.in("web:3"), 3, update, `args sh -c "exit 1"`))
	c.waitLong("the update to be taken back", func(ctx context.Context) error {
		result, err := first.Run(ctx, "status")
		if err == nil && (result.Exit != 3 || !strings.Contains(result.Output, "held")) {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Output)
		}
		return err
	})
	t.Logf("taken back after %v", time.Since(began).Round(10*time.Millisecond))
	after := pids(c.serve(3, "two"))
	load.stop(t, "rollback")
	kept := 0
	for _, i := range after {
		for _, j := range two {
			if i == j {
				kept++
			}
		}
	}
	if kept < 2 {
		t.Errorf("copies %v became %v: a version that never served replaced more than one", two, after)
	}
	t.Log(c.run(first, 3, "status"))
	result, err := first.Run(t.Context(), "rollout", "status", "web")
	if err != nil || result.Exit != 3 {
		t.Errorf("rollout status: exit %d, %v: %s", result.Exit, err, result.Output)
	}
	t.Log(result.Output)
	c.run(first, 0, "rollout", "undo", "web")
	c.waitLong("nobody to be needed any more", func(ctx context.Context) error {
		result, err := first.Run(ctx, "status")
		if err == nil && result.Exit != 0 {
			err = fmt.Errorf("exit %d: %s", result.Exit, result.Output)
		}
		return err
	})
}
