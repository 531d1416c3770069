package cell

import (
	"encoding/binary"
	"fmt"
	"slices"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/placement"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// environmentID is the part of a digest that stands in keys.
func environmentID(digest [32]byte) uint64 { return binary.BigEndian.Uint64(digest[:]) }

// partSizeMax is what one key holds of a sealed environment, behind the number of parts.
const partSizeMax = wire.ValueMax - 1

// environmentCommand seals what the command line read, and stores it unless only the digest is asked for. The
// plain values go no further than this call: not to the log, not to the store (F83).
func (c *Cell) environmentCommand(payload []byte, reply func(Response)) {
	request, err := uds.ParseEnvironmentRequest(payload)
	if err != nil {
		reply(failure(uds.ErrorInvalid, err.Error()))
		return
	}
	if !state.IsWorkload([]byte(request.Key)) {
		reply(failure(uds.ErrorInvalid, fmt.Sprintf("%.80q is no workload key", request.Key)))
		return
	}
	if _, err := workload.DecodeEnvironment(request.Plain); err != nil {
		reply(failure(uds.ErrorInvalid, request.Key+": "+err.Error()))
		return
	}
	if c.phase == Booting {
		reply(failure(uds.ErrorBusy, "this cell is still syncing with the cluster: try again in a moment"))
		return
	}
	name := state.WorkloadName(request.Key)
	digest, sealed := seal.SealEnvironment(c.cluster.Key, name, request.Plain)
	done := Response{Status: uds.OK, Payload: digest[:]}
	if _, err := c.openEnvironment(name, digest); err == nil || !request.Store {
		reply(done)
		return
	}
	keys, values := environmentParts(name, digest, sealed)
	if c.store.Len()+len(keys) > c.keyRoom() {
		reply(failure(uds.ErrorNoSpace, fmt.Sprintf("%s: the cluster holds %d keys, 90 %% of what its smallest cell can",
			request.Key, c.store.Len())))
		return
	}
	c.storeParts(request.Key, keys, values, func(failed error) {
		if failed != nil {
			reply(writeFailure(request.Key, failed))
			return
		}
		reply(done)
	})
}

// storeParts makes all parts durable and visible before it calls done, once.
func (c *Cell) storeParts(key string, keys []string, values [][]byte, done func(error)) {
	waiting := len(keys)
	var failed error
	for i := range keys {
		c.operatorWrite(keys[i], values[i], func(err error) {
			waiting--
			if err != nil {
				failed = err
			}
			if waiting == 0 {
				done(failed)
			}
		})
	}
}

// environmentParts spreads a sealed environment over keys: how many there are, then a share of the bytes.
func environmentParts(name string, digest [32]byte, sealed []byte) (keys []string, values [][]byte) {
	count := (len(sealed) + partSizeMax - 1) / partSizeMax
	if count > state.EnvironmentPartsMax {
		panic(fmt.Sprintf("cell: sealed environment of %d bytes", len(sealed)))
	}
	for part := range count {
		share := sealed[part*partSizeMax : min((part+1)*partSizeMax, len(sealed))]
		keys = append(keys, state.EnvironmentKey(name, environmentID(digest), part))
		values = append(values, append([]byte{byte(count)}, share...))
	}
	return keys, values
}

// openEnvironment puts the parts together and opens them. While parts are missing, or are not what the digest
// names, there is no environment: it comes whole or not at all (F83).
func (c *Cell) openEnvironment(name string, digest [32]byte) (*workload.Environment, error) {
	var sealed []byte
	for part, count := 0, 1; part < count; part++ {
		value, ok := c.newest([]byte(state.EnvironmentKey(name, environmentID(digest), part)))
		if !ok {
			return nil, fmt.Errorf("part %d of its secrets and files has not arrived", part+1)
		}
		count = int(value[0])
		if count < 1 || count > state.EnvironmentPartsMax {
			return nil, seal.ErrEnvironment
		}
		sealed = append(sealed, value[1:]...)
	}
	plain, err := seal.OpenEnvironment(c.cluster.Key, name, digest, sealed)
	if err != nil {
		return nil, err
	}
	return workload.DecodeEnvironment(plain)
}

// startable reports whether the environment of a workload is here.
func (c *Cell) startable(w *placement.Workload) bool {
	if w.Spec.EnvironmentDigest == ([32]byte{}) {
		return true
	}
	_, err := c.openEnvironment(state.WorkloadName(w.Key), w.Spec.EnvironmentDigest)
	return err == nil
}

// fillEnvironment adds to a start what its specification only names. It reports false when that is gone. To stand by none of
// it is needed, so it goes nowhere before an instance does; before an update the host's policy looks at it.
func (c *Cell) fillEnvironment(action *reconcile.Action) bool {
	if action.Kind == reconcile.Stop || action.Kind == reconcile.Withdraw {
		return true
	}
	if p, _ := c.reconciler.Preparation(action.ID); action.Kind == reconcile.Prepare && !p.ForUpdate {
		return true
	}
	spec, err := workload.Decode(action.Spec)
	if err != nil || spec.EnvironmentDigest == ([32]byte{}) {
		return true
	}
	action.Environment, err = c.openEnvironment(state.WorkloadName(action.Key), spec.EnvironmentDigest)
	return err == nil
}

// environmentNames tells people what is in the environment of a specification, without values.
func (c *Cell) environmentNames(key string, value []byte) []string {
	spec, err := workload.Decode(value)
	if err != nil || spec.EnvironmentDigest == ([32]byte{}) {
		return nil
	}
	environment, err := c.openEnvironment(state.WorkloadName(key), spec.EnvironmentDigest)
	if err != nil {
		return []string{"secrets and files: " + err.Error()}
	}
	return environment.Names()
}

// waitsForEnvironment says why nothing of a workload starts, "" if its environment is not the reason.
func (c *Cell) waitsForEnvironment(view *workloadView) string {
	if view.spec == nil || view.spec.EnvironmentDigest == ([32]byte{}) {
		return ""
	}
	if _, err := c.openEnvironment(state.WorkloadName(view.key), view.spec.EnvironmentDigest); err != nil {
		return "waits: " + err.Error()
	}
	return ""
}

// carriedEnvironment gives the plain environment of a specification that is taken into another cluster, whose key
// seals it anew.
func (c *Cell) carriedEnvironment(key string, value []byte) []byte {
	if !state.IsWorkload([]byte(key)) {
		return nil
	}
	spec, err := workload.Decode(value)
	if err != nil || spec.EnvironmentDigest == ([32]byte{}) {
		return nil
	}
	environment, err := c.openEnvironment(state.WorkloadName(key), spec.EnvironmentDigest)
	if err != nil {
		return nil
	}
	plain, err := workload.EncodeEnvironment(environment)
	if err != nil {
		return nil
	}
	return plain
}

// reseal seals a carried environment with the key of this cluster, in which it has another digest.
func (c *Cell) reseal(key carriedKey) carriedKey {
	spec, err := workload.Decode(key.value)
	if key.environment == nil || err != nil {
		return key
	}
	name := state.WorkloadName(key.name)
	digest, sealed := seal.SealEnvironment(c.cluster.Key, name, key.environment)
	spec.EnvironmentDigest = digest
	value, err := workload.Encode(spec)
	if err != nil {
		return key
	}
	keys, values := environmentParts(name, digest, sealed)
	for i := range keys {
		c.publish(keys[i], slices.Clone(values[i]))
	}
	key.value = value
	return key
}
