package state

import (
	"encoding/binary"
	"net/netip"

	"colloid.net/meshd/wire"
)

// CellCapacity is the value of health.<id>.capacity: what a cell offers to workloads, changed by
// configuration only, never by load (F72).
type CellCapacity struct {
	CPUMillicores  uint32
	MemoryMiB      uint32
	DiskMiB        uint32
	InstancesMax   uint32
	LimitsEnforced bool // false: the host lacks the cgroup controllers, limits are wishes
	// Cordoned says that an operator keeps new work away from this cell.
	Cordoned bool
}

const (
	tagCPU       = 1
	tagMemory    = 2
	tagDisk      = 3
	tagInstances = 4
	tagBits      = 5
	bitEnforced  = 1 << 0
	bitCordoned  = 1 << 1

	capacitySingle tags = 1<<tagCPU | 1<<tagMemory | 1<<tagDisk | 1<<tagInstances | 1<<tagBits
)

// AppendCellCapacity encodes c.
func AppendCellCapacity(dst []byte, c CellCapacity) []byte {
	dst = append(dst, valueVersion)
	dst = appendTLV32(dst, tagCPU, c.CPUMillicores)
	dst = appendTLV32(dst, tagMemory, c.MemoryMiB)
	dst = appendTLV32(dst, tagDisk, c.DiskMiB)
	dst = appendTLV32(dst, tagInstances, c.InstancesMax)
	var bits uint32
	if c.LimitsEnforced {
		bits |= bitEnforced
	}
	if c.Cordoned {
		bits |= bitCordoned
	}
	return appendTLV32(dst, tagBits, bits)
}

// ParseCellCapacity decodes what AppendCellCapacity wrote.
func ParseCellCapacity(value []byte) (CellCapacity, error) {
	var c CellCapacity
	err := eachTLV(value, capacitySingle, func(tag byte, field []byte) (err error) {
		var bits uint32
		switch tag {
		case tagCPU:
			c.CPUMillicores, err = uint32Of(field)
		case tagMemory:
			c.MemoryMiB, err = uint32Of(field)
		case tagDisk:
			c.DiskMiB, err = uint32Of(field)
		case tagInstances:
			c.InstancesMax, err = uint32Of(field)
		case tagBits:
			bits, err = uint32Of(field)
			c.LimitsEnforced, c.Cordoned = bits&bitEnforced != 0, bits&bitCordoned != 0
		}
		return err
	})
	if err != nil {
		return CellCapacity{}, err
	}
	return c, nil
}

// EndpointState is the condition of one instance as others may rely on it (F158).
type EndpointState uint8

// States of an endpoint.
const (
	EndpointStarting EndpointState = 1
	EndpointReady    EndpointState = 2
	EndpointUnready  EndpointState = 3 // runs, but its health check fails
	EndpointDraining EndpointState = 4
	EndpointBackoff  EndpointState = 5 // exited, waits for its next start
	EndpointExited   EndpointState = 6 // exited and is not started again
)

var endpointNames = [...]string{"unknown", "starting", "ready", "unready", "draining", "backoff", "exited"}

// String returns the name used in status output.
func (s EndpointState) String() string {
	if int(s) < len(endpointNames) {
		return endpointNames[s]
	}
	return "invalid"
}

// EndpointInstance is one instance of a workload on a cell. Slot is 0 unless the workload
// oversubscribes or is stateful (then it is the replica index).
type EndpointInstance struct {
	Slot     uint16
	Digest   uint64 // workload.InstanceDigest of the specification it runs
	State    EndpointState
	Restarts uint16
	ExitCode int32 // of EndpointExited; -1 = unknown
	// Reason is for people: why one in EndpointExited or EndpointBackoff ended, or one in EndpointStarting or
	// EndpointUnready is not ready; "" = not said.
	Reason string
	Ports  []uint16 // as they answer on Address, in the order of the specification
	// Pod is its own address in the network of its host's containers, which is not reached from elsewhere
	// and may occur on other hosts too (F100); invalid = it has none.
	Pod netip.Addr
	// DataOn is the cell that had the replica before, and has what is in its volumes; 0 = this one, as far as
	// known.
	DataOn wire.CellID
}

// EndpointInstancesMax and EndpointPortsMax bound one endpoint value.
const (
	EndpointInstancesMax = 16
	EndpointPortsMax     = 16
	EndpointReasonMax    = 120 // bytes; a value has room for three or four
)

// CellEndpoint is the value of ep.<cell>.<workload>.
type CellEndpoint struct {
	KeyHash   uint64 // of the workload's key: one name may exist under two kinds
	Address   netip.Addr
	Instances []EndpointInstance
}

const (
	tagKeyHash  = 1
	tagAddress  = 2
	tagInstance = 3
	tagExit     = 4 // slot, digest and exit code of an instance that has exited
	tagPod      = 5 // slot, digest and own address of an instance that has one
	tagDataOn   = 7 // slot, digest and cell: where the data of an instance's volumes is, if elsewhere
	tagWhy      = 6 // slot, digest and text: why an instance has ended
	tagNotReady = 8 // slot, digest and text: why an instance that runs is not ready

	endpointSingle tags = 1<<tagKeyHash | 1<<tagAddress
)

