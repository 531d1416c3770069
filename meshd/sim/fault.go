package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verb names what a fault does.
type Verb string

// Verbs. "for" is how long it lasts; then it is undone. Node and Other are numbers of machines.
const (
	Weather   Verb = "weather"   // weather loss=5% duplicate=1% reorder=10% delay=1ms..20ms for 30s
	Partition Verb = "partition" // partition 0,1|2,3 for 30s
	Cut       Verb = "cut"       // cut 1>2 for 30s: nothing passes from 1 to 2
	Deaf      Verb = "deaf"      // deaf 1 for 30s: nothing reaches 1, what it sends arrives
	Crash     Verb = "crash"     // crash 1 for 30s: the machine loses power, then boots
	Kill      Verb = "kill"      // kill 1 for 2s: meshd ends, workloads go on, meshd starts
	Wipe      Verb = "wipe"      // wipe 1 for 30s: power and disk are lost; the new one joins the cluster
	Backup    Verb = "backup"    // backup 1: somebody copies its state directory
	Restore   Verb = "restore"   // restore 1 for 5s: the machine goes down and comes back with that copy
	Clone     Verb = "clone"     // clone 1>2 for 5s: 2 goes down and comes back with the directory of 1
	Pause     Verb = "pause"     // pause 1 for 10s: SIGSTOP, SIGCONT
	Starve    Verb = "starve"    // starve 1 for 60s: the process gets little CPU, in slices
	Jump      Verb = "jump"      // jump 1 for 1h: its clock moves forward, as after a suspend
	Full      Verb = "full"      // full 1 for 60s: its disk has no room
	Runnerd   Verb = "runnerd"   // runnerd 1 for 30s: the helper is not there
	Exit      Verb = "exit"      // exit 1: one instance on it ends by itself
	Upgrade   Verb = "upgrade"   // upgrade 1 for 5m: it runs the next version of meshd, then this one again
	Equip     Verb = "equip"     // equip 1 memory=2048 labels=zone=a: it is configured anew, and colloid starts again
	Join      Verb = "join"      // join: one more machine is installed and joins
	Leave     Verb = "leave"     // leave 1 for 60s: it leaves, and joins again 60 s later
	Forget    Verb = "forget"    // forget 1>2: an operator at 1 declares 2 gone
	Spoof     Verb = "spoof"     // spoof 1 for 10s: somebody replays what 1 received from false addresses
	Rebind    Verb = "rebind"    // rebind 1: the router of 1 forgets everything and uses other ports from now on
	Reboot    Verb = "reboot"    // reboot 1 for 5s: the router of 1 is off, then it has forgotten everything
	Write     Verb = "write"     // write 1 spread.a replicas=3 image=/bin/b ports=80:80: an operator at 1, see Shape
	Delete    Verb = "delete"    // delete 1 spread.a
	Resolve   Verb = "resolve"   // resolve 1 spread.a replicas=3 image=/bin/b
	Drain     Verb = "drain"     // drain 1>2: an operator at 1 empties 2; abandon=true also of volumes
	Uncordon  Verb = "uncordon"  // uncordon 1>2: and ends that
)

// Fault is one thing that happens to the world at a given time, an operator's command among them: a line
// of a scenario.
type Fault struct {
	At, For     time.Duration // since the cluster was formed
	Verb        Verb
	Node, Other int
	Groups      []int // of Partition, by node
	Weather     NetworkOptions
	Key         string
	Replicas    int
	Image       string
	Rollback    bool // of Write and Resolve
	Shape       Shape
	Machine     Machine // of Equip
	Abandon     bool    // of Drain and Leave: though volumes stay behind
}

// verbForm says which arguments a verb takes.
type verbForm struct{ node, other, key, value, end bool }

var verbForms = map[Verb]verbForm{
	Weather: {end: true}, Partition: {end: true}, Join: {},
	Cut: {node: true, other: true, end: true}, Deaf: {node: true, end: true},
	Crash: {node: true, end: true}, Kill: {node: true, end: true}, Wipe: {node: true, end: true},
	Backup: {node: true}, Restore: {node: true, end: true}, Clone: {node: true, other: true, end: true},
	Pause: {node: true, end: true}, Starve: {node: true, end: true}, Jump: {node: true, end: true},
	Full: {node: true, end: true}, Runnerd: {node: true, end: true}, Exit: {node: true},
	Rebind: {node: true}, Reboot: {node: true, end: true},
	Upgrade: {node: true, end: true}, Leave: {node: true, end: true}, Forget: {node: true, other: true}, Spoof: {node: true, end: true},
	Write: {node: true, key: true, value: true}, Delete: {node: true, key: true},
	Resolve: {node: true, key: true, value: true},
	Equip:   {node: true},
	Drain:   {node: true, other: true}, Uncordon: {node: true, other: true},
}

// Verbs lists all verbs in alphabetical order.
func Verbs() []Verb {
	list := make([]Verb, 0, len(verbForms))
	for verb := range verbForms {
		list = append(list, verb)
	}
	slices.Sort(list)
	return list
}

