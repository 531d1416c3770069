package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// Shape is what a written specification says beside replicas and program. The zero value says nothing, and
// what a scenario does not name is not said. Kind and runtime follow from key and program, see spec.
type Shape struct {
	CPU, Memory, Disk uint32                // millicores, MiB, MiB
	Ports             []workload.Port       // ports=80:80,53/udp: one of the host, one of the pod alone
	Where             []workload.Constraint // where=zone=a,disk!=ssd
	Arch              string
	Priority          int8
	Unavailable       uint8  // of replicas during an update
	MinReady          uint16 // seconds
	Deadline          uint16 // seconds
	Grace             uint16 // seconds that a stop may take
	Restart           workload.RestartPolicy
	Pile              bool // several replicas on one machine, if need be (oversubscribe)
	Volume            bool
	Variable          int // one plain variable with this value
	Secret            int // a sealed environment of this many parts of secretSize bytes, other ones for other numbers
}

// secretSize makes environments of one to several keys.
const secretSize = 150

// spec builds what an operator writes for a fault. Programs that begin with / are processes, what is under wasm. is a
// module, and all else an image.
func (f *Fault) spec() *workload.Spec {
	s := &f.Shape
	spec := &workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: uint16(f.Replicas), Image: f.Image,
		Stateful:      strings.HasPrefix(f.Key, state.PrefixStateful),
		CPUMillicores: s.CPU, MemoryMiB: s.Memory, DiskMiB: s.Disk, Ports: slices.Clone(s.Ports),
		Constraints: slices.Clone(s.Where), Architecture: s.Arch, Priority: s.Priority,
		Update: workload.Update{UnavailableMax: s.Unavailable, MinReadySeconds: s.MinReady,
			DeadlineSeconds: s.Deadline, AutoRollback: f.Rollback},
		StopGraceSeconds: s.Grace, Restart: s.Restart, Oversubscribe: s.Pile,
	}
	switch {
	case strings.HasPrefix(f.Key, state.PrefixWasm):
		spec.Runtime, spec.Image = workload.RuntimeWasm, "file://"+f.Image+".wasm"
	case !strings.HasPrefix(f.Image, "/"):
		spec.Runtime = workload.RuntimeOCI
	}
	if s.Volume {
		spec.Volumes = []workload.Volume{{Name: "data", MountPath: "/data"}}
	}
	if s.Variable != 0 {
		spec.Environment = []string{"LEVEL=" + strconv.Itoa(s.Variable)}
	}
	return spec
}

// environment is the secret of a shape.
func (s *Shape) environment() *workload.Environment {
	part := fmt.Sprintf("%d.", s.Secret)
	return &workload.Environment{Variables: []workload.Variable{
		{Name: "TOKEN", Value: strings.Repeat(part, s.Secret*secretSize/len(part)+1)},
	}}
}

// String renders the shape as the options of a write.
func (s *Shape) String() string {
	var b strings.Builder
	number := func(name string, value int) {
		if value != 0 {
			fmt.Fprintf(&b, " %s=%d", name, value)
		}
	}
	number("cpu", int(s.CPU))
	number("memory", int(s.Memory))
	number("disk", int(s.Disk))
	if len(s.Ports) > 0 {
		texts := make([]string, 0, len(s.Ports))
		for _, p := range s.Ports {
			texts = append(texts, p.String())
		}
		b.WriteString(" ports=" + strings.Join(texts, ","))
	}
	if len(s.Where) > 0 {
		texts := make([]string, 0, len(s.Where))
		for _, c := range s.Where {
			sign := "="
			if c.Negate {
				sign = "!="
			}
			texts = append(texts, c.Label+sign+c.Value)
		}
		b.WriteString(" where=" + strings.Join(texts, ","))
	}
	if s.Arch != "" {
		b.WriteString(" arch=" + s.Arch)
	}
	number("priority", int(s.Priority))
	number("unavailable", int(s.Unavailable))
	number("minready", int(s.MinReady))
	number("deadline", int(s.Deadline))
	number("grace", int(s.Grace))
	number("restart", int(s.Restart))
	for _, flag := range []struct {
		name string
		set  bool
	}{{"pile", s.Pile}, {"volume", s.Volume}} {
		if flag.set {
			b.WriteString(" " + flag.name + "=true")
		}
	}
	number("variable", s.Variable)
	number("secret", s.Secret)
	return b.String()
}

// parse reads one option; known is false if it is none of a shape's.
func (s *Shape) parse(name, value string) (known bool, err error) {
	number := func(least, most int64) int64 {
		n, problem := strconv.ParseInt(value, 10, 64)
		if err == nil && (problem != nil || n < least || n > most) {
			err = fmt.Errorf("%s=%q: want a number from %d to %d", name, value, least, most)
			return 0
		}
		return n
	}
	switch name {
	case "cpu":
		s.CPU = uint32(number(0, workload.CPUMillicoresMax))
	case "memory":
		s.Memory = uint32(number(0, workload.MemoryMiBMax))
	case "disk":
		s.Disk = uint32(number(0, 1<<31))
	case "ports":
		s.Ports, err = parsePorts(value)
	case "where":
		s.Where, err = parseConstraints(value)
	case "arch":
		s.Arch = value
	case "priority":
		s.Priority = int8(number(-128, 127))
	case "unavailable":
		s.Unavailable = uint8(number(0, 255))
	case "minready":
		s.MinReady = uint16(number(0, 65535))
	case "deadline":
		s.Deadline = uint16(number(0, 65535))
	case "grace":
		s.Grace = uint16(number(0, workload.StopGraceSecondsMax))
	case "restart":
		s.Restart = workload.RestartPolicy(number(0, int64(workload.RestartNever)))
	case "pile":
		s.Pile, err = strconv.ParseBool(value)
	case "volume":
		s.Volume, err = strconv.ParseBool(value)
	case "variable":
		s.Variable = int(number(0, 1<<20))
	case "secret":
		s.Secret = int(number(0, workload.EnvironmentSizeMax/secretSize-1))
	default:
		return false, nil
	}
	return true, err
}

// parsePorts reads 8080:80,53/udp: a single number is none of the host's.
func parsePorts(text string) (ports []workload.Port, err error) {
	for _, field := range strings.Split(text, ",") {
		numbers, udp := strings.CutSuffix(field, "/udp")
		host, container, mapped := strings.Cut(numbers, ":")
		if !mapped {
			host, container = "0", host
		}
		from, wrong := strconv.ParseUint(host, 10, 16)
		to, wrongTo := strconv.ParseUint(container, 10, 16)
		if wrong != nil || wrongTo != nil || to == 0 {
			return nil, fmt.Errorf("ports=%q: want ports like 80:80,8080:80,53/udp", text)
		}
		port := workload.Port{Host: uint16(from), Container: uint16(to)}
		if udp {
			port.Protocol = workload.UDP
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func parseConstraints(text string) (list []workload.Constraint, err error) {
	for _, field := range strings.Split(text, ",") {
		label, value, ok := strings.Cut(field, "=")
		if !ok || label == "" || value == "" {
			return nil, fmt.Errorf("where=%q: want labels like zone=a,disk!=ssd", text)
		}
		label, negate := strings.CutSuffix(label, "!")
		list = append(list, workload.Constraint{Label: label, Value: value, Negate: negate})
	}
	return list, nil
}
