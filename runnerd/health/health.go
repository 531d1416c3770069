// Package health finds out whether an instance is ready (F158): by a TCP connection, an HTTP request
// or a program run as the workload's user. Probes go to addresses of this host only, whatever the
// command said, so that a taken-over meshd gains no way to connect elsewhere as the helper.
package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"colloid.net/workload"
)

// Times of the check where the specification says nothing.
const (
	FirstInterval   = 100 * time.Millisecond // until ready, so that a start is seen at once
	DefaultInterval = 2 * time.Second
	DefaultTimeout  = time.Second
	DefaultFailures = 3
	// RunningIsReady is how long an instance without ports must run to count as ready.
	RunningIsReady = 500 * time.Millisecond

	// TellAfter is how long a check must fail before it is said of an instance that was never ready: most just need
	// a moment. TellAgain is how long after that another reason is told, twice as long after each further one up to
	// TellAgainMax: what flaps between two reasons would otherwise be news to the whole cluster with each probe.
	TellAfter    = 2 * time.Second
	TellAgain    = 10 * time.Second
	TellAgainMax = 10 * time.Minute

	responseLineMax = 1024
	pathMax         = 48 // bytes of a path or program in a reason
	reasonMax       = 110
)

// Check is the readiness check of one instance.
type Check struct {
	Spec    *workload.Spec
	Address netip.Addr
	// Own says that Address is the instance's own, in the network of this host's containers: runnerd gave
	// it out itself.
	Own bool
	// Ready says that the instance was ready before runnerd was restarted: it stays so until the
	// check fails as often as it may.
	Ready bool
	// Loaded reports whether an instance that is not probed can serve yet; nil for one that can when it runs. It is
	// asked every FirstInterval until it says yes.
	Loaded func() bool
	// Execute runs the program of an exec check and returns its exit code.
	Execute func(timeout time.Duration) (int, error)
	// Changed is called with the first result and with each change.
	Changed func(ready bool, reason string)
	// Failing is called with the reason why the instance is not ready, when that is news and then rarely. nil = nobody
	// wants to know.
	Failing func(reason string)
}

// teller decides when a reason is told again.
type teller struct {
	told string        // "" = nothing yet
	next time.Time     // when another may be
	wait time.Duration // after the next
}

// begin starts the time before the first reason; with one, that has been told.
func (t *teller) begin(now time.Time, told string) {
	*t = teller{told: told, next: now.Add(TellAfter), wait: TellAgain}
	if told != "" {
		t.next, t.wait = now.Add(TellAgain), 2*TellAgain
	}
}

// news reports whether the reason is to be told now.
func (t *teller) news(now time.Time, reason string) bool {
	if reason == t.told || now.Before(t.next) {
		return false
	}
	t.told, t.next, t.wait = reason, now.Add(t.wait), min(2*t.wait, TellAgainMax)
	return true
}