// AppendCellEndpoint encodes e. Instances and ports beyond the bounds, and instances and then reasons for
// which the value of 512 bytes has no room, are left out. It panics on an address that nothing can answer at.
func AppendCellEndpoint(dst []byte, e CellEndpoint) []byte {
	start := len(dst)
	dst = append(dst, valueVersion)
	dst = appendTLV64(dst, tagKeyHash, e.KeyHash)
	if e.Address.IsValid() {
		if !answerable(e.Address) {
			panic("state: endpoint at " + e.Address.String())
		}
		raw := e.Address.As16()
		dst = appendTLV(dst, tagAddress, raw[:])
	}
	var exits []byte
	listed := 0
	for i, instance := range e.Instances {
		if i == EndpointInstancesMax {
			break
		}
		var field, exit []byte
		field = binary.BigEndian.AppendUint16(field, instance.Slot)
		field = binary.BigEndian.AppendUint64(field, instance.Digest)
		field = append(field, byte(instance.State))
		field = binary.BigEndian.AppendUint16(field, instance.Restarts)
		for j, port := range instance.Ports {
			if j == EndpointPortsMax {
				break
			}
			field = binary.BigEndian.AppendUint16(field, port)
		}
		if instance.State == EndpointExited {
			exit = binary.BigEndian.AppendUint16(nil, instance.Slot)
			exit = binary.BigEndian.AppendUint64(exit, instance.Digest)
			exit = binary.BigEndian.AppendUint32(exit, uint32(instance.ExitCode))
			exit = appendTLV(nil, tagExit, exit)
		}
		if len(dst)-start+2+len(field)+len(exits)+len(exit) > wire.ValueMax {
			break
		}
		dst, exits = appendTLV(dst, tagInstance, field), append(exits, exit...)
		listed++
	}
	dst = append(dst, exits...)
	return appendEndpointDetails(dst, start, e.Instances[:listed])
}

// appendEndpointDetails adds what not every instance has, the most important first, as far as the value that
// begins at start has room.
func appendEndpointDetails(dst []byte, start int, instances []EndpointInstance) []byte {
	head := func(instance *EndpointInstance) []byte {
		field := binary.BigEndian.AppendUint16(nil, instance.Slot)
		return binary.BigEndian.AppendUint64(field, instance.Digest)
	}
	var tail []byte // tags ascend, so the most important comes last
	room := func(field []byte) bool { return len(dst)-start+2+len(field)+len(tail) <= wire.ValueMax }
	for i := range instances {
		if instance := &instances[i]; instance.DataOn.Valid() {
			field := binary.BigEndian.AppendUint64(head(instance), uint64(instance.DataOn))
			if !room(field) {
				break
			}
			tail = appendTLV(tail, tagDataOn, field)
		}
	}
	for i := range instances {
		if instance := &instances[i]; instance.Pod.IsValid() && answerable(instance.Pod) {
			raw := instance.Pod.As16()
			field := append(head(instance), raw[:]...)
			if !room(field) {
				break
			}
			dst = appendTLV(dst, tagPod, field)
		}
	}
	for i := range instances {
		if instance := &instances[i]; instance.Reason != "" && instance.reasonTag() != 0 {
			field := append(head(instance), Printable(instance.Reason, EndpointReasonMax)...)
			if !room(field) {
				break // the texts are the first thing to do without
			}
			if instance.reasonTag() == tagWhy {
				dst = appendTLV(dst, tagWhy, field)
			} else {
				tail = appendTLV(tail, tagNotReady, field)
			}
		}
	}
	return append(dst, tail...)
}

// reasonTag is the tag under which the reason of an instance stands, 0 if one in its state has none. Cells of
// an earlier version know of those that have ended, and refuse the others under that tag.
func (i *EndpointInstance) reasonTag() byte {
	switch i.State {
	case EndpointExited, EndpointBackoff:
		return tagWhy
	case EndpointStarting, EndpointUnready:
		return tagNotReady
	}
	return 0
}

// ParseCellEndpoint decodes what AppendCellEndpoint wrote.
func ParseCellEndpoint(value []byte) (CellEndpoint, error) {
	var e CellEndpoint
	err := eachTLV(value, endpointSingle, func(tag byte, field []byte) (err error) {
		switch tag {
		case tagKeyHash:
			e.KeyHash, err = uint64Of(field)
		case tagAddress:
			if len(field) != 16 {
				return errTLV
			}
			e.Address = netip.AddrFrom16([16]byte(field)).Unmap()
			if !answerable(e.Address) {
				return errTLV
			}
		case tagInstance:
			return e.addInstance(field)
		case tagExit:
			return e.addExit(field)
		case tagPod:
			return e.addPod(field)
		case tagDataOn:
			return e.addDataOn(field)
		case tagWhy, tagNotReady:
			return e.addReason(tag, field)
		}
		return err
	})
	if err != nil {
		return CellEndpoint{}, err
	}
	return e, nil
}

