package runnerd_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

func TestRestartPolicies(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	for _, c := range []struct {
		policy workload.RestartPolicy
		words  []string
		state  message.InstanceState
		code   int32
	}{
		{workload.RestartNever, []string{"exit", "x", "y"}, exited, 1},
		{workload.RestartOnFailure, []string{"exit", "x"}, exited, 0},
		{workload.RestartOnFailure, []string{"exit", "x", "y"}, backoff, 1},
		{workload.RestartAlways, []string{"exit", "x"}, backoff, 0},
	} {
		spec := runnerdtest.Spec(h.binary, c.words...)
		spec.Restart = c.policy
		id := client.Start("spread.once", 0, spec)
		i := client.Await(id, c.state)
		if i.ExitCode != c.code {
			t.Errorf("policy %d: %v", c.policy, i)
		}
		if c.state == exited { // a repeated start does not start it again
			client.Start("spread.once", 0, spec)
			time.Sleep(50 * time.Millisecond)
			if again := client.Instance(id); again.State != exited || again.Restarts != 0 {
				t.Errorf("policy %d: %v", c.policy, again)
			}
		}
		client.Stop(id, 0)
		client.AwaitGone(id)
	}
}

// TestF76_CrashLoopBacksOff runs the true schedule a hundred times faster: 5 minutes are 3 s.
func TestF76_CrashLoopBacksOff(t *testing.T) {
	h := newHost(t)
	h.timing.BackoffFirst = 10 * time.Millisecond
	h.timing.BackoffMax = 3 * time.Second
	s := h.open()
	client := runnerdtest.Attach(t, s)
	id := client.Start("spread.crash", 0, runnerdtest.Spec(h.binary, "exit", "x", "y"))
	client.Until("six restarts", func() bool { return client.Locked(id).GetRestarts() >= 6 })
	i := client.Await(id, backoff)
	if i.Restarts > 7 || i.ExitCode != 1 {
		t.Fatalf("%v", i)
	}
	// 10, 25, 62, 156, 390, 976, 2441 ms: after the sixth restart a new runnerd must not start at once.
	s.Close()
	client = runnerdtest.Attach(t, h.open())
	time.Sleep(300 * time.Millisecond)
	if again := client.Instance(id); again.GetState() != backoff || again.Restarts != i.Restarts {
		t.Fatalf("the back-off was forgotten: %v", again)
	}
}

func TestF76_ScheduleMakesAtMostEightStartsInFiveMinutes(t *testing.T) {
	starts, at, delay := 0, time.Duration(0), time.Duration(0)
	for ; at < 5*time.Minute; starts++ {
		delay = runnerd.NextDelay(delay, runnerd.Timing{})
		at += delay
	}
	if starts > 8 || delay > 5*time.Minute {
		t.Fatalf("%d starts, last delay %v", starts, delay)
	}
	for range 100 {
		if delay = runnerd.NextDelay(delay, runnerd.Timing{}); delay > 5*time.Minute {
			t.Fatal(delay)
		}
	}
}

func TestF76_LongRunForgetsTheBackoff(t *testing.T) {
	h := newHost(t)
	h.timing.BackoffReset = 200 * time.Millisecond
	h.timing.BackoffFirst = 20 * time.Millisecond
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.long", 0, runnerdtest.Spec(h.binary, "sleep"))
	for n := range uint32(3) { // 20, 50, 125 ms without the reset
		client.Until("next run", func() bool {
			i := client.Locked(id)
			return i.GetState() == ready && i.Restarts == n
		})
		i := client.Instance(id)
		_ = procfs.Process{PID: int(i.Pid), StartTicks: i.StartTicks}.Signal(unix.SIGKILL)
		client.Until("restart", func() bool { return client.Locked(id).GetRestarts() == n+1 && client.Locked(id).Pid != 0 })
		state, err := record.Load(h.instanceFile(id, "state"))
		if delay := time.Duration(state.Int("delay")); err != nil || delay != h.timing.BackoffFirst {
			t.Fatalf("restart %d after %v, %v", n, delay, err)
		}
		if code := client.Instance(id).ExitCode; code != 137 {
			t.Fatalf("exit code %d", code)
		}
	}
}

func TestF147_LogIsBounded(t *testing.T) {
	h := newHost(t)
	h.writePolicy("log_rate 100mb")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.yes", 0, runnerdtest.Spec(h.binary, "yes"))
	client.Await(id, ready)
	eventually(t, "second log file", func() bool { return size(h.instanceFile(id, "log.1")) > 0 })
	deadline := time.Now().Add(time.Second)
	for time.Now().Before(deadline) {
		if a, b := size(h.instanceFile(id, "log")), size(h.instanceFile(id, "log.1")); a > 10<<20 || b > 10<<20 {
			t.Fatalf("log files have %d and %d bytes", a, b)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestF147_LogRateDropsAndCounts(t *testing.T) {
	h := newHost(t)
	h.writePolicy("log_rate 64kb")
	client := runnerdtest.Attach(t, h.open())
	id := client.Start("spread.yes", 0, runnerdtest.Spec(h.binary, "yes"))
	client.Await(id, ready)
	eventually(t, "drop counter", func() bool { return size(h.instanceFile(id, "dropped")) > 0 })
	eventually(t, "mark in the log", func() bool {
		text, _ := os.ReadFile(h.instanceFile(id, "log"))
		return strings.Contains(string(text), "bytes of output dropped")
	})
	if n := size(h.instanceFile(id, "log")); n > 3<<20 {
		t.Fatalf("%d bytes were kept at 64 KiB a second", n)
	}
}
