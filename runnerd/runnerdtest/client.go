// Package runnerdtest drives a runnerd from tests: a Client speaks as meshd does, a Daemon is the
// real command as a process that can be killed and started again.
package runnerdtest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/runnerd"
	"colloid.net/workload"
)

// Patience is how long tests wait for what must come. Under an emulated processor that is longer.
var Patience = func() time.Duration {
	if os.Getenv("COLLOID_VM") != "" {
		return time.Minute
	}
	return 20 * time.Second
}()

// Client is one connection as meshd. Its methods may be called from any goroutine.
type Client struct {
	t    testing.TB
	Link *ring.Link
	// Reading is locked by a test that wants nothing to be read for a while.
	Reading sync.Mutex

	mutex        sync.Mutex
	changed      *sync.Cond
	sequence     uint64
	Hello        *message.Hello
	instances    map[runnerd.InstanceID]*message.Instance
	unlisted     map[runnerd.InstanceID]*message.Instance // since the last Hello
	listings     int
	acknowledged uint64
	err          error
	states       []string // every state seen, in order: "id STATE"
	attached     map[uint64]string
	prepared     map[runnerd.InstanceID][]string // errors of what was prepared, "" = it is
	// Wanted are the blobs of other cells that runnerd asked for. Nobody has them.
	Wanted      []*message.Wanted
	channel     uint64
	descriptors ring.Descriptors
}

// Pair makes a connected pair of Unix streams.
func Pair(t testing.TB) (ours, theirs *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return FileConn(t, pair[0]), FileConn(t, pair[1])
}

// FileConn makes a connection of a descriptor and takes it over.
func FileConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "pair")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

// Attach connects a client to a supervisor of this process.
func Attach(t testing.TB, s *runnerd.Supervisor) *Client {
	t.Helper()
	ours, theirs := Pair(t)
	if err := s.Attach(theirs); err != nil {
		t.Fatal(err)
	}
	return Accept(t, ours)
}

// Accept takes the rings that a runnerd passes and waits for its first listing.
func Accept(t testing.TB, conn *net.UnixConn) *Client {
	t.Helper()
	link, err := ring.Accept(conn)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{t: t, Link: link, instances: map[runnerd.InstanceID]*message.Instance{},
		attached: map[uint64]string{}, prepared: map[runnerd.InstanceID][]string{}}
	c.changed = sync.NewCond(&c.mutex)
	t.Cleanup(c.Close)
	go c.receiveDescriptors()
	go c.receive()
	c.Until("the first listing", func() bool { return c.Hello != nil && c.listings > 0 })
	return c
}

// Close ends the connection.
func (c *Client) Close() {
	c.Link.Close()
	c.descriptors.Close()
}

func (c *Client) receiveDescriptors() {
	defer c.Link.Close()
	for {
		tag, file, err := c.Link.ReceiveDescriptor()
		if err != nil || c.descriptors.Put(tag, file) != nil {
			return
		}
	}
}

// AttachInvoke asks for a connection to the worker of a Wasm instance.
func (c *Client) AttachInvoke(id runnerd.InstanceID) (*os.File, error) {
	c.t.Helper()
	return c.Attach(id, &message.Attach{What: &message.Attach_Invoke{Invoke: &message.Invoke{}}})
}

// Attach asks for a descriptor; the channel and the id are filled in.
func (c *Client) Attach(id runnerd.InstanceID, attach *message.Attach) (*os.File, error) {
	c.t.Helper()
	c.mutex.Lock()
	c.channel++
	channel := c.channel
	c.mutex.Unlock()
	came := make(chan *os.File, 1)
	c.descriptors.Claim(channel, func(file *os.File) { came <- file })
	attach.Channel = channel
	attach.Id = &message.InstanceID{KeyHash: id.KeyHash, Slot: uint32(id.Slot), Digest: id.Digest}
	c.Send(&message.Command{Body: &message.Command_Attach{Attach: attach}})
	reason, answered := "", false
	c.Until("the answer to an attach", func() bool { reason, answered = c.attached[channel]; return answered })
	if reason != "" {
		return nil, errors.New(reason)
	}
	return <-came, nil
}

