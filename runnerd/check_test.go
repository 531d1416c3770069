package runnerd_test

import (
	"os"
	"strings"
	"testing"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// TestACheckStartsNothingAndRefusesWhatAStartWould, also beside what has the port and all of the room now.
func TestACheckStartsNothingAndRefusesWhatAStartWould(t *testing.T) {
	h := newHost(t)
	h.writePolicy("instances 1\n")
	client := runnerdtest.Attach(t, h.open())
	if !client.Hello.TakesCheck {
		t.Fatal("it does not say that it takes checks")
	}
	spec := func(port uint16) *workload.Spec {
		s := runnerdtest.Spec(h.binary, "sleep")
		s.Ports = []workload.Port{{Host: port, Container: port}}
		return s
	}
	check := func(s *workload.Spec) *message.Start {
		m := runnerdtest.StartOf(t, "spread.web", 0, s)
		m.CheckOnly = true
		client.AwaitAcknowledged(client.Send(&message.Command{Body: &message.Command_Start{Start: m}}))
		return m
	}
	runs := client.Start("spread.web", 0, spec(20000))
	client.Await(runs, message.InstanceState_INSTANCE_STARTING) // it never opens its port
	if m := check(spec(20001)); client.Instance(runnerdtest.IDOf(m.Id)) != nil {
		t.Error("a check that is admitted left an instance")
	}
	refused := runnerdtest.IDOf(check(spec(19999)).Id)
	client.Await(refused, denied)
	if reason := client.Instance(refused).Reason; !strings.Contains(reason, "19999") {
		t.Errorf("%q", reason)
	}
	text, err := os.ReadFile(h.policy)
	if err != nil {
		t.Fatal(err)
	}
	h.replacePolicy(strings.Replace(string(text), "port 20000-60000", "port 19999-60000", 1))
	check(spec(19999)) // what is forbidden no longer is withdrawn
	client.AwaitGone(refused)
	if i := client.Instance(runs); i == nil || i.State != message.InstanceState_INSTANCE_STARTING {
		t.Errorf("what ran: %v", i)
	}
}
