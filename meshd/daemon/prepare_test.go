package daemon

import (
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reconcile"
	"colloid.net/workload"
	"google.golang.org/protobuf/proto"
)

// next is the next Start or Stop that meshd sends, nil if none comes in time.
func (f *fakeRunnerd) next(within time.Duration) (*message.Start, *message.Stop) {
	f.t.Helper()
	buffer := make([]byte, ring.RecordMax)
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		n, ok, err := f.link.Receive(buffer)
		if err != nil {
			f.t.Fatal(err)
		}
		if !ok {
			f.link.Wait(10 * time.Millisecond)
			continue
		}
		command := new(message.Command)
		if err := proto.Unmarshal(buffer[:n], command); err != nil {
			f.t.Fatal(err)
		}
		f.send(&message.Event{Acknowledged: command.Sequence})
		if command.GetStart() != nil || command.GetStop() != nil {
			return command.GetStart(), command.GetStop()
		}
	}
	return nil, nil
}

func (r *running) set(key string, spec *workload.Spec) {
	r.t.Helper()
	value, err := workload.Encode(spec)
	if err != nil {
		r.t.Fatal(err)
	}
	write := uds.WriteRequest{Key: key, Value: value, Expect: uds.ExpectAny}
	if response := r.daemon.Command(cell.Request{Code: uds.CodeSet, Payload: write.Append(nil)}); response.Status != uds.OK {
		r.t.Fatalf("%s: %s", key, response.Text)
	}
}

// An update that has to end what serves asks runnerd to prepare first, says that it waits and why, and goes on when all is
// there; a runnerd of before is asked about its policy alone. What is no answer ends the connection (F133).
func TestF75_AnUpdateAsksRunnerdToPrepare(t *testing.T) {
	r := launch(t, "epoll")
	f := r.connectRunnerd(t, 0)
	f.send(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol, RunsOci: true,
		TakesCheck: true, TakesPrepare: true}}})
	f.send(&message.Event{Body: &message.Event_Listing{Listing: &message.Listing{}}})
	spec := &workload.Spec{Runtime: workload.RuntimeOCI, Replicas: 1, Image: "registry.example/a",
		Ports: []workload.Port{{Host: 80, Container: 80}}}
	r.set("spread.web", spec)
	first, _ := f.next(20 * time.Second)
	if first == nil || first.PrepareOnly || first.CheckOnly {
		t.Fatalf("%+v", first)
	}
	f.send(&message.Event{Body: &message.Event_Instance{Instance: &message.Instance{Id: first.Id, Key: first.Key,
		Spec: first.Spec, State: message.InstanceState_INSTANCE_READY, Pid: 1, Ports: []uint32{80}}}})
	spec.Image = "registry.example/b"
	r.set("spread.web", spec)
	ahead, stop := f.next(20 * time.Second)
	for ahead != nil && ahead.Id.Digest == first.Id.Digest {
		ahead, stop = f.next(20 * time.Second) // the start was repeated before its instance showed
	}
	if stop != nil || ahead == nil || !ahead.PrepareOnly || ahead.CheckOnly || ahead.Id.Digest != spec.InstanceDigest() {
		t.Fatalf("%+v, %+v", ahead, stop)
	}
	prepared := func(id *message.InstanceID, failure string) {
		f.send(&message.Event{Body: &message.Event_Prepared{Prepared: &message.Prepared{Id: id, Error: failure}}})
	}
	prepared(first.Id, "") // which nobody has asked for
	prepared(ahead.Id, "no such\x1b image"+strings.Repeat("!", 1000))
	eventually(t, "the failure is known", func() (known bool) {
		r.inspect(func(c *cell.Cell) {
			p, ok := c.Preparation(reconcile.InstanceID{KeyHash: ahead.Id.KeyHash, Digest: ahead.Id.Digest})
			known = ok && strings.HasPrefix(p.Failure, "no such? image!!!") && len(p.Failure) == 200
		})
		return known
	})
	if start, stop := f.next(2500 * time.Millisecond); start != nil || stop != nil {
		t.Fatalf("%+v, %+v", start, stop)
	}
	// The same again after a new connection, and this time all is there.
	f = r.connectRunnerd(t, 0)
	f.send(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol, RunsOci: true,
		TakesCheck: true, TakesPrepare: true}}})
	f.send(&message.Event{Body: &message.Event_Instance{Instance: &message.Instance{Id: first.Id, Key: first.Key,
		Spec: first.Spec, State: message.InstanceState_INSTANCE_READY, Pid: 1, Ports: []uint32{80}}}})
	f.send(&message.Event{Body: &message.Event_Listing{Listing: &message.Listing{}}})
	if ahead, stop = f.next(20 * time.Second); ahead == nil || !ahead.PrepareOnly {
		t.Fatalf("%+v, %+v", ahead, stop)
	}
	prepared(ahead.Id, "")
	if ahead, stop = f.next(20 * time.Second); stop == nil || stop.Id.Digest != first.Id.Digest {
		t.Fatalf("%+v, %+v", ahead, stop)
	}
	prepared(&message.InstanceID{Slot: 1 << 16}, "")
	eventually(t, "the end of the connection", func() bool {
		connected := true
		r.inspect(func(*cell.Cell) { connected = r.daemon.helper.link != nil })
		return !connected
	})
}

// A runnerd that does not know a Start that only prepares, or only asks, is not sent one: it would start it.
func TestF134_AnOlderRunnerdIsNotAskedToPrepare(t *testing.T) {
	r := launch(t, "epoll")
	f := r.connectRunnerd(t, 0)
	do := func(kind reconcile.Kind) (sent bool) {
		eventually(t, "the connection", func() bool {
			var before, after uint64
			done := make(chan bool)
			r.daemon.inbox.post(func() {
				if before = r.daemon.helper.sequence; r.daemon.helper.link != nil {
					done <- r.daemon.helper.Do(reconcile.Action{Kind: kind, ID: reconcile.InstanceID{KeyHash: 1}, Key: "spread.x"})
				} else {
					done <- false
				}
				after = r.daemon.helper.sequence
				done <- true
			})
			taken := <-done
			<-done
			sent = after > before
			return taken
		})
		return sent
	}
	if do(reconcile.Prepare) || do(reconcile.Check) {
		t.Error("an older runnerd is sent what it takes for a start")
	}
	f.send(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol, RunsOci: true, TakesPrepare: true}}})
	eventually(t, "a prepare", func() bool { return do(reconcile.Prepare) })
}
