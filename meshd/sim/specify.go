package sim

import (
	"fmt"
	"slices"
	"strings"

	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// What random clusters are made of: few values each, so that they meet.
var (
	keyPool   = []string{"spread.a", "spread.b", "spread.c", "stateful.d", "stateful.e", "wasm.f"}
	zones     = []string{"a", "b", "c"}
	portPool  = []uint16{80, 443, 8080}
	memories  = []uint32{0, 256, 512, 1024, 2048}
	cpus      = []uint32{0, 250, 500, 1000}
	lastNames = []string{"a", "b", "c", "d"}
)

// someKeys draws the workloads of a scenario: some have several kinds, some one alone.
func (g *generator) someKeys() []string {
	keys := slices.Clone(keyPool)
	g.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys[:1+g.random.IntN(5)]
}

// machines draws what the machines of a scenario offer; a third of the scenarios have machines with plenty.
func (g *generator) machines() (faults []Fault) {
	g.arches = make([]string, g.cells)
	if g.random.IntN(3) == 0 {
		return nil
	}
	g.narrow = g.random.IntN(2) == 0
	mixed := g.random.IntN(4) == 0
	for i := range g.cells {
		if mixed {
			g.arches[i] = pick(g, []string{"amd64", "arm64"})
		}
		faults = append(faults, Fault{Verb: Equip, Node: i, Machine: g.machine(i)})
	}
	return faults
}

func pick[T any](g *generator, list []T) T { return list[g.random.IntN(len(list))] }

// oneIn is true once in n times.
func (g *generator) oneIn(n int) bool { return g.random.IntN(n) == 0 }

// machine draws a configuration of a machine; its processor stays.
func (g *generator) machine(node int) Machine {
	m := Machine{Arch: g.arches[node]}
	if g.narrow {
		m.Memory, m.CPU, m.Disk = pick(g, memories[2:]), pick(g, cpus), pick(g, memories)
		if g.oneIn(3) {
			m.Instances = uint32(1 + g.random.IntN(4))
		}
	}
	if g.oneIn(2) {
		m.Labels = append(m.Labels, [2]string{"zone", pick(g, zones)})
	}
	if g.oneIn(4) {
		m.Labels = append(m.Labels, [2]string{"disk", "ssd"})
	}
	if g.oneIn(3) {
		m.Runtimes = pick(g, []uint32{state.FlagProcess, state.FlagProcess | state.FlagOCI | state.FlagWasm,
			state.FlagProcess | state.FlagWasm})
	}
	if g.oneIn(8) {
		m.Deny = "/bin/" + pick(g, lastNames)
	}
	return m
}

// specify draws what an operator writes: half of the time replicas and a program alone.
func (g *generator) specify(f *Fault) {
	f.Replicas, f.Image = 1+g.random.IntN(4), "/bin/"+pick(g, lastNames)
	if strings.HasPrefix(f.Key, state.PrefixStateful) && g.oneIn(2) {
		f.Replicas = 1
	}
	if g.oneIn(30) {
		f.Replicas = 0
	}
	if g.oneIn(2) {
		return
	}
	s := &f.Shape
	switch g.random.IntN(12) {
	case 0:
		f.Image = imageCrashes
	case 1:
		f.Image = imageHangs
	case 2, 3:
		f.Image, s.Grace = imageLingers, uint16(1+g.random.IntN(15))
	case 4:
		if !strings.HasPrefix(f.Key, state.PrefixWasm) {
			f.Image = "registry.example/" + pick(g, lastNames)
		}
	}
	if !works(f.Image) { // else nobody could tell which replicas there should be
		f.Rollback = true
	}
	g.specifyNeeds(f)
	if f.Rollback = f.Rollback || g.oneIn(4); f.Rollback {
		s.Deadline = uint16(g.random.IntN(2) * 20)
	}
	if g.oneIn(4) {
		s.Unavailable = uint8(1 + g.random.IntN(3))
	}
	if g.oneIn(6) {
		s.MinReady = uint16(1 + g.random.IntN(10))
	}
	if g.oneIn(8) {
		s.Restart = workload.RestartPolicy(1 + g.random.IntN(2))
	}
	if g.oneIn(6) {
		s.Variable = 1 + g.random.IntN(3)
	}
	if g.oneIn(4) {
		s.Secret = 1 + g.random.IntN(7)
	}
	s.Volume = strings.HasPrefix(f.Key, state.PrefixStateful) && g.oneIn(3)
}

// specifyNeeds draws what narrows the choice of machines.
func (g *generator) specifyNeeds(f *Fault) {
	s := &f.Shape
	if g.oneIn(3) {
		s.Memory = pick(g, memories)
	}
	if g.oneIn(4) {
		s.CPU = pick(g, cpus)
	}
	if g.oneIn(8) {
		s.Disk = pick(g, memories)
	}
	if g.oneIn(3) {
		host := pick(g, portPool)
		port := workload.Port{Host: host, Container: host}
		if !strings.HasPrefix(f.Image, "/") && g.oneIn(2) {
			port.Container = 8000
		}
		if g.oneIn(4) {
			port.Protocol = workload.UDP
		}
		s.Ports = append(s.Ports, port)
	}
	switch g.random.IntN(8) {
	case 0, 1:
		s.Where = []workload.Constraint{{Label: "zone", Value: pick(g, zones), Negate: g.oneIn(2)}}
	case 2:
		s.Where = []workload.Constraint{{Label: "disk", Value: "ssd"}}
	}
	if g.oneIn(10) {
		s.Arch = pick(g, []string{"amd64", "arm64"})
	}
	if g.oneIn(3) {
		s.Priority = int8(g.random.IntN(5) - 2)
	}
	s.Pile = g.oneIn(8)
}

// check panics on a specification that cannot be written: the generator is to make none.
func (f *Fault) check() {
	if !verbForms[f.Verb].value {
		return
	}
	spec := f.spec()
	err := workload.CheckKey(f.Key, spec)
	if err == nil {
		err = spec.Validate()
	}
	if err != nil {
		panic(fmt.Sprintf("sim: %v: %v", f, err))
	}
}