func (c *Client) receive() {
	buffer := make([]byte, ring.RecordMax)
	for {
		n, ok, err := c.Link.Receive(buffer)
		if err != nil {
			c.mutex.Lock()
			c.err = err
			c.changed.Broadcast()
			c.mutex.Unlock()
			return
		}
		if !ok {
			c.Link.Wait(-1)
			continue
		}
		event := new(message.Event)
		if err := proto.Unmarshal(buffer[:n], event); err != nil {
			panic(err)
		}
		c.take(event)
		c.Reading.Lock()
		c.Reading.Unlock()
	}
}

func (c *Client) take(event *message.Event) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	defer c.changed.Broadcast()
	c.acknowledged = max(c.acknowledged, event.Acknowledged)
	switch body := event.Body.(type) {
	case *message.Event_Hello:
		c.Hello = body.Hello
		c.unlisted = maps.Clone(c.instances)
	case *message.Event_Listing:
		c.listings++
		for id := range c.unlisted {
			delete(c.instances, id)
		}
	case *message.Event_Wanted:
		c.Wanted = append(c.Wanted, body.Wanted)
		go c.Send(&message.Command{Body: &message.Command_NoBlob{ // not with the lock
			NoBlob: &message.NoBlob{Wanted: body.Wanted.Number, Alone: true},
		}})
	case *message.Event_Attached:
		c.attached[body.Attached.Channel] = body.Attached.Error
	case *message.Event_Prepared:
		id := IDOf(body.Prepared.Id)
		c.prepared[id] = append(c.prepared[id], body.Prepared.Error)
	case *message.Event_Instance:
		id := IDOf(body.Instance.Id)
		delete(c.unlisted, id)
		c.states = append(c.states, fmt.Sprintf("%s %s", id, body.Instance.State))
		if body.Instance.State == message.InstanceState_INSTANCE_GONE {
			delete(c.instances, id)
			return
		}
		c.instances[id] = body.Instance
	}
}

// IDOf is the comparable form of an id.
func IDOf(m *message.InstanceID) runnerd.InstanceID {
	return runnerd.InstanceID{KeyHash: m.GetKeyHash(), Slot: uint16(m.GetSlot()), Digest: m.GetDigest()}
}

// Send sends one command and returns its sequence.
func (c *Client) Send(command *message.Command) uint64 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.sequence++
	command.Sequence = c.sequence
	record, err := proto.Marshal(command)
	if err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(Patience); !c.Link.Send(record); time.Sleep(time.Millisecond) {
		if c.Link.Err() != nil || time.Now().After(deadline) {
			break // the test sees it by what does not come
		}
	}
	return c.sequence
}

// Start asks for an instance of a specification.
func (c *Client) Start(key string, slot uint32, spec *workload.Spec) runnerd.InstanceID {
	c.t.Helper()
	m := StartOf(c.t, key, slot, spec)
	c.Send(&message.Command{Body: &message.Command_Start{Start: m}})
	return IDOf(m.Id)
}

// Prepare asks for an instance to be made ready for.
func (c *Client) Prepare(key string, slot uint32, spec *workload.Spec) runnerd.InstanceID {
	c.t.Helper()
	m := StartOf(c.t, key, slot, spec)
	m.PrepareOnly = true
	c.Send(&message.Command{Body: &message.Command_Start{Start: m}})
	return IDOf(m.Id)
}

// AwaitPrepared waits for the answer to the n-th Prepare of an instance, counted from 1, and gives its error.
func (c *Client) AwaitPrepared(id runnerd.InstanceID, n int) string {
	c.t.Helper()
	for end := time.Now().Add(preparedPatience); c.Prepared(id) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("preparation %d of %s did not come to an end", n, id)
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.prepared[id][n-1]
}

// preparedPatience is longer than Patience: what is prepared gets what others leave of the machine.
var preparedPatience = 6 * Patience

// Prepared is how many answers came for an instance.
func (c *Client) Prepared(id runnerd.InstanceID) int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.prepared[id])
}

