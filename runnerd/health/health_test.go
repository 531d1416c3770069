package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"colloid.net/workload"
)

type result struct {
	ready  bool
	reason string
}

// run starts a check and gives its results.
func run(t *testing.T, c Check) <-chan result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	results := make(chan result, 16)
	c.Changed = func(ready bool, reason string) { results <- result{ready, reason} }
	if !c.Address.IsValid() {
		c.Address = netip.MustParseAddr("127.0.0.1")
	}
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return results
}

func next(t *testing.T, results <-chan result) result {
	t.Helper()
	select {
	case r := <-results:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("no result")
		return result{}
	}
}

// server answers every connection with text and counts them.
func server(t *testing.T, text *atomic.Pointer[string]) (port uint16, count *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	count = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			buffer := make([]byte, 1024)
			conn.SetDeadline(time.Now().Add(time.Second))
			conn.Read(buffer)
			if answer := text.Load(); answer != nil {
				conn.Write([]byte(*answer))
			}
			conn.Close()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port), count
}

func TestF158_DefaultIsATCPConnectionToTheFirstTCPPort(t *testing.T) {
	port, count := server(t, new(atomic.Pointer[string]))
	spec := &workload.Spec{Ports: []workload.Port{
		{Host: 9, Container: 9, Protocol: workload.UDP}, {Host: port, Container: port}}}
	if r := next(t, run(t, Check{Spec: spec})); !r.ready {
		t.Fatalf("%+v", r)
	}
	// The kernel completes a connection before the server has accepted it.
	for deadline := time.Now().Add(5 * time.Second); count.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("ready without a connection")
		}
	}
}

func TestF158_WithoutPortsRunningIsReady(t *testing.T) {
	began := time.Now()
	if r := next(t, run(t, Check{Spec: &workload.Spec{}})); !r.ready || time.Since(began) < RunningIsReady {
		t.Fatalf("%+v after %v", r, time.Since(began))
	}
	spec := &workload.Spec{Health: workload.Health{Kind: workload.HealthNone},
		Ports: []workload.Port{{Host: 1, Container: 1}}}
	if r := next(t, run(t, Check{Spec: spec})); !r.ready {
		t.Fatalf("%+v", r)
	}
}

// TestF158_WhatHasToLoadIsReadyOnceItHas, and is not asked again.
func TestF158_WhatHasToLoadIsReadyOnceItHas(t *testing.T) {
	var asked atomic.Int32
	began := time.Now()
	r := next(t, run(t, Check{Spec: &workload.Spec{}, Loaded: func() bool { return asked.Add(1) > 3 }}))
	if !r.ready || asked.Load() != 4 || time.Since(began) < RunningIsReady+3*FirstInterval {
		t.Fatalf("%+v after %v, asked %d times", r, time.Since(began), asked.Load())
	}
	adopted := Check{Spec: &workload.Spec{}, Ready: true, Loaded: func() bool { return false }}
	if r := next(t, run(t, adopted)); !r.ready {
		t.Fatalf("adopted: %+v", r)
	}
}

func TestF158_ThreeFailuresMakeUnready(t *testing.T) {
	var text atomic.Pointer[string]
	good, bad := "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 500 Oops\r\n\r\n"
	text.Store(&good)
	port, count := server(t, &text)
	spec := &workload.Spec{Health: workload.Health{
		Kind: workload.HealthHTTP, Port: port, Path: "/healthz", IntervalMillisecond: 100}}
	results := run(t, Check{Spec: spec})
	if r := next(t, results); !r.ready {
		t.Fatalf("%+v", r)
	}
	text.Store(&bad)
	before := count.Load()
	if r := next(t, results); r.ready || r.reason != fmt.Sprintf("http %d /healthz answers 500", port) {
		t.Fatalf("%+v", r)
	}
	if n := count.Load() - before; n < 3 || n > 5 {
		t.Fatalf("%d probes until unready", n)
	}
	text.Store(&good)
	if r := next(t, results); !r.ready {
		t.Fatalf("%+v", r)
	}
}

func TestF158_AdoptedReadinessHoldsUntilItFails(t *testing.T) {
	var healthy atomic.Bool
	check := Check{Spec: &workload.Spec{Health: workload.Health{
		Kind: workload.HealthExec, Command: []string{"/x"}, IntervalMillisecond: 100}}, Ready: true}
	check.Execute = func(time.Duration) (int, error) {
		if healthy.Load() {
			return 0, nil
		}
		return 0, errors.New("broken")
	}
	results := run(t, check)
	if r := next(t, results); !r.ready {
		t.Fatalf("%+v", r)
	}
	if r := next(t, results); r.ready || r.reason != "exec /x: broken" {
		t.Fatalf("%+v", r)
	}
	healthy.Store(true)
	if r := next(t, results); !r.ready {
		t.Fatalf("%+v", r)
	}
}

func TestStatusLines(t *testing.T) {
	for line, ok := range map[string]bool{
		"HTTP/1.1 200 OK\r\n": true, "HTTP/1.0 399 x\r\n": true, "HTTP/1.1 302\r\n": true, "HTTP/1.1 404 x\r\n": false,
		"HTTP/1.1 100 x\n": false, "SSH-2.0-x\r\n": false, "HTTP/1.1 0200 x\n": false, "HTTP/1.1 -20 x\n": false, "\n": false,
	} {
		if err := parseStatus(line); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// TestProbesStayOnTheHost gives addresses of elsewhere.
func TestProbesStayOnTheHost(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "::1": "::1", "169.254.169.254": "127.0.0.1", "192.0.2.1": "127.0.0.1",
		"2001:db8::1": "::1", "::ffff:192.0.2.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "127.0.0.77": "127.0.0.77",
	} {
		if got := Local(netip.MustParseAddr(address)); got.String() != want {
			t.Errorf("%s is probed at %s, expected %s", address, got, want)
		}
	}
	if got := Local(netip.Addr{}); !got.IsLoopback() {
		t.Error(got)
	}
}
