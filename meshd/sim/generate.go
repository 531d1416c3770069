package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Generate makes a scenario from a seed: a few faults of the given verbs at random times, operators all
// the while. The same arguments give the same scenario.
func Generate(seed uint64, cells int, duration time.Duration, verbs []Verb) Scenario {
	g := generator{
		random: rand.New(rand.NewPCG(seed, 0x7363656e6172696f)), cells: cells, duration: duration, verbs: verbs,
	}
	s := Scenario{Seed: seed, Cells: cells, Duration: duration}
	if g.has(Weather) && g.random.IntN(2) == 0 {
		s.Network = NetworkOptions{Loss: g.random.Float64() * 0.05, DelayMax: g.milliseconds(1, 40)}
	}
	// A majority never loses its memory: else there is nothing that could be kept.
	g.fragile = g.random.Perm(cells)[:(cells-1)/2]
	g.keys = g.someKeys()
	if g.has(Equip) {
		s.Faults = g.machines()
	}
	// One fault a minute on average, some seeds with many more.
	gap := time.Minute / time.Duration(1+g.random.IntN(6))
	for at := time.Duration(0); at < duration; at += time.Duration(g.random.ExpFloat64() * float64(gap)) {
		f := g.fault()
		f.At = at.Round(time.Millisecond)
		s.Faults = append(s.Faults, f)
	}
	if g.has(Rebind) || g.has(Reboot) {
		s.addRouters(verbs)
	}
	return s
}

// routersOneIn clusters stand behind routers.
const routersOneIn = 8

