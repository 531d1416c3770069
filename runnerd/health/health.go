// Package health finds out whether an instance is ready (F158): by a TCP connection, an HTTP request
// or a program run as the workload's user. Probes go to addresses of this host only, whatever the
// command said, so that a taken-over meshd gains no way to connect elsewhere as the helper.
package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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

	responseLineMax = 1024
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
				c.Changed(false, fmt.Sprintf("health check failed %d times: %v", failures, err))
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
	h := &c.Spec.Health
	port := h.Port
	if port == 0 {
		port = firstTCP(c.Spec.Ports)
	}
	switch h.Kind {
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
	if err != nil {
		return fmt.Errorf("no HTTP status line: %w", err)
	}
	return statusOK(string(line))
}

var errNotHTTP = errors.New("the answer is not HTTP")

func statusOK(line string) error {
	version, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
	text, _, _ := strings.Cut(rest, " ")
	code, err := strconv.Atoi(text)
	if !strings.HasPrefix(version, "HTTP/1.") || err != nil || len(text) != 3 {
		return errNotHTTP
	}
	if code < 200 || code > 399 {
		return fmt.Errorf("HTTP status %d", code)
	}
	return nil
}

func (c *Check) execute(_ context.Context, timeout time.Duration) error {
	code, err := c.Execute(timeout)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("%s exited with code %d", c.Spec.Health.Command[0], code)
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
