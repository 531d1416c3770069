package runnerd

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/workload"
)

// command carries out one command of a session. An error means that the peer breaks the protocol and
// must be disconnected; everything else that is wrong with a command is an answer.
func (s *Supervisor) command(from *session, c *message.Command) error {
	if c.Sequence != from.sequence+1 {
		return fmt.Errorf("command has sequence %d, expected %d", c.Sequence, from.sequence+1)
	}
	from.sequence = c.Sequence
	switch body := c.Body.(type) {
	case *message.Command_Start:
		return s.start(from, body.Start)
	case *message.Command_Stop:
		return s.stopCommand(from, body.Stop)
	case *message.Command_List:
		s.checkPolicy()
		s.relist()
		return nil
	case *message.Command_Attach:
		return s.attach(from, body.Attach)
	case *message.Command_Host:
		return s.host(from, body.Host)
	case *message.Command_NoBlob:
		s.noBlob(from, body.NoBlob)
		return nil
	}
	s.audit.write(from.peer, c.Sequence, "unknown", "ignored: a command of a newer version")
	from.acknowledge = true
	return nil
}

// host takes where this host's instances answer now. What runs keeps what it was told when it began, since nobody
// can change the environment of a process. The health check of a process or a module goes to the new address: if it does
// not answer there, it is started again like one that hangs. A container never has the host's address.
func (s *Supervisor) host(from *session, m *message.Host) error {
	address, ok := netip.AddrFromSlice(m.Address)
	if !ok {
		return fmt.Errorf("address of the host has %d bytes, expected 4 or 16", len(m.Address))
	}
	from.acknowledge = true
	address = address.Unmap()
	for _, i := range s.instances {
		if i.address == address || i.phase == phaseDenied {
			continue
		}
		i.address = address
		container := i.spec.Runtime == workload.RuntimeOCI
		i.moved = !container && i.ready != readinessReady && (i.phase == phaseRunning || i.phase == phaseLaunching)
		s.write(i)
		if i.phase == phaseRunning && !container {
			s.running(i) // its health is asked for at the new address
		}
	}
	return nil
}

var errNoID = errors.New("command names no instance")

func instanceID(m *message.InstanceID) (InstanceID, error) {
	if m == nil {
		return InstanceID{}, errNoID
	}
	if m.Slot > 1<<16-1 {
		return InstanceID{}, fmt.Errorf("slot %d is above 65535", m.Slot)
	}
	return InstanceID{KeyHash: m.KeyHash, Slot: uint16(m.Slot), Digest: m.Digest}, nil
}

// start makes an instance run, or says that it runs, or why it does not. One that only asks, for when there will be room
// for it, is answered if the policy forbids it.
func (s *Supervisor) start(from *session, m *message.Start) error {
	id, err := instanceID(m.Id)
	if err != nil {
		return err
	}
	s.checkPolicy()
	if i := s.instances[id]; i != nil && i.phase != phaseDenied {
		if m.PrepareOnly {
			s.prepareExisting(from, i)
			return nil
		}
		i.dirty = true // the answer to a repeated command is the state
		return s.supplyAgain(from, i, m)
	}
	i := &instance{id: id, specBytes: m.Spec, cell: m.CellId}
	permit, err := s.admit(i, m)
	if err == nil && (m.CheckOnly || m.PrepareOnly) {
		_, err = s.check(i.spec) // of the image too, which a start asks about when it launches
	}
	if err == nil && (m.CheckOnly || m.PrepareOnly) {
		from.acknowledge = true
		if denied := s.instances[id]; denied != nil {
			s.dropDenial(id)
			s.forget(denied)
		}
		if m.PrepareOnly {
			s.prepareAhead(from, i, permit)
		}
		return nil
	}
	if err == nil {
		err = s.room(i.spec)
	}
	if err != nil {
		s.deny(i, err)
		s.audit.write(from.peer, from.sequence, "start "+id.String()+" "+quoteKey(i.key), "denied: "+i.reason)
		return nil
	}
	s.dropDenial(id)
	i.directory = filepath.Join(s.options.Directory, instancesDirName, id.String())
	i.phase = phaseLaunching
	if err := i.makeDirectory(permit.User.UID, permit.User.GID, canSwitchUser()); err != nil {
		s.deny(i, fmt.Errorf("cannot make the instance's directory: %w", err))
		return nil
	}
	s.instances[id] = i
	s.endPreparation(id)
	s.audit.write(from.peer, from.sequence, "start "+id.String()+" "+quoteKey(i.key),
		"allowed: "+permit.String())
	s.beginLaunch(i, "")
	return nil
}