// addRouters puts some clusters behind routers and lets those fail. What chance decides here comes from a
// source of its own, so that all other scenarios are what they are without it.
func (s *Scenario) addRouters(verbs []Verb) {
	random := rand.New(rand.NewPCG(s.Seed, 0x726f7574657273))
	const public = 2                     // of them one is up most of the time
	asked := len(verbs) < len(verbForms) // somebody named the verbs one by one
	if random.IntN(routersOneIn) != 0 && !asked || s.Cells <= public {
		return
	}
	s.NAT = make([]NATKind, s.Cells)
	for i := public; i < s.Cells; i++ {
		s.NAT[i] = NATKind(random.IntN(int(NATKinds)))
	}
	s.keepReachable(public)
	for at := time.Duration(0); at < s.Duration; at += time.Duration(random.ExpFloat64() * float64(2*time.Minute)) {
		f := Fault{At: at.Round(time.Millisecond), Verb: Rebind, Node: random.IntN(s.Cells)}
		if random.IntN(2) == 0 && slices.Contains(verbs, Reboot) || !slices.Contains(verbs, Rebind) {
			f.Verb, f.For = Reboot, time.Duration(1+random.IntN(60))*time.Second
		}
		s.Faults = append(s.Faults, f)
	}
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// keepReachable lets one of the machines that can be called keep its memory: if none of them knows the cluster any more,
// nobody behind a router can be reached by anybody, and only a new forwarding in a router would help. Where a filter
// lets through the first machine alone, that is the one.
func (s *Scenario) keepReachable(public int) {
	loses := func(f *Fault) int {
		switch f.Verb {
		case Wipe, Leave:
			return f.Node
		case Clone:
			return f.Other
		}
		return -1
	}
	keeper := 0
	if !slices.Contains(s.NAT, Blocked) {
		for i := range s.Faults {
			if loses(&s.Faults[i]) == keeper {
				keeper = public - 1
				break
			}
		}
	}
	for i := range s.Faults {
		if f := &s.Faults[i]; loses(f) == keeper {
			*f = Fault{At: f.At, Verb: Backup, Node: f.Node}
		}
	}
}

// needs are verbs without which others do nothing.
var needs = map[Verb][]Verb{Restore: {Backup}, Uncordon: {Drain}}

// ParseVerbs reads the argument of -faults: "all", "none", or names separated by commas.
func ParseVerbs(text string) ([]Verb, error) {
	switch text {
	case "all":
		return Verbs(), nil
	case "none":
		return []Verb{Write, Delete, Resolve}, nil
	}
	verbs := []Verb{Write, Delete, Resolve}
	for _, name := range strings.Split(text, ",") {
		if _, known := verbForms[Verb(name)]; !known {
			return nil, fmt.Errorf("unknown fault %q: want all, none, or some of %v", name, Verbs())
		}
		for _, verb := range append(needs[Verb(name)], Verb(name)) {
			if !slices.Contains(verbs, verb) {
				verbs = append(verbs, verb)
			}
		}
	}
	return verbs, nil
}

type generator struct {
	random   *rand.Rand
	cells    int
	joined   int
	duration time.Duration
	verbs    []Verb
	fragile  []int // machines that may lose their disk or leave
	drained  []int
	keys     []string
	narrow   bool // machines have little of everything
	arches   []string
}

func (g *generator) has(verb Verb) bool { return slices.Contains(g.verbs, verb) }

func (g *generator) milliseconds(least, most int) time.Duration {
	return time.Duration(least+g.random.IntN(most-least+1)) * time.Millisecond
}

// span draws from short to long so that every order of magnitude has its share.
func (g *generator) span(least, most time.Duration) time.Duration {
	d := least
	for d < most && g.random.IntN(3) != 0 {
		d *= 2
	}
	return min(d+time.Duration(g.random.Int64N(int64(d))), most).Round(time.Millisecond)
}

// weights of the verbs; operators are as busy as all faults together.
var weights = []struct {
	verb   Verb
	weight int
}{
	{Weather, 3}, {Partition, 4}, {Cut, 3}, {Deaf, 2}, {Crash, 4}, {Kill, 4}, {Wipe, 2}, {Backup, 2}, {Restore, 2},
	{Clone, 1}, {Pause, 3}, {Starve, 2}, {Jump, 1}, {Full, 2}, {Runnerd, 2}, {Exit, 2}, {Join, 1}, {Leave, 1},
	{Forget, 2}, {Spoof, 1}, {Upgrade, 3}, {Equip, 2}, {Drain, 3}, {Uncordon, 2}, {Write, 28}, {Delete, 6}, {Resolve, 8},
}

func (g *generator) verb() Verb {
	total := 0
	for _, w := range weights {
		if g.has(w.verb) {
			total += w.weight
		}
	}
	pick := g.random.IntN(total)
	for _, w := range weights {
		if g.has(w.verb) {
			if pick -= w.weight; pick < 0 {
				return w.verb
			}
		}
	}
	panic("sim: weights do not add up")
}

func (g *generator) fault() Fault {
	f := Fault{Verb: g.verb(), Node: g.random.IntN(g.cells)}
	f.Other = (f.Node + 1 + g.random.IntN(max(1, g.cells-1))) % g.cells
	form := verbForms[f.Verb]
	if form.end {
		f.For = g.span(500*time.Millisecond, 4*time.Minute)
	}
	if form.key {
		f.Key = g.keys[g.random.IntN(len(g.keys))]
	}
	if form.value {
		g.specify(&f)
	}
	switch f.Verb {
	case Weather:
		f.Weather = NetworkOptions{Loss: g.random.Float64() * 0.25, Duplicate: g.random.Float64() * 0.1,
			Reorder: g.random.Float64() * 0.2, DelayMin: time.Millisecond, DelayMax: g.milliseconds(2, 300)}
		f.Weather.Loss, f.Weather.Duplicate = round(f.Weather.Loss), round(f.Weather.Duplicate)
		f.Weather.Reorder = round(f.Weather.Reorder)
	case Partition:
		f.Groups = make([]int, g.cells)
		parts := 2 + g.random.IntN(2)
		for i := range f.Groups {
			f.Groups[i] = g.random.IntN(parts)
		}
		f.Groups = compact(f.Groups)
	case Wipe, Leave, Clone:
		if len(g.fragile) == 0 {
			return Fault{Verb: Backup, Node: f.Node}
		}
		victim := g.fragile[g.random.IntN(len(g.fragile))]
		f.Abandon = f.Verb == Leave && g.random.IntN(2) == 0
		if f.Node = victim; f.Verb == Clone {
			f.Node, f.Other = f.Other, victim
		}
	case Equip:
		f.Machine = g.machine(f.Node)
	case Uncordon:
		if drained := g.drained; len(drained) > 0 { // one that somebody wanted empty
			f.Other = drained[g.random.IntN(len(drained))]
			f.Node = (f.Other + 1 + g.random.IntN(max(1, g.cells-1))) % g.cells
		}
	case Drain:
		f.Abandon = g.random.IntN(2) == 0
		g.drained = append(g.drained, f.Other)
	case Join:
		if g.joined++; g.joined > 2 {
			return Fault{Verb: Backup, Node: f.Node}
		}
	}
	return f
}

// compact numbers groups anew so that none is empty: a scenario must be readable as it is written.
func compact(groups []int) []int {
	numbers := make(map[int]int)
	for i, group := range groups {
		if _, known := numbers[group]; !known {
			numbers[group] = len(numbers)
		}
		groups[i] = numbers[group]
	}
	return groups
}

// round keeps a probability short in writing.
func round(p float64) float64 { return float64(int(p*1000)) / 1000 }

// Small is the scenario of a seed in the set that continuous integration plays: 2 to 9 cells, all faults.
func Small(seed uint64) Scenario {
	random := rand.New(rand.NewPCG(seed, 0x736d616c6c))
	cells := 2 + random.IntN(8)
	return Generate(seed, cells, time.Duration(5+random.IntN(16))*time.Minute, Verbs())
}
