package runnerd

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/workload"
)

// InstanceID names an instance on this host (F74). It is comparable.
type InstanceID struct {
	KeyHash uint64
	Slot    uint16
	Digest  uint64
}

// String is the name of the instance's directory.
func (id InstanceID) String() string {
	return fmt.Sprintf("%016x-%d-%016x", id.KeyHash, id.Slot, id.Digest)
}

// parseInstanceID accepts exactly what String prints.
func parseInstanceID(name string) (InstanceID, bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 3 {
		return InstanceID{}, false
	}
	keyHash, err1 := strconv.ParseUint(parts[0], 16, 64)
	slot, err2 := strconv.ParseUint(parts[1], 10, 16)
	digest, err3 := strconv.ParseUint(parts[2], 16, 64)
	id := InstanceID{keyHash, uint16(slot), digest}
	return id, err1 == nil && err2 == nil && err3 == nil && id.String() == name
}

func (id InstanceID) message() *message.InstanceID {
	return &message.InstanceID{KeyHash: id.KeyHash, Slot: uint32(id.Slot), Digest: id.Digest}
}

// phase is where an instance is in its life; see the package comment.
type phase string

const (
	phaseLaunching phase = "launching"
	phaseRunning   phase = "running"
	phaseWaiting   phase = "waiting"
	phaseStopping  phase = "stopping"
	phaseExited    phase = "exited"
	phaseDenied    phase = "denied"
)

var phases = []phase{phaseLaunching, phaseRunning, phaseWaiting, phaseStopping, phaseExited, phaseDenied}

// readiness of a running instance.
type readiness uint8

const (
	readinessUnknown readiness = iota // not ready yet
	readinessReady
	readinessFailed
)

// instance belongs to the supervisor's goroutine. Goroutines that work for it get copies, and report
// with the epoch they were started in: a report of an older epoch is void.
type instance struct {
	id        InstanceID
	key       string
	specBytes []byte
	spec      *workload.Spec
	address   netip.Addr
	cell      uint64
	directory string
	group     string // name of its control group, "" = none

	phase    phase
	ready    readiness
	epoch    int
	process  procfs.Process
	shim     procfs.Process
	exitCode int
	restarts uint32
	reason   string

	ownAddress netip.Addr // in a network of its own; invalid = the cell's
	// ownAddressIPv6 is its second one there; invalid where the kernel has no IPv6.
	ownAddressIPv6 netip.Addr
	oomKills       uint32 // of ended runs
	oomNow         uint32 // of this run

	delay time.Duration // last back-off, 0 = none
	next  time.Duration // boot time of the next launch while waiting

	cancel context.CancelFunc // ends the watch and the health check
	timer  *time.Timer
	hurry  chan struct{} // closed: do not wait for the grace
	// launchOver is closed when the last launch that began is over, also one of an older epoch.
	launchOver chan struct{}
	denied     string // stopping because of the policy: becomes denied, not gone

	supplied *workload.Environment // of the last Start command, nil = none yet
	failed   string                // why its last launch failed, "" = it did not
	hung     string                // why its run is being ended although it should run

	moved bool // it was told another address than its host has, and was not ready then

	dirty bool // its state has not been sent to the present session
}

func (i *instance) path(name string) string { return filepath.Join(i.directory, name) }

// Names in the state file.
const fileState = "state"

// save writes down what must survive runnerd, though not the host: the next boot discards it.
func (i *instance) save() error { return record.Keep(i.path(fileState), i.record()) }

func (i *instance) record() record.Record {
	r := record.Record{}
	r.Set("boot", procfs.BootID())
	r.Set("key", i.key)
	r.Set("spec", string(i.specBytes))
	r.Set("address", i.address.String())
	r.SetUint("cell", i.cell)
	r.Set("group", i.group)
	r.Set("phase", string(i.phase))
	r.SetInt("exit", int64(i.exitCode))
	r.Set("reason", i.reason)
	r.SetUint("restarts", uint64(i.restarts))
	r.SetInt("delay", int64(i.delay))
	r.SetInt("next", int64(i.next))
	r.SetInt("ready", int64(i.ready))
	r.Set("denied", i.denied)
	if i.ownAddress.IsValid() {
		r.Set("own_address", i.ownAddress.String())
		r.Set("own_address_ipv6", i.ownAddressIPv6.String())
	}
	r.SetUint("oom_kills", uint64(i.oomKills))
	return r
}

// loadInstance reads what save wrote. boot is false when that was in another boot.
func loadInstance(directory string, id InstanceID) (i *instance, boot bool, err error) {
	r, err := record.Load(filepath.Join(directory, fileState))
	if err != nil {
		return nil, false, err
	}
	i, err = parseInstance(r, directory, id)
	return i, r.Get("boot") == procfs.BootID(), err
}

