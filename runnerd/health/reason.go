package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"colloid.net/workload"
)

// reason says in one bounded, printable line which check failed and how: the same for the same failure, without
// addresses, ports of the prober or times of day, so that it is told once.
func (c *Check) reason(err error, timeout time.Duration) string {
	var answer answerError
	separator := ": "
	if errors.As(err, &answer) {
		separator = " "
	}
	return printable(c.name()+separator+c.failure(err, timeout), reasonMax)
}

// name is the check as the configuration writes it.
func (c *Check) name() string {
	h := &c.Spec.Health
	switch h.Kind {
	case workload.HealthHTTP:
		return fmt.Sprintf("http %d %s", c.port(), printable(h.Path, pathMax))
	case workload.HealthExec:
		if len(h.Command) > 0 {
			return "exec " + printable(h.Command[0], pathMax)
		}
		return "exec"
	}
	return fmt.Sprintf("tcp %d", c.port())
}

func (c *Check) failure(err error, timeout time.Duration) string {
	var errno syscall.Errno
	var operation *net.OpError
	late := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
	connecting := errors.As(err, &operation) && operation.Op == "dial"
	if connecting && operation.Timeout() {
		late = true
	}
	switch {
	case late && c.Spec.Health.Kind == workload.HealthExec:
		return fmt.Sprintf("no end within %s", seconds(timeout))
	case late && connecting:
		return fmt.Sprintf("no connection within %s", seconds(timeout))
	case late:
		return fmt.Sprintf("no answer within %s", seconds(timeout))
	case errors.As(err, &errno) && c.Spec.Health.Kind != workload.HealthExec:
		return errno.Error()
	}
	return err.Error()
}

// seconds writes a duration as a number of seconds or milliseconds.
func seconds(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}

// printable cuts a text and replaces what is not printable ASCII: it ends up in logs and on terminals.
func printable(text string, limit int) string {
	cut := len(text) > limit
	text = strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return '?'
		}
		return r
	}, text[:min(len(text), limit)])
	if cut {
		text = text[:limit-3] + "..."
	}
	return text
}