// StartOf makes the command's body.
func StartOf(t testing.TB, key string, slot uint32, spec *workload.Spec) *message.Start {
	t.Helper()
	encoded, err := workload.Encode(spec)
	if err != nil {
		t.Fatal(err)
	}
	hash := uint64(14695981039346656037)
	for _, b := range []byte(key) {
		hash = (hash ^ uint64(b)) * 1099511628211
	}
	return &message.Start{
		Id:  &message.InstanceID{KeyHash: hash, Slot: slot, Digest: spec.InstanceDigest()},
		Key: key, Spec: encoded, Address: []byte{127, 0, 0, 1}, CellId: 0x1234,
	}
}

// Stop asks for an instance not to be.
func (c *Client) Stop(id runnerd.InstanceID, grace time.Duration) {
	c.Send(&message.Command{Body: &message.Command_Stop{Stop: &message.Stop{
		Id:                &message.InstanceID{KeyHash: id.KeyHash, Slot: uint32(id.Slot), Digest: id.Digest},
		GraceMilliseconds: uint32(grace / time.Millisecond),
	}}})
}

// Withdraw takes a Prepare back.
func (c *Client) Withdraw(id runnerd.InstanceID) {
	c.Send(&message.Command{Body: &message.Command_Stop{Stop: &message.Stop{
		Id: &message.InstanceID{KeyHash: id.KeyHash, Slot: uint32(id.Slot), Digest: id.Digest}, PreparedOnly: true,
	}}})
}

// Until waits for a condition, which is evaluated under the lock after every event.
func (c *Client) Until(what string, condition func() bool) {
	c.t.Helper()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	late := false
	timer := time.AfterFunc(Patience, func() {
		c.mutex.Lock()
		late = true
		c.changed.Broadcast()
		c.mutex.Unlock()
	})
	defer timer.Stop()
	for !condition() {
		if late || c.err != nil {
			c.t.Fatalf("%s did not come (link: %v); seen: %v; now: %v", what, c.err, last(c.states), c.instances)
		}
		c.changed.Wait()
	}
}

func last(states []string) []string { return states[max(0, len(states)-20):] }

// Await waits for a state and returns the instance as it then is.
func (c *Client) Await(id runnerd.InstanceID, state message.InstanceState) *message.Instance {
	c.t.Helper()
	var found *message.Instance
	c.Until(fmt.Sprintf("%s of %s", state, id), func() bool {
		found = c.instances[id]
		return found.GetState() == state && found != nil
	})
	return found
}

// AwaitGone waits until the instance does not exist.
func (c *Client) AwaitGone(id runnerd.InstanceID) {
	c.t.Helper()
	c.Until("end of "+id.String(), func() bool {
		return c.instances[id] == nil && slices.Contains(c.states, id.String()+" INSTANCE_GONE")
	})
}

// AwaitAcknowledged waits until a command was carried out or refused.
func (c *Client) AwaitAcknowledged(sequence uint64) {
	c.t.Helper()
	c.Until(fmt.Sprintf("acknowledgement of %d", sequence), func() bool { return c.acknowledged >= sequence })
}

// Instance is what is known of an instance, nil for nothing.
func (c *Client) Instance(id runnerd.InstanceID) *message.Instance {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.instances[id]
}

// Count is the number of known instances.
func (c *Client) Count() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.instances)
}

// AwaitCount waits until at most so many instances are known.
func (c *Client) AwaitCount(most int) {
	c.t.Helper()
	c.Until(fmt.Sprintf("at most %d instances", most), func() bool { return len(c.instances) <= most })
}

// AwaitEnd waits until runnerd has closed the connection.
func (c *Client) AwaitEnd() {
	c.t.Helper()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for deadline := time.Now().Add(Patience); c.err == nil; {
		if time.Now().After(deadline) {
			c.t.Fatal("the connection was not closed")
		}
		c.mutex.Unlock()
		time.Sleep(5 * time.Millisecond)
		c.mutex.Lock()
	}
}

// Locked is Instance for conditions of Until, which hold the lock.
func (c *Client) Locked(id runnerd.InstanceID) *message.Instance { return c.instances[id] }
