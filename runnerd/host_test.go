package runnerd_test

import (
	"testing"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// F101, F158: when the host gets another address, a process that listens on the old one alone is started again with the
// new one. The command is acknowledged, again and again.
func TestF158_InstancesFollowTheAddressOfTheHost(t *testing.T) {
	h := newHost(t)
	h.timing.Liveness = 400 * time.Millisecond
	client := runnerdtest.Attach(t, h.open())
	spec := runnerdtest.Spec(h.binary, "listen")
	port := freePort(t)
	spec.Ports = []workload.Port{{Container: port, Host: port}}
	spec.Health = workload.Health{Kind: workload.HealthTCP, Port: port, IntervalMillisecond: 100, FailuresMax: 2}
	id := client.Start("spread.listen", 0, spec)
	client.Await(id, ready)

	move := func(address ...byte) {
		client.AwaitAcknowledged(client.Send(&message.Command{Body: &message.Command_Host{Host: &message.Host{Address: address}}}))
	}
	move(127, 0, 0, 1) // where it is
	time.Sleep(300 * time.Millisecond)
	if i := client.Instance(id); i.State != ready || i.Restarts != 0 {
		t.Fatalf("a command that changes nothing: %v", i)
	}
	move(127, 0, 0, 9)
	move(127, 0, 0, 9)
	client.Until("it to be ready at the new address", func() bool {
		i := client.Locked(id)
		return i.State == ready && i.Restarts > 0
	})
}

// F158: an address that is none ends the connection, as every malformed command does.
func TestF158_AMalformedAddressEndsTheConnection(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	client.Send(&message.Command{Body: &message.Command_Host{Host: &message.Host{Address: []byte{1, 2, 3}}}})
	client.AwaitEnd()
}
