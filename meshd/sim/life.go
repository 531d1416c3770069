package sim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Programs of scenarios that do not work, by the beginning of their paths.
const (
	imageCrashes = "/bin/crashes" // ends at once, again and again
	imageHangs   = "/bin/hangs"   // runs and never becomes ready
	imageLingers = "/bin/lingers" // works, and takes all of its grace to end
)

// works reports whether a program becomes ready and stays so.
func works(image string) bool {
	return !strings.HasPrefix(bare(image), imageCrashes) && !strings.HasPrefix(bare(image), imageHangs)
}

// bare is the program of a module: what stands in its address, see Fault.spec.
func bare(image string) string {
	return strings.TrimSuffix(strings.TrimPrefix(image, "file://"), ".wasm")
}

// program is the path of what an instance runs.
func program(spec []byte) string {
	decoded, err := workload.Decode(spec)
	if err != nil {
		return ""
	}
	return decoded.Image
}

// RolloutSpec encodes a process workload that is rolled back when an update fails.
func RolloutSpec(replicas int, image string, update workload.Update) []byte {
	raw, err := workload.Encode(&workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: uint16(replicas), Image: image, Update: update,
	})
	if err != nil {
		panic("sim: " + err.Error())
	}
	return raw
}

// Drain is an operator at the node who wants a cell empty, or no longer.
func (n *Node) Drain(target *Node, wish bool) { n.drain(target, wish, false, nil) }

func (n *Node) drain(target *Node, wish, abandon bool, done func(cell.Response)) {
	flag := byte(0)
	switch {
	case wish && abandon:
		flag = 2
	case wish:
		flag = 1
	}
	n.Command(drainRequest(target.ID(), flag), func(r cell.Response) {
		n.world.Tracef("n%d drain n%d %t: %d %s", n.Index, target.Index, wish, r.Status, r.Text)
		if done != nil {
			done(r)
		}
	})
}

func drainRequest(id wire.CellID, flag byte) cell.Request {
	return cell.Request{Code: uds.CodeDrain, Payload: append(binary.BigEndian.AppendUint64(nil, uint64(id)), flag)}
}

// specify makes the specification of a fault, after its secrets are in the cluster, as the command line does it.
func (n *Node) specify(f *Fault, done func(value []byte)) {
	spec := f.spec()
	finish := func() {
		value, err := workload.Encode(spec)
		if err != nil {
			panic(fmt.Sprintf("sim: %v: %v", f, err))
		}
		done(value)
	}
	if f.Shape.Secret == 0 {
		finish()
		return
	}
	run := n.run
	n.Environment(f.Key, f.Shape.environment(), true, func(digest [32]byte) {
		spec.EnvironmentDigest = digest
		n.world.After(time.Millisecond, func() {
			if n.run == run && n.cell != nil && !n.paused {
				finish()
			}
		})
	})
}

// Environment seals an environment at the node; done gets its digest.
func (n *Node) Environment(key string, e *workload.Environment, store bool, done func(digest [32]byte)) {
	plain, err := workload.EncodeEnvironment(e)
	if err != nil {
		panic("sim: " + err.Error())
	}
	request := uds.EnvironmentRequest{Store: store, Key: key, Plain: plain}
	n.Command(cell.Request{Code: uds.CodeEnvironment, Payload: request.Append(nil)}, func(r cell.Response) {
		n.world.Tracef("n%d seals the environment of %s: %d %s", n.Index, key, r.Status, r.Text)
		if r.Status == uds.OK && done != nil {
			done([32]byte(r.Payload))
		}
	})
}

// Workload is what the node's status says of a workload; the zero value if it says nothing.
func (n *Node) Workload(key string) (found uds.WorkloadStatus) {
	n.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
		var status uds.Status
		if json.Unmarshal(r.Payload, &status) != nil {
			return
		}
		for _, w := range status.Workloads {
			if w.Key == key {
				found = w
			}
		}
	})
	return found
}

func showWorkloads(n *Node) string {
	var parts []string
	n.input(func(now clock.Instant) {
		n.cell.Command(now, cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
			var status uds.Status
			if json.Unmarshal(r.Payload, &status) != nil {
				return
			}
			for _, w := range status.Workloads {
				text := fmt.Sprintf("%s %s %d/%d %s", w.Key, w.State, w.Ready, w.Replicas, program(n.encoded(w)))
				if w.Reason != "" {
					text += " (" + w.Reason + ")"
				}
				parts = append(parts, text)
			}
		})
	})
	return strings.Join(parts, ", ")
}

