package runnerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/runnerd/logs"
	"colloid.net/workload"
)

// Bounds of what is attached at a time. What goes beyond is refused with the sentence.
const (
	attachesMax = 32  // descriptors being made
	logsMax     = 256 // logs being read
	execsMax    = 64  // programs and copies inside instances
	usagesMax   = 32  // figures being watched
)

// attached counts what is attached in this run of runnerd, over all sessions. It belongs to the loop's
// goroutine.
type attachments struct{ logs, execs, usages int }

// attach connects a descriptor to an instance and passes it to meshd (message Attach).
func (s *Supervisor) attach(from *session, m *message.Attach) error {
	if m.Channel == 0 {
		return errors.New("attach has no channel")
	}
	if usage, ok := m.What.(*message.Attach_Usage); ok {
		s.attachUsage(from, m.Channel, usage.Usage)
		return nil
	}
	if wanted, ok := m.What.(*message.Attach_Resolver); ok {
		s.attachResolver(from, m.Channel, wanted.Resolver)
		return nil
	}
	if blob, ok := m.What.(*message.Attach_Blob); ok {
		return s.attachBlob(from, m.Channel, blob.Blob)
	}
	if sink, ok := m.What.(*message.Attach_BlobSink); ok {
		s.attachSink(from, m.Channel, sink.BlobSink)
		return nil
	}
	id, err := instanceID(m.Id)
	if err != nil {
		return err
	}
	i := s.instances[id]
	refuse := func(format string, arguments ...any) error {
		s.attached(from, m.Channel, fmt.Errorf(format, arguments...))
		return nil
	}
	if from.attaching >= attachesMax {
		return refuse("%d descriptors are being made already: try again", attachesMax)
	}
	if i == nil {
		return refuse("instance %s does not exist on this host", id)
	}
	if what, ok := m.What.(*message.Attach_Logs); ok {
		s.attachLogs(from, m.Channel, i, what.Logs)
		return nil
	}
	if i.phase != phaseRunning {
		return refuse("the instance does not run: it is %s%s", i.phase, because(i.reason))
	}
	switch what := m.What.(type) {
	case *message.Attach_Exec:
		x := what.Exec
		s.attachExec(from, m.Channel, i, x.Grant, &execRequest{
			arguments: x.Arguments, terminal: x.Terminal, input: x.Input, rows: uint16(x.Rows), columns: uint16(x.Columns),
		})
		return nil
	case *message.Attach_Copy:
		x := what.Copy
		s.attachExec(from, m.Channel, i, x.Grant, &execRequest{copy: true, path: x.Path, into: x.Into, input: x.Into})
		return nil
	case *message.Attach_Invoke:
		if i.spec.Runtime == workload.RuntimeWasm {
			directory := i.directory
			s.pass(from, m.Channel, func() (*os.File, error) { return connectWorker(directory) })
			return nil
		}
	}
	return refuse("instance %s has nothing of this kind to attach to", id)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
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

// attachLogs serves the output of an instance in any phase, as long as it has a directory.
func (s *Supervisor) attachLogs(from *session, channel uint64, i *instance, m *message.Logs) {
	switch {
	case i.directory == "":
		s.attached(from, channel, fmt.Errorf("it never ran on this host%s", because(i.reason)))
		return
	case s.attachments.logs >= logsMax:
		s.attached(from, channel, fmt.Errorf("%d logs are being read on this host already: end one", logsMax))
		return
	}
	directory := i.directory
	options := logs.Options{
		TailLines: m.TailLines, SinceUnixMilliseconds: int64(min(m.SinceUnixMilliseconds, 1<<48)), Follow: m.Follow,
	}
	s.attachPipe(from, channel, &s.attachments.logs, func(to *pipeSink) error {
		return logs.Copy(to.context, directory, options, to)
	})
}

// attachPipe gives meshd the reading end of a pipe and runs serve on a goroutine with the other, until it
// returns, the reader is gone or runnerd ends. count is one of s.attachments.
func (s *Supervisor) attachPipe(from *session, channel uint64, count *int, serve func(*pipeSink) error) {
	*count++
	over := func() { s.post(func() { *count-- }) }
	s.pass(from, channel, func() (*os.File, error) {
		read, write, err := os.Pipe()
		if err != nil {
			over()
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		to := &pipeSink{context: ctx, file: write}
		go func() {
			defer over()
			defer cancel()
			defer write.Close()
			stop := make(chan struct{})
			defer close(stop)
			go func() { // a runnerd that ends does not wait for readers
				select {
				case <-s.quit:
					cancel()
					write.Close()
				case <-stop:
				}
			}()
			if err := serve(to); err != nil && !errors.Is(err, errReaderGone) {
				_ = to.fail(err)
			}
			_ = to.flush()
		}()
		return read, nil
	})
}

// pipeSink gathers frames for the reader of a pipe, who may be slow.
type pipeSink struct {
	context context.Context
	file    *os.File
	buffer  []byte
	payload []byte
}

var errReaderGone = errors.New("nobody reads any more")

const pipeBlock = 16 << 10

func (p *pipeSink) frame(kind attach.Kind, payload []byte) error {
	p.buffer = attach.Append(p.buffer, kind, payload)
	if len(p.buffer) < pipeBlock {
		return nil
	}
	return p.flush()
}

func (p *pipeSink) flush() error {
	if len(p.buffer) == 0 {
		return nil
	}
	_, err := p.file.Write(p.buffer)
	p.buffer = p.buffer[:0]
	if err != nil {
		return errReaderGone
	}
	return nil
}

func (p *pipeSink) fail(err error) error {
	return p.frame(attach.KindFailed, []byte(shorten(err.Error())))
}

// Line implements logs.Sink.
func (p *pipeSink) Line(line attach.Line) error {
	p.payload = line.Append(p.payload[:0])
	return p.frame(attach.KindLine, p.payload)
}

// Present implements logs.Sink.
func (p *pipeSink) Present() error {
	if err := p.frame(attach.KindPresent, nil); err != nil {
		return err
	}
	return p.flush()
}

// Idle implements logs.Sink: what waits goes out, and a reader that left is noticed.
func (p *pipeSink) Idle() error {
	if err := p.flush(); err != nil {
		return err
	}
	return p.alive()
}

func (p *pipeSink) alive() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return errReaderGone
	}
	gone := true
	_ = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		gone = err != nil && err != unix.EINTR || n > 0 && poll[0].Revents&unix.POLLERR != 0
	})
	if gone {
		return errReaderGone
	}
	return nil
}

// pause waits, unless there is nobody to wait for.
func (p *pipeSink) pause(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := p.alive(); err != nil {
			return err
		}
		select {
		case <-p.context.Done():
			return errReaderGone
		case <-time.After(min(time.Until(end), 500*time.Millisecond)):
		}
	}
	return nil
}
