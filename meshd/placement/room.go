package placement

import (
	"colloid.net/meshd/state"
	"colloid.net/workload"
)

// unlimited is a capacity nobody can use up: ReplicasMax replicas of the largest request stay below.
const unlimited = int64(1) << 62

// room is what is left of a cell during one fill. Signed and wide, so that sums cannot wrap.
type room struct {
	processor, memory, disk, instances int64
	ports                              []uint32 // taken, as portKey
}

func (r *room) reset(c *state.CellCapacity) {
	limit := func(v uint32) int64 {
		if v == 0 {
			return unlimited
		}
		return int64(v)
	}
	r.processor, r.memory = limit(c.CPUMillicores), limit(c.MemoryMiB)
	r.disk, r.instances = limit(c.DiskMiB), limit(c.InstancesMax)
	r.ports = r.ports[:0]
}

// request is what one replica takes.
type request struct {
	processor, memory, disk uint32
	ports                   []uint32 // sorted by nothing, unique
}

func requestOf(s *workload.Spec) request {
	r := request{processor: s.CPUMillicores, memory: s.MemoryMiB, disk: s.DiskMiB}
	for _, port := range s.Ports {
		key := portKey(port)
		if port.Host != 0 && !contains(r.ports, key) {
			r.ports = append(r.ports, key)
		}
	}
	return r
}

func portKey(p workload.Port) uint32 { return uint32(p.Protocol)<<16 | uint32(p.Host) }

// covers reports whether r asks for at least as much as other, ports aside.
func (r *request) covers(other *request) bool {
	return r.processor >= other.processor && r.memory >= other.memory && r.disk >= other.disk
}

// lacks says what of the request does not fit, ports last.
func (r *room) lacks(q *request) blocker {
	switch {
	case r.instances < 1:
		return blockInstances
	case r.processor < int64(q.processor):
		return blockProcessor
	case r.memory < int64(q.memory):
		return blockMemory
	case r.disk < int64(q.disk):
		return blockDisk
	}
	for _, port := range q.ports {
		if contains(r.ports, port) {
			return blockPort
		}
	}
	return blockNothing
}

// take books the request. The caller has asked lacks before; a negative rest is a broken invariant.
func (r *room) take(q *request) {
	r.processor -= int64(q.processor)
	r.memory -= int64(q.memory)
	r.disk -= int64(q.disk)
	r.instances--
	if r.processor < 0 || r.memory < 0 || r.disk < 0 || r.instances < 0 {
		panic("placement: a cell is filled above its capacity")
	}
	r.ports = append(r.ports, q.ports...)
}

func contains(list []uint32, value uint32) bool {
	for _, v := range list {
		if v == value {
			return true
		}
	}
	return false
}