// encoded finds the specification that a status is about.
func (n *Node) encoded(w uds.WorkloadStatus) (raw []byte) {
	for _, key := range []string{w.Key, state.RolloutKey(state.WorkloadName(w.Key), state.RolloutGood)} {
		register, found := n.cell.Store().Get([]byte(key))
		if !found {
			continue
		}
		_, value, _ := register.Latest()
		if spec, err := workload.Decode(value); err == nil && fmt.Sprintf("%016x", spec.InstanceDigest()) == w.Digest {
			return value
		}
	}
	return nil
}

// calmFor is how long nothing may have been done to any machine, and no instance may have ended by itself, before
// a missing replica is the update's fault.
const calmFor = time.Minute

// undisturbed reports whether nothing but operators' writes has happened lately.
func (w *World) undisturbed() bool {
	if w.stormedWithin(calmFor) || w.now < w.trouble+calmFor {
		return false
	}
	for _, n := range w.nodes {
		if n.QuietFor() < calmFor || n.host.away || n.cell.ClusterID() != w.cluster || n.cell.Phase() != cell.Active {
			return false
		}
	}
	return true
}

// checkUpdates is F75: while nothing else fails, an update or a move never stops a replica that serves when that
// leaves fewer than the replicas without max_unavailable.
func checkUpdates() *Checker {
	return &Checker{Name: "F75", Action: func(w *World, n *Node, action reconcile.Action) error {
		stopped := n.host.instances[action.ID]
		if action.Kind != reconcile.Stop || stopped == nil || stopped.state != reconcile.Ready || !w.undisturbed() {
			return nil
		}
		register, found := n.cell.Store().Get([]byte(action.Key))
		if !found || register.Conflicted() || strings.HasPrefix(action.Key, state.PrefixStateful) {
			return nil
		}
		if action.ID.KeyHash != register.KeyHash() {
			return nil // of the cluster that this cell was in before: no replica of this workload (sim seed 792)
		}
		spec := n.effective(register, action.Key)
		if spec == nil {
			return nil
		}
		ready := 0
		for _, other := range w.nodes {
			for _, i := range other.host.sorted() {
				if i != stopped && i.id.KeyHash == action.ID.KeyHash && i.state == reconcile.Ready {
					ready++
				}
			}
		}
		w.examined("F75")
		// Replicas for which there is no cell cannot be waited for (F78).
		least := min(int(spec.Replicas), len(w.nodes)-len(w.drained), len(n.cell.Plan().Of(action.ID.KeyHash)))
		least -= max(1, int(spec.Update.UnavailableMax))
		if ready < least {
			return fmt.Errorf("n%d stops %s while only %d others are ready: at least %d", n.Index, action.Key, ready, least)
		}
		return nil
	}}
}

// effective is the specification with the fewer replicas of what was applied and what was last good: one of them
// counts. nil while somebody scales down to nothing.
func (n *Node) effective(register crdt.Register, key string) *workload.Spec {
	value, live := register.Live()
	if !live {
		return nil
	}
	spec, err := workload.Decode(value)
	if err != nil {
		return nil
	}
	good, found := n.cell.Store().Get([]byte(state.RolloutKey(state.WorkloadName(key), state.RolloutGood)))
	if !found {
		return spec
	}
	_, value, _ = good.Latest()
	if other, err := workload.Decode(value); err == nil && other.Replicas < spec.Replicas {
		return other
	}
	return spec
}

// checkEnvironments is F83: what starts has exactly the environment that its specification names.
func checkEnvironments() *Checker {
	return &Checker{Name: "F83", Action: func(w *World, n *Node, action reconcile.Action) error {
		if action.Kind != reconcile.Start {
			return nil
		}
		spec, err := workload.Decode(action.Spec)
		if action.Environment != nil {
			w.examined("F83")
		}
		if err != nil || !isNamed(n, spec.EnvironmentDigest, action) {
			return fmt.Errorf("n%d starts %s with another environment than it names", n.Index, action.Key)
		}
		return nil
	}}
}

// isNamed reports whether the environment of a start is the one with a digest, by its content. In the moment in which a
// cell changes its cluster its disk has another key than it, and only its presence can be judged.
func isNamed(n *Node, digest [32]byte, action reconcile.Action) bool {
	if action.Environment == nil || digest == [32]byte{} {
		return action.Environment == nil && digest == [32]byte{}
	}
	plain, err := workload.EncodeEnvironment(action.Environment)
	if err != nil {
		return false
	}
	key := n.disk.cluster.Key
	return seal.ClusterID(key) != n.cell.ClusterID() ||
		seal.EnvironmentDigest(key, state.WorkloadName(action.Key), plain) == digest
}
