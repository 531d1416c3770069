package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/workload"
)

// fails runs a check that never succeeds. What it returns waits for the first reason that is told.
func fails(t *testing.T, c Check) (reason func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reasons, done := make(chan string, 16), make(chan struct{})
	c.Address = netip.MustParseAddr("127.0.0.1")
	c.Changed = func(bool, string) { reasons <- "a change" }
	c.Failing = func(reason string) { reasons <- reason }
	began := time.Now()
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return func() string {
		select {
		case reason := <-reasons:
			if after := time.Since(began); after < TellAfter {
				t.Errorf("told after %v: most instances need a moment", after)
			}
			return reason
		case <-time.After(10 * time.Second):
			t.Fatal("no reason")
			return ""
		}
	}
}

// TestF158_AFailingCheckIsNamed: which check, and how it fails, in one printable line of bounded length, that is the
// same each time.
func TestF158_AFailingCheckIsNamed(t *testing.T) {
	missing, mute := "HTTP/1.1 404 Not Found\r\n\r\n", "220 mail\r\n"
	var text, other atomic.Pointer[string]
	text.Store(&missing)
	other.Store(&mute)
	web, _ := server(t, &text)
	mail, _ := server(t, &other)
	closing, _ := server(t, new(atomic.Pointer[string]))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	silentPort := uint16(silent.Addr().(*net.TCPAddr).Port)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closedPort := uint16(closed.Addr().(*net.TCPAddr).Port)
	closed.Close()
	http := func(port uint16, path string) workload.Health {
		return workload.Health{Kind: workload.HealthHTTP, Port: port, Path: path, TimeoutMillisecond: 300}
	}
	program := func(code int, err error) func(time.Duration) (int, error) {
		return func(time.Duration) (int, error) { return code, err }
	}
	long := "/" + strings.Repeat("p", 200)
	waiting := map[string]func() string{}
	tests := map[string]struct {
		health  workload.Health
		execute func(time.Duration) (int, error)
		want    string
	}{
		"404":     {http(web, "/nope"), nil, fmt.Sprintf("http %d /nope answers 404", web)},
		"no HTTP": {http(mail, "/"), nil, fmt.Sprintf("http %d /: the answer is not HTTP", mail)},
		"closes":  {http(closing, "/"), nil, fmt.Sprintf("http %d /: closed without an answer", closing)},
		"silent":  {http(silentPort, "/"), nil, fmt.Sprintf("http %d /: no answer within 300 ms", silentPort)},
		"long":    {http(web, long), nil, fmt.Sprintf("http %d %s... answers 404", web, long[:pathMax-3])},
		"closed": {workload.Health{Kind: workload.HealthTCP, Port: closedPort}, nil,
			fmt.Sprintf("tcp %d: connection refused", closedPort)},
		"hangs": {workload.Health{Kind: workload.HealthExec, Command: []string{"/bin/check"}, TimeoutMillisecond: 2000},
			program(-1, fmt.Errorf("took longer: %w", os.ErrDeadlineExceeded)), "exec /bin/check: no end within 2 s"},
		"exits": {workload.Health{Kind: workload.HealthExec, Command: []string{"/bin/check"}}, program(3, nil),
			"exec /bin/check: exit code 3"},
		"hostile": {workload.Health{Kind: workload.HealthExec, Command: []string{"/x\x1b[2J"}},
			program(-1, errors.New("no\nsuch "+strings.Repeat("f", 300))), "exec /x?[2J: no?such ffff"},
	}
	for name, test := range tests {
		waiting[name] = fails(t, Check{Spec: &workload.Spec{Health: test.health}, Execute: test.execute})
	}
	for name, test := range tests {
		got := waiting[name]()
		if name == "hostile" && strings.HasPrefix(got, test.want) && len(got) == reasonMax {
			continue
		}
		if got != test.want {
			t.Errorf("%s: %q, expected %q", name, got, test.want)
		}
	}
}

// TestReasonsThatFlapAreRarelyNews: each is a change that all cells get.
func TestReasonsThatFlapAreRarelyNews(t *testing.T) {
	var tell teller
	now := time.Unix(1000, 0)
	end := now.Add(time.Hour)
	tell.begin(now, "")
	told := []time.Duration{}
	for i := 0; now.Before(end); i++ {
		if tell.news(now, fmt.Sprint("reason ", i%2)) {
			told = append(told, now.Sub(time.Unix(1000, 0)))
		}
		now = now.Add(100 * time.Millisecond)
	}
	if len(told) < 5 || len(told) > 14 || told[0] != TellAfter || told[1] < TellAfter+TellAgain {
		t.Errorf("told %d times in an hour: %v", len(told), told)
	}
	tell.begin(now, "a") // it was told with the change to unready
	if tell.news(now.Add(time.Hour), "a") || tell.news(now.Add(TellAgain-1), "b") || !tell.news(now.Add(TellAgain), "b") {
		t.Error("after a change")
	}
}