// Run probes until the context ends.
func (c *Check) Run(ctx context.Context) {
	probe := c.probe()
	if probe == nil {
		if !c.Ready && !sleep(ctx, RunningIsReady) {
			return
		}
		for !c.Ready && c.Loaded != nil && !c.Loaded() {
			if !sleep(ctx, FirstInterval) {
				return
			}
		}
		c.Changed(true, "")
		return
	}
	timeout := duration(c.Spec.Health.TimeoutMillisecond, DefaultTimeout)
	interval := duration(c.Spec.Health.IntervalMillisecond, DefaultInterval)
	failuresMax := int(c.Spec.Health.FailuresMax)
	if failuresMax == 0 {
		failuresMax = DefaultFailures
	}
	ready, failures := c.Ready, 0
	if ready {
		c.Changed(true, "")
	}
	var tell teller
	tell.begin(time.Now(), "")
	for {
		err := probe(ctx, timeout)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			failures = 0
			if !ready {
				ready = true
				c.Changed(true, "")
			}
		case ready:
			if failures++; failures >= failuresMax {
				ready = false
				reason := c.reason(err, timeout)
				tell.begin(time.Now(), reason)
				c.Changed(false, reason)
			}
		case c.Failing != nil:
			if reason := c.reason(err, timeout); tell.news(time.Now(), reason) {
				c.Failing(reason)
			}
		}
		pause := interval
		if !ready {
			pause = min(FirstInterval, interval)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func duration(milliseconds uint32, otherwise time.Duration) time.Duration {
	if milliseconds == 0 {
		return otherwise
	}
	return time.Duration(milliseconds) * time.Millisecond
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

type probe func(ctx context.Context, timeout time.Duration) error

// probe chooses the check; nil means that running is enough.
func (c *Check) probe() probe {
	port := c.port()
	switch c.Spec.Health.Kind {
	case workload.HealthNone:
		return nil
	case workload.HealthExec:
		return c.execute
	case workload.HealthHTTP:
		return func(ctx context.Context, timeout time.Duration) error { return c.http(ctx, timeout, port) }
	}
	if port == 0 {
		return nil
	}
	return func(ctx context.Context, timeout time.Duration) error {
		conn, err := c.dial(ctx, timeout, port)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// port is the one that is probed, 0 = none.
func (c *Check) port() uint16 {
	if port := c.Spec.Health.Port; port != 0 {
		return port
	}
	return firstTCP(c.Spec.Ports)
}

func firstTCP(ports []workload.Port) uint16 {
	for _, port := range ports {
		if port.Protocol == workload.TCP {
			return port.Container
		}
	}
	return 0
}

func (c *Check) dial(ctx context.Context, timeout time.Duration, port uint16) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout, KeepAlive: -1}
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(c.target(), port).String())
}

func (c *Check) target() netip.Addr {
	if c.Own {
		return c.Address
	}
	return Local(c.Address)
}

// http asks for the path and reads no more than the first line of the answer. Redirects count as
// ready and are not followed.
func (c *Check) http(ctx context.Context, timeout time.Duration, port uint16) error {
	conn, err := c.dial(ctx, timeout, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	host := netip.AddrPortFrom(c.target(), port).String()
	request := "GET " + c.Spec.Health.Path + " HTTP/1.1\r\nHost: " + host +
		"\r\nUser-Agent: colloid-health\r\nConnection: close\r\n\r\n"
	if _, err := conn.Write([]byte(request)); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(conn, responseLineMax).ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return errNoAnswer
	case errors.Is(err, io.EOF), errors.Is(err, bufio.ErrBufferFull):
		return errNotHTTP
	case err != nil:
		return err
	}
	return parseStatus(string(line))
}

var (
	errNotHTTP  = errors.New("the answer is not HTTP")
	errNoAnswer = errors.New("closed without an answer")
)

// answerError is an HTTP status that is no success.
type answerError int

func (a answerError) Error() string { return fmt.Sprintf("answers %d", int(a)) }

// exitError is the exit code of a program that found the instance not ready.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// parseStatus reads the first line of an answer; nil is success.
func parseStatus(line string) error {
	version, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	text, _, _ := strings.Cut(rest, " ")
	code, err := strconv.ParseUint(text, 10, 16) // three digits, no sign
	if !strings.HasPrefix(version, "HTTP/1.") || err != nil || len(text) != 3 {
		return errNotHTTP
	}
	if code < 200 || code > 399 {
		return answerError(code)
	}
	return nil
}

func (c *Check) execute(_ context.Context, timeout time.Duration) error {
	code, err := c.Execute(timeout)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// Local gives the address if it is one of this host, else loopback.
func Local(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if address.IsLoopback() {
		return address
	}
	if interfaces, err := net.InterfaceAddrs(); err == nil && address.IsValid() {
		for _, one := range interfaces {
			if prefix, ok := one.(*net.IPNet); ok {
				if own, ok := netip.AddrFromSlice(prefix.IP); ok && own.Unmap() == address {
					return address
				}
			}
		}
	}
	if address.Is6() {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
