package sim

import (
	"cmp"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// Machine is what a machine offers, as its configuration says. The zero value has plenty of everything.
type Machine struct {
	CPU, Memory, Disk, Instances uint32 // millicores, MiB, MiB; 0 = plenty
	Labels                       [][2]string
	Arch                         string // "" = that of the machine on which this runs
	Runtimes                     uint32 // state.Flag*, 0 = all
	Deny                         string // program that its policy refuses, "" = none
}

// plenty is the capacity of a machine that says nothing.
var plenty = state.CellCapacity{CPUMillicores: 64000, MemoryMiB: 65536, InstancesMax: 1000}

// capacity is what its runnerd says.
func (m *Machine) capacity() state.CellCapacity {
	return state.CellCapacity{
		CPUMillicores: cmp.Or(m.CPU, plenty.CPUMillicores), MemoryMiB: cmp.Or(m.Memory, plenty.MemoryMiB),
		DiskMiB: m.Disk, InstancesMax: cmp.Or(m.Instances, plenty.InstancesMax),
	}
}

// equip gives a machine another configuration. It counts from the next start of meshd and runnerd on.
func (n *Node) equip(m Machine) {
	n.machine = m
	n.arch = m.Arch
	n.host.Flags = cmp.Or(m.Runtimes, defaultRuntimes)
	n.host.Deny = nil
	if m.Deny != "" {
		n.host.Deny = func(s *workload.Spec) string {
			if bare(s.Image) == m.Deny {
				return "the policy refuses " + m.Deny
			}
			return ""
		}
	}
}

const defaultRuntimes = state.FlagProcess | state.FlagOCI | state.FlagWasm

// reequip is an operator who changes the configuration and starts colloid anew. What runs goes on.
func (w *World) reequip(n *Node, m Machine) {
	if n.reserved || n.host.away {
		return
	}
	n.equip(m)
	if n.cell == nil {
		return
	}
	n.reserved = true
	n.host.forget()
	n.Kill()
	w.After(restartTime, func() {
		n.reserved = false
		n.Boot()
	})
}

// offers says whether a machine may run a specification at all, by its own configuration, and why not.
func (m *Machine) offers(s *workload.Spec) (ok bool, why string) {
	flag := map[workload.Runtime]uint32{workload.RuntimeProcess: state.FlagProcess,
		workload.RuntimeOCI: state.FlagOCI, workload.RuntimeWasm: state.FlagWasm}[s.Runtime]
	if cmp.Or(m.Runtimes, defaultRuntimes)&flag == 0 {
		return false, "runtime"
	}
	if s.Architecture != "" && s.Architecture != cmp.Or(m.Arch, runtime.GOARCH) {
		return false, "architecture"
	}
	for _, c := range s.Constraints {
		has := false
		for _, label := range m.Labels {
			has = has || label[0] == c.Label && label[1] == c.Value
		}
		if has == c.Negate {
			return false, "label " + c.Label
		}
	}
	if m.Deny != "" && m.Deny == bare(s.Image) {
		return false, "policy"
	}
	return true, ""
}

var runtimeNames = []struct {
	name string
	flag uint32
}{{"process", state.FlagProcess}, {"oci", state.FlagOCI}, {"wasm", state.FlagWasm}}

// String renders the machine as the options of an equip.
func (m *Machine) String() string {
	var b strings.Builder
	for _, field := range []struct {
		name  string
		value uint32
	}{{"cpu", m.CPU}, {"memory", m.Memory}, {"disk", m.Disk}, {"instances", m.Instances}} {
		if field.value != 0 {
			fmt.Fprintf(&b, " %s=%d", field.name, field.value)
		}
	}
	if len(m.Labels) > 0 {
		texts := make([]string, 0, len(m.Labels))
		for _, label := range m.Labels {
			texts = append(texts, label[0]+"="+label[1])
		}
		b.WriteString(" labels=" + strings.Join(texts, ","))
	}
	if m.Arch != "" {
		b.WriteString(" arch=" + m.Arch)
	}
	if m.Runtimes != 0 {
		var texts []string
		for _, r := range runtimeNames {
			if m.Runtimes&r.flag != 0 {
				texts = append(texts, r.name)
			}
		}
		b.WriteString(" runtimes=" + strings.Join(texts, ","))
	}
	if m.Deny != "" {
		b.WriteString(" deny=" + m.Deny)
	}
	return b.String()
}

// parse reads one option of an equip.
func (m *Machine) parse(name, value string) error {
	var field *uint32
	switch name {
	case "cpu":
		field = &m.CPU
	case "memory":
		field = &m.Memory
	case "disk":
		field = &m.Disk
	case "instances":
		field = &m.Instances
	case "labels":
		for _, text := range strings.Split(value, ",") {
			label, is, ok := strings.Cut(text, "=")
			if !ok || label == "" || is == "" {
				return fmt.Errorf("labels=%q: want labels like zone=a,disk=ssd", value)
			}
			m.Labels = append(m.Labels, [2]string{label, is})
		}
		return nil
	case "arch":
		m.Arch = value
		return nil
	case "runtimes":
		for _, text := range strings.Split(value, ",") {
			before := m.Runtimes
			for _, r := range runtimeNames {
				if r.name == text {
					m.Runtimes |= r.flag
				}
			}
			if m.Runtimes == before {
				return fmt.Errorf("runtimes=%q: want some of process,oci,wasm", value)
			}
		}
		return nil
	case "deny":
		m.Deny = value
		return nil
	default:
		return fmt.Errorf("what is %q", name+"="+value)
	}
	number, err := strconv.ParseUint(value, 10, 32)
	*field = uint32(number)
	return err
}
