package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A pull may be made ahead, before anything here needs the image or module. It must not be felt then: it begins when no
// other pull is under way, gives way as soon as one begins, takes none of their places, and its fetcher and what unpacks run
// at the lowest priority. What it brought stays, and it goes on from there. As soon as a start wants the same, it is a pull
// as all others; one that is at work then goes on with it, beside the places of the others.

// errYield ends the turn of a pull that is made ahead.
var errYield = errors.New("it is made ahead, and others are needed now")

// EnsureAhead is Ensure for what nothing needs yet: behind everything else.
func (c *Client) EnsureAhead(ctx context.Context, reference string, digest [32]byte) error {
	_, err := c.ensure(ctx, reference, digest, true, nil)
	return err
}

// ModuleAhead is Module for what nothing needs yet.
func (c *Client) ModuleAhead(ctx context.Context, reference string, digest [32]byte) (*os.File, error) {
	return c.module(ctx, reference, digest, true, nil)
}

// want makes a pull one that somebody waits for; the caller holds the client's mutex.
func (c *Client) want(p *pull) {
	if p.isWanted() {
		return
	}
	if len(c.awaiting) == 0 {
		c.calm = make(chan struct{})
	}
	c.awaiting[p] = struct{}{}
	for _, other := range c.pulls {
		if !other.isWanted() && other != p {
			other.mutex.Lock()
			yield := other.yield
			other.mutex.Unlock()
			if yield != nil {
				yield(errYield)
			}
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	close(p.wanted)
	for _, hurry := range p.hurries {
		if hurry != nil {
			go hurry()
		}
	}
}

// unwant notes that a pull is over; the caller holds the client's mutex.
func (c *Client) unwant(p *pull) {
	if !p.isWanted() {
		return
	}
	delete(c.awaiting, p)
	if len(c.awaiting) == 0 {
		close(c.calm)
		c.calm = nil
	}
}

func (p *pull) isWanted() bool {
	select {
	case <-p.wanted:
		return true
	default:
		return false
	}
}

// onHurry has something done when somebody wants a pull that was begun ahead, until done is called.
func (p *pull) onHurry(hurry func()) (done func()) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.isWanted() {
		go hurry()
		return func() {}
	}
	n := len(p.hurries)
	p.hurries = append(p.hurries, hurry)
	return func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.hurries[n] = nil
	}
}

// workAhead is one turn of a pull that nobody waits for. It is errYield when the pull is to have another one.
func (c *Client) workAhead(ctx context.Context, p *pull, work func(context.Context, *pull) error) error {
	turn, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for {
		c.mutex.Lock()
		calm := c.calm
		if calm == nil {
			p.mutex.Lock()
			p.yield, p.hurries = cancel, nil
			p.mutex.Unlock()
		}
		c.mutex.Unlock()
		if calm == nil {
			break
		}
		select {
		case <-calm:
		case <-p.wanted:
			return errYield
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() {
		p.mutex.Lock()
		p.yield = nil
		p.mutex.Unlock()
	}()
	p.turn = turn
	return work(ctx, p)
}

// niceLeast is the lowest priority of a process.
const niceLeast = 19

// start starts a child, at the lowest priority for a pull that is made ahead.
func start(command *exec.Cmd, ahead bool) error {
	if !ahead {
		return command.Start()
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceLeast); err != nil {
			started <- fmt.Errorf("lower the priority: %w", err)
			return
		}
		err := command.Start()
		if err == nil {
			weighAutogroup(command.Process.Pid, niceLeast)
		}
		if unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		started <- err
	}()
	return <-started
}

// raise gives a child of runnerd, and all that it has started, the priority of others. Without the right to that it goes on
// as it is.
func raise(session, nice int) {
	_ = unix.Setpriority(unix.PRIO_PGRP, session, nice)
	weighAutogroup(session, nice)
}

// weighAutogroup says what a session is worth beside others. Where the kernel shares processors among sessions, the
// priority of a process counts within its own only.
func weighAutogroup(session, nice int) {
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(session), "autogroup"), []byte(strconv.Itoa(nice)), 0)
}

// aheadLeast is how long a child has the lowest priority. On a host that is always busy it would never come to its end with
// that: it gets niceLater then.
const (
	aheadLeast = 30 * time.Second
	niceLater  = 10
)

// unhurried raises a child that works ahead when somebody wants what it brings, and a little after a while, until done is
// called.
func (p *pull) unhurried(raise func(nice int)) (done func()) {
	later := time.AfterFunc(aheadLeast, func() {
		if !p.isWanted() {
			raise(niceLater)
		}
	})
	quiet := p.onHurry(func() { raise(0) })
	return func() { later.Stop(); quiet() }
}

// raiseStore raises what unpacks. Its process keeps its own priority: what is raised are threads that have a lower one.
func (c *Client) raiseStore(nice int) {
	c.storeMutex.Lock()
	defer c.storeMutex.Unlock()
	if c.process == nil {
		return
	}
	raiseLowered(c.process.pid, nice)
}

// raiseLowered raises those threads of a session that have the lowest priority.
func raiseLowered(session, nice int) {
	processes, _ := os.ReadDir("/proc")
	for _, entry := range processes {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if group, err := unix.Getpgid(pid); err != nil || group != session {
			continue
		}
		threads, _ := os.ReadDir(filepath.Join("/proc", entry.Name(), "task"))
		for _, thread := range threads {
			// The call gives 20 minus what the kernel counts.
			id, err := strconv.Atoi(thread.Name())
			if have, errHave := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && errHave == nil && 20-have > nice {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, nice)
			}
		}
	}
}
