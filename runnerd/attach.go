package runnerd

import (
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/workload"
)

// attachesMax bounds descriptors being made at a time; more are refused, and asked for again.
const attachesMax = 32

// attach connects a descriptor to an instance and passes it to meshd (message Attach).
func (s *Supervisor) attach(from *session, m *message.Attach) error {
	if wanted, ok := m.What.(*message.Attach_Resolver); ok && m.Channel != 0 {
		s.attachResolver(from, m.Channel, wanted.Resolver)
		return nil
	}
	id, err := instanceID(m.Id)
	if err != nil {
		return err
	}
	if m.Channel == 0 {
		return fmt.Errorf("attach to %s has no channel", id)
	}
	i := s.instances[id]
	if i == nil || i.phase != phaseRunning {
		s.attached(from, m.Channel, fmt.Errorf("instance %s does not run", id))
		return nil
	}
	if from.attaching >= attachesMax {
		s.attached(from, m.Channel, fmt.Errorf("%d descriptors are being made already: try again", attachesMax))
		return nil
	}
	if _, wanted := m.What.(*message.Attach_Invoke); !wanted || i.spec.Runtime != workload.RuntimeWasm {
		s.attached(from, m.Channel, fmt.Errorf("instance %s has nothing of this kind to attach to", id))
		return nil
	}
	directory := i.directory
	s.pass(from, m.Channel, func() (*os.File, error) { return connectWorker(directory) })
	return nil
}

// pass makes a descriptor and sends it, on a goroutine of its own: both may take a while.
func (s *Supervisor) pass(from *session, channel uint64, open func() (*os.File, error)) {
	from.attaching++
	go func() {
		file, err := open()
		if err == nil {
			err = from.link.SendDescriptor(channel, file)
			file.Close()
		}
		s.post(func() {
			from.attaching--
			s.attached(from, channel, err)
		})
	}()
}

// attached answers an Attach. An answer that finds no room in the ring is lost, as meshd expects of any.
func (s *Supervisor) attached(to *session, channel uint64, err error) {
	if s.session != to {
		return
	}
	answer := &message.Attached{Channel: channel}
	if err != nil {
		answer.Error = shorten(err.Error())
	}
	event := &message.Event{Acknowledged: to.sequence, Body: &message.Event_Attached{Attached: answer}}
	if record, err := proto.Marshal(event); err == nil && len(record) <= ring.RecordMax {
		to.link.Send(record)
	}
}