// answerable reports whether a may be the address of an endpoint. Loopback may: an unprivileged
// single-machine cluster has nothing else.
func answerable(a netip.Addr) bool { return !a.Unmap().IsUnspecified() && !a.Unmap().IsMulticast() }

func (e *CellEndpoint) addInstance(field []byte) error {
	const head = 13
	if len(field) < head || (len(field)-head)%2 != 0 || len(field) > head+2*EndpointPortsMax ||
		len(e.Instances) == EndpointInstancesMax {
		return errTLV
	}
	instance := EndpointInstance{
		Slot:     binary.BigEndian.Uint16(field),
		Digest:   binary.BigEndian.Uint64(field[2:]),
		State:    EndpointState(field[10]),
		Restarts: binary.BigEndian.Uint16(field[11:]),
	}
	for raw := field[head:]; len(raw) > 0; raw = raw[2:] {
		instance.Ports = append(instance.Ports, binary.BigEndian.Uint16(raw))
	}
	e.Instances = append(e.Instances, instance)
	return nil
}

// addDataOn notes where the data of an instance is that was listed before.
func (e *CellEndpoint) addDataOn(field []byte) error {
	if len(field) != 18 {
		return errTLV
	}
	slot, digest := binary.BigEndian.Uint16(field), binary.BigEndian.Uint64(field[2:])
	cell := wire.CellID(binary.BigEndian.Uint64(field[10:]))
	for i := range e.Instances {
		if instance := &e.Instances[i]; cell.Valid() && instance.Slot == slot && instance.Digest == digest {
			instance.DataOn = cell
			return nil
		}
	}
	return errTLV
}

// addReason notes why an instance that was listed before does not run or is not ready.
func (e *CellEndpoint) addReason(tag byte, field []byte) error {
	const head = 10
	if len(field) <= head || len(field) > head+EndpointReasonMax {
		return errTLV
	}
	slot, digest := binary.BigEndian.Uint16(field), binary.BigEndian.Uint64(field[2:])
	text, err := textOf(field[head:])
	if err != nil {
		return err
	}
	for i := range e.Instances {
		if instance := &e.Instances[i]; instance.reasonTag() == tag && instance.Slot == slot && instance.Digest == digest {
			instance.Reason = text
			return nil
		}
	}
	return errTLV
}

// addExit notes the exit code of an instance that was listed before as exited.
func (e *CellEndpoint) addExit(field []byte) error {
	if len(field) != 14 {
		return errTLV
	}
	slot, digest := binary.BigEndian.Uint16(field), binary.BigEndian.Uint64(field[2:])
	for i := range e.Instances {
		if instance := &e.Instances[i]; instance.State == EndpointExited && instance.Slot == slot && instance.Digest == digest {
			instance.ExitCode = int32(binary.BigEndian.Uint32(field[10:]))
			return nil
		}
	}
	return errTLV
}

// addPod notes the own address of an instance that was listed before.
func (e *CellEndpoint) addPod(field []byte) error {
	if len(field) != 26 {
		return errTLV
	}
	slot, digest := binary.BigEndian.Uint16(field), binary.BigEndian.Uint64(field[2:])
	pod := netip.AddrFrom16([16]byte(field[10:])).Unmap()
	for i := range e.Instances {
		if instance := &e.Instances[i]; instance.Slot == slot && instance.Digest == digest && answerable(pod) {
			instance.Pod = pod
			return nil
		}
	}
	return errTLV
}

// CellDenial is the value of deny.<cell>.<workload>: this host will not run this specification
// (decision D2). Placement passes the cell over while the digest matches.
type CellDenial struct {
	KeyHash uint64
	Digest  uint64 // workload.InstanceDigest of the refused specification
	Reason  string
}

const (
	tagDigest = 2
	tagReason = 3

	denialSingle tags = 1<<tagKeyHash | 1<<tagDigest | 1<<tagReason
)

// AppendCellDenial encodes d; the reason is cut to 200 bytes and made printable.
func AppendCellDenial(dst []byte, d CellDenial) []byte {
	dst = append(dst, valueVersion)
	dst = appendTLV64(dst, tagKeyHash, d.KeyHash)
	dst = appendTLV64(dst, tagDigest, d.Digest)
	return appendTLV(dst, tagReason, Printable(d.Reason, 200))
}

// ParseCellDenial decodes what AppendCellDenial wrote.
func ParseCellDenial(value []byte) (CellDenial, error) {
	var d CellDenial
	err := eachTLV(value, denialSingle, func(tag byte, field []byte) (err error) {
		switch tag {
		case tagKeyHash:
			d.KeyHash, err = uint64Of(field)
		case tagDigest:
			d.Digest, err = uint64Of(field)
		case tagReason:
			d.Reason, err = textOf(field)
		}
		return err
	})
	if err != nil {
		return CellDenial{}, err
	}
	return d, nil
}