// String renders the fault without its time, as ParseFault reads it.
func (f Fault) String() string {
	form := verbForms[f.Verb]
	var b strings.Builder
	b.WriteString(string(f.Verb))
	switch {
	case f.Verb == Weather:
		fmt.Fprintf(&b, " loss=%g%% duplicate=%g%% reorder=%g%% delay=%v..%v", f.Weather.Loss*100,
			f.Weather.Duplicate*100, f.Weather.Reorder*100, f.Weather.DelayMin, f.Weather.DelayMax)
	case f.Verb == Partition:
		b.WriteString(" " + formatGroups(f.Groups))
	case form.other:
		fmt.Fprintf(&b, " %d>%d", f.Node, f.Other)
	case form.node:
		fmt.Fprintf(&b, " %d", f.Node)
	}
	if form.key {
		b.WriteString(" " + f.Key)
	}
	if form.value {
		fmt.Fprintf(&b, " replicas=%d image=%s%s", f.Replicas, f.Image, f.Shape.String())
	}
	if f.Verb == Equip {
		b.WriteString(f.Machine.String())
	}
	if f.Rollback {
		b.WriteString(" rollback=true")
	}
	if f.Abandon {
		b.WriteString(" abandon=true")
	}
	if form.end && f.For > 0 {
		fmt.Fprintf(&b, " for %v", f.For)
	}
	return b.String()
}

func formatGroups(groups []int) string {
	parts := make([][]string, slices.Max(groups)+1)
	for node, group := range groups {
		parts[group] = append(parts[group], strconv.Itoa(node))
	}
	texts := make([]string, len(parts))
	for group, part := range parts {
		texts[group] = strings.Join(part, ",")
	}
	return strings.Join(texts, "|")
}

// ParseFault reads what String writes, without a time.
func ParseFault(text string) (Fault, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return Fault{}, fmt.Errorf("empty line where a verb was expected")
	}
	f := Fault{Verb: Verb(fields[0])}
	form, known := verbForms[f.Verb]
	if !known {
		return f, fmt.Errorf("unknown verb %q: want one of %v", fields[0], Verbs())
	}
	rest := fields[1:]
	if n := len(rest); n >= 2 && rest[n-2] == "for" && form.end {
		var err error
		if f.For, err = time.ParseDuration(rest[n-1]); err != nil {
			return f, fmt.Errorf("%s: %w", text, err)
		}
		rest = rest[:n-2]
	}
	rest, err := f.parsePlace(form, rest)
	for i := 0; err == nil && i < len(rest); i++ {
		err = f.parseOption(form, rest[i])
	}
	if err == nil && (min(f.Node, f.Other) < 0 || max(f.Node, f.Other) > faultNodesMax || f.For < 0) {
		err = fmt.Errorf("want machines from 0 to %d, and no time below 0", faultNodesMax)
	}
	if err != nil {
		return f, fmt.Errorf("%s: %w", text, err)
	}
	return f, nil
}

func (f *Fault) parsePlace(form verbForm, rest []string) ([]string, error) {
	take := func() string {
		if len(rest) == 0 {
			return ""
		}
		first := rest[0]
		rest = rest[1:]
		return first
	}
	var err error
	switch {
	case f.Verb == Partition:
		f.Groups, err = parseGroups(take())
	case form.other:
		from, to, _ := strings.Cut(take(), ">")
		if f.Node, err = strconv.Atoi(from); err == nil {
			f.Other, err = strconv.Atoi(to)
		}
	case form.node:
		f.Node, err = strconv.Atoi(take())
	}
	if form.key && err == nil {
		if f.Key = take(); f.Key == "" {
			err = fmt.Errorf("want a key")
		}
	}
	return rest, err
}

// faultNodesMax is the greatest number of a machine in a fault.
const faultNodesMax = 1<<16 - 1

func parseGroups(text string) ([]int, error) {
	var groups []int
	for group, part := range strings.Split(text, "|") {
		for _, field := range strings.Split(part, ",") {
			node, err := strconv.Atoi(field)
			if err != nil || node < 0 || node > faultNodesMax {
				return nil, fmt.Errorf("partition %q: want groups like 0,1|2,3", text)
			}
			for len(groups) <= node {
				groups = append(groups, 0)
			}
			groups[node] = group
		}
	}
	return groups, nil
}

func (f *Fault) parseOption(form verbForm, field string) error {
	name, value, _ := strings.Cut(field, "=")
	percent := func(p *float64) error {
		number, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		*p = number / 100
		return err
	}
	var err error
	switch {
	case f.Verb == Weather && name == "loss":
		err = percent(&f.Weather.Loss)
	case f.Verb == Weather && name == "duplicate":
		err = percent(&f.Weather.Duplicate)
	case f.Verb == Weather && name == "reorder":
		err = percent(&f.Weather.Reorder)
	case f.Verb == Weather && name == "delay":
		from, to, _ := strings.Cut(value, "..")
		if f.Weather.DelayMin, err = time.ParseDuration(from); err == nil {
			f.Weather.DelayMax, err = time.ParseDuration(to)
		}
	case form.value && name == "replicas":
		f.Replicas, err = strconv.Atoi(value)
	case form.value && name == "image":
		f.Image = value
	case form.value && name == "rollback":
		f.Rollback, err = strconv.ParseBool(value)
	case (f.Verb == Drain || f.Verb == Leave) && name == "abandon":
		f.Abandon, err = strconv.ParseBool(value)
	case f.Verb == Equip:
		err = f.Machine.parse(name, value)
	default:
		known := false
		if form.value {
			known, err = f.Shape.parse(name, value)
		}
		if !known {
			err = fmt.Errorf("what is %q", field)
		}
	}
	return err
}