// admit checks everything about a Start that needs no file, and fills in the instance.
func (s *Supervisor) admit(i *instance, m *message.Start) (policy.Permit, error) {
	if _, _, ok := workload.SplitKey(m.Key); !ok {
		return policy.Permit{}, fmt.Errorf("%s is no workload key", quoteKey(m.Key))
	}
	i.key = m.Key
	spec, err := workload.Decode(m.Spec)
	if err != nil {
		i.specBytes = nil
		return policy.Permit{}, fmt.Errorf("the specification is invalid: %w", err)
	}
	i.spec = spec
	if err := workload.CheckKey(m.Key, spec); err != nil {
		return policy.Permit{}, fmt.Errorf("the specification does not fit its key: %w", err)
	}
	if digest := spec.InstanceDigest(); digest != i.id.Digest {
		return policy.Permit{}, fmt.Errorf("the specification has digest %016x, the command says %016x",
			digest, i.id.Digest)
	}
	address, ok := netip.AddrFromSlice(m.Address)
	if !ok && len(m.Address) != 0 {
		return policy.Permit{}, fmt.Errorf("address has %d bytes, expected 4 or 16", len(m.Address))
	}
	if ok {
		i.address = address.Unmap()
	} else {
		i.address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	permit, err := s.policy.Check(spec)
	if err != nil {
		return policy.Permit{}, err
	}
	if m.PrepareOnly && len(m.Environment)+len(m.Files) == 0 {
		return permit, nil // nothing is started that could need them
	}
	if err := i.supply(m, permit); err != nil {
		return policy.Permit{}, err
	}
	return permit, nil
}

// supplyAgain gives an instance the environment that a runnerd before this one knew, and starts it if it waited
// for that.
func (s *Supervisor) supplyAgain(from *session, i *instance, m *message.Start) error {
	if !i.awaitsEnvironment() {
		return nil
	}
	permit, err := s.check(i.spec)
	if err == nil {
		err = i.supply(m, permit)
	}
	if err != nil {
		s.audit.write(from.peer, from.sequence, "start "+i.id.String()+" "+quoteKey(i.key), "environment refused: "+err.Error())
		return nil
	}
	if i.phase == phaseWaiting && i.next <= procfs.BootTime() {
		s.beginLaunch(i, i.reason)
	}
	return nil
}

// room checks the caps of the policy on what is here already.
func (s *Supervisor) room(spec *workload.Spec) error {
	count, millicores, mebibytes := 0, uint64(spec.CPUMillicores), uint64(spec.MemoryMiB)
	for _, i := range s.instances {
		if i.phase != phaseDenied {
			count++
			millicores += uint64(i.spec.CPUMillicores)
			mebibytes += uint64(i.spec.MemoryMiB)
		}
	}
	p := s.policy
	switch {
	case count >= p.Instances:
		return fmt.Errorf("the host's policy allows %d instances and all are in use", p.Instances)
	case p.CPUMillicores > 0 && millicores > uint64(p.CPUMillicores):
		return fmt.Errorf("instances would take %d millicores, the host's policy allows %d",
			millicores, p.CPUMillicores)
	case p.MemoryMiB > 0 && mebibytes > uint64(p.MemoryMiB):
		return fmt.Errorf("instances would take %d MiB, the host's policy allows %d", mebibytes, p.MemoryMiB)
	}
	return nil
}

// deny remembers a refusal. Beyond deniedMax the oldest is forgotten.
func (s *Supervisor) deny(i *instance, reason error) {
	s.dropDenial(i.id)
	delete(s.ahead.standby, i.id)
	s.instances[i.id] = i
	s.dispose(i.id, i.directory)
	i.directory = ""
	s.enter(i, phaseDenied, reason.Error())
	s.denials = append(s.denials, i.id)
	if len(s.denials) > deniedMax {
		if oldest := s.instances[s.denials[0]]; oldest != nil {
			s.forget(oldest)
		}
		s.denials = s.denials[1:]
	}
}

func (s *Supervisor) dropDenial(id InstanceID) {
	for n, denied := range s.denials {
		if denied == id {
			s.denials = append(s.denials[:n:n], s.denials[n+1:]...)
			break
		}
	}
	if i := s.instances[id]; i != nil && i.phase == phaseDenied {
		delete(s.instances, id)
	}
}

// stopCommand makes an instance not exist.
func (s *Supervisor) stopCommand(from *session, m *message.Stop) error {
	id, err := instanceID(m.Id)
	if err != nil {
		return err
	}
	if m.PreparedOnly {
		s.withdrawPreparation(id)
		from.acknowledge = true
		return nil
	}
	i := s.instances[id]
	if i == nil {
		s.announceGone(&message.Instance{Id: id.message(), State: message.InstanceState_INSTANCE_GONE})
		return nil
	}
	grace := min(time.Duration(m.GraceMilliseconds)*time.Millisecond, graceMax)
	if i.phase != phaseStopping {
		s.audit.write(from.peer, from.sequence, "stop "+id.String()+" "+quoteKey(i.key),
			fmt.Sprintf("allowed: grace %v", grace))
	}
	s.stop(i, grace, "stopped on request", "")
	return nil
}

func quoteKey(key string) string { return fmt.Sprintf("%.100q", key) }