// parseInstance gives an instance also beside an error, as far as it is known: it is then removed.
func parseInstance(r record.Record, directory string, id InstanceID) (*instance, error) {
	i := &instance{
		id: id, directory: directory, key: r.Get("key"), specBytes: []byte(r.Get("spec")),
		cell: r.Uint("cell"), group: r.Get("group"), phase: phase(r.Get("phase")),
		exitCode: int(r.Int("exit")), reason: r.Get("reason"), restarts: uint32(r.Uint("restarts")),
		delay: time.Duration(r.Int("delay")), next: time.Duration(r.Int("next")),
		ready: readiness(r.Int("ready")), denied: r.Get("denied"),
		oomKills: uint32(r.Uint("oom_kills")),
	}
	i.ownAddress, _ = netip.ParseAddr(r.Get("own_address"))
	i.ownAddressIPv6, _ = netip.ParseAddr(r.Get("own_address_ipv6"))
	i.address, _ = netip.ParseAddr(r.Get("address"))
	spec, err := workload.Decode(i.specBytes)
	switch {
	case err != nil:
		return i, fmt.Errorf("state of %s: %w", id, err)
	case spec.InstanceDigest() != id.Digest:
		return i, fmt.Errorf("state of %s holds another specification", id)
	case !slices.Contains(phases, i.phase) || i.ready > readinessFailed || i.delay < 0:
		return i, fmt.Errorf("state of %s: phase %.20q, readiness %d, delay %v are not understood", id, i.phase, i.ready, i.delay)
	}
	for name, values := range i.record() { // a number that is none, or too large, reads as another one
		if name != "boot" && len(r[name]) > 0 && !slices.Equal(r[name], values) {
			return i, fmt.Errorf("state of %s: %s %.40q is not understood", id, name, r.Get(name))
		}
	}
	i.spec = spec
	return i, nil
}

// makeDirectory makes the directory with the scratch space of the workload's user.
func (i *instance) makeDirectory(uid, gid uint32, identity bool) error {
	if err := os.MkdirAll(i.directory, directoryMode); err != nil {
		return err
	}
	scratch := i.path("scratch")
	if err := os.Mkdir(scratch, scratchMode); err != nil && !os.IsExist(err) {
		return err
	}
	if identity {
		return os.Lchown(scratch, int(uid), int(gid))
	}
	return nil
}

// state is the state of the instance as meshd knows states.
func (i *instance) state() message.InstanceState {
	switch i.phase {
	case phaseRunning:
		switch i.ready {
		case readinessReady:
			return message.InstanceState_INSTANCE_READY
		case readinessFailed:
			return message.InstanceState_INSTANCE_UNREADY
		}
		return message.InstanceState_INSTANCE_STARTING
	case phaseLaunching:
		return message.InstanceState_INSTANCE_STARTING
	case phaseWaiting:
		return message.InstanceState_INSTANCE_BACKOFF
	case phaseStopping:
		return message.InstanceState_INSTANCE_STOPPING
	case phaseExited:
		return message.InstanceState_INSTANCE_EXITED
	case phaseDenied:
		return message.InstanceState_INSTANCE_DENIED
	}
	panic("runnerd: unknown phase " + string(i.phase))
}

func (i *instance) message() *message.Instance {
	m := &message.Instance{
		Id: i.id.message(), Key: i.key, State: i.state(), ExitCode: int32(i.exitCode),
		Restarts: i.restarts, Reason: shorten(i.reason), Spec: i.specBytes, NeedsEnvironment: i.awaitsEnvironment(),
		OomKills: i.oomKills + i.oomNow,
	}
	if i.ownAddress.IsValid() && i.phase == phaseRunning {
		m.Address = i.ownAddress.AsSlice()
		if i.ownAddressIPv6.IsValid() {
			m.AddressIpv6 = i.ownAddressIPv6.AsSlice()
		}
	}
	if i.phase == phaseRunning || i.phase == phaseStopping {
		m.Pid, m.StartTicks = uint32(i.process.PID), i.process.StartTicks
	}
	if i.spec != nil {
		for _, port := range i.spec.Ports {
			m.Ports = append(m.Ports, uint32(port.Host))
		}
	}
	return m
}

// shorten makes a reason fit: valid UTF-8 (protobuf insists) of at most reasonMax bytes.
func shorten(reason string) string {
	if len(reason) > reasonMax {
		reason = reason[:reasonMax] + "..."
	}
	return strings.ToValidUTF8(reason, "?")
}

// stopTimers ends everything that works for the present epoch and begins the next.
func (i *instance) stopTimers() {
	i.epoch++
	if i.cancel != nil {
		i.cancel()
		i.cancel = nil
	}
	if i.timer != nil {
		i.timer.Stop()
		i.timer = nil
	}
}
