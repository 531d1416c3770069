package runnerd

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/message"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/procfs"
)

// usageIntervalMin is how often figures are sent at most.
const usageIntervalMin = time.Second

// attachUsage sends what the instances of this host use, as long as somebody looks. Nothing is measured
// otherwise.
func (s *Supervisor) attachUsage(from *session, channel uint64, m *message.Usage) {
	if s.attachments.usages >= usagesMax {
		s.attached(from, channel, fmt.Errorf("%d readers watch the figures of this host already: end one", usagesMax))
		return
	}
	interval := time.Duration(m.GetIntervalMilliseconds()) * time.Millisecond
	s.attachPipe(from, channel, &s.attachments.usages, func(to *pipeSink) error {
		for {
			picture := s.usage()
			if err := to.frame(attach.KindUsage, picture.Encode()); err != nil {
				return err
			}
			if err := to.flush(); err != nil || interval == 0 {
				return err
			}
			if err := to.pause(max(interval, usageIntervalMin)); err != nil {
				return err
			}
		}
	})
}

// measured is what a goroutine needs to look at an instance.
type measured struct {
	usage   attach.InstanceUsage
	process procfs.Process
	group   cgroup.Group
}

// usage looks at all running instances. It runs on a goroutine of its own.
func (s *Supervisor) usage() attach.Usage {
	var list []measured
	s.do(func() {
		for _, i := range s.instances {
			if i.phase != phaseRunning {
				continue
			}
			r := s.runOf(i)
			list = append(list, measured{process: i.process, group: r.groupPath(), usage: attach.InstanceUsage{
				Key: i.key, Slot: i.id.Slot, Digest: fmt.Sprintf("%016x", i.id.Digest), PID: i.process.PID,
				Restarts: i.restarts,
			}})
		}
	})
	slices.SortFunc(list, func(a, b measured) int { return bytes.Compare([]byte(a.order()), []byte(b.order())) })
	picture := attach.Usage{UnixMilliseconds: time.Now().UnixMilli(), Instances: []attach.InstanceUsage{}}
	if len(list) > attach.InstancesMax {
		picture.Omitted = len(list) - attach.InstancesMax
		list = list[:attach.InstancesMax]
	}
	for i := range list {
		list[i].look()
		picture.Instances = append(picture.Instances, list[i].usage)
	}
	return picture
}

func (m *measured) order() string { return m.usage.Key + string(rune(m.usage.Slot)) + m.usage.Digest }

// look reads the counters of the control group, or of the processes where there is none.
func (m *measured) look() {
	processor, memory, ok := m.group.Usage()
	if !ok {
		processor, memory, ok = procfs.Tree{Session: m.process.PID, Root: m.process}.Usage()
	}
	if ok {
		m.usage.CPUMicroseconds, m.usage.MemoryBytes = &processor, &memory
	}
	if received, sent, ok := networkOf(m.process.PID); ok {
		m.usage.ReceivedBytes, m.usage.SentBytes = &received, &sent
	}
}

// networkOf counts what went through the network of a process, if that is not the host's.
func networkOf(pid int) (received, sent uint64, ok bool) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return 0, 0, false
	}
	process := "/proc/" + strconv.Itoa(pid)
	if its, err := os.Readlink(process + "/ns/net"); err != nil || its == own {
		return 0, 0, false
	}
	text, err := os.ReadFile(process + "/net/dev")
	if err != nil {
		return 0, 0, false
	}
	received, sent = parseTraffic(text)
	return received, sent, true
}

// parseTraffic adds up the bytes of all interfaces but the loopback.
func parseTraffic(text []byte) (received, sent uint64) {
	for line := range bytes.Lines(text) {
		name, rest, found := bytes.Cut(line, []byte(":"))
		fields := bytes.Fields(rest)
		if !found || len(fields) < 9 || string(bytes.TrimSpace(name)) == "lo" {
			continue
		}
		in, _ := strconv.ParseUint(string(fields[0]), 10, 64)
		out, _ := strconv.ParseUint(string(fields[8]), 10, 64)
		received, sent = received+in, sent+out
	}
	return received, sent
}
