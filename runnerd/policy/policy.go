// Package policy is the host's own rule over what the mesh may run on it (decision D2, F132, F145):
// the file /etc/colloid/runnerd.policy, owned by root. What it does not allow is denied; without a
// file no host process runs at all. docs/runnerd.md is the reference for people.
//
// A Policy is immutable once parsed. Check compares a specification with it and answers with a
// Permit or with the sentence that tells the operator what would have to change.
package policy

import (
	"math"

	"colloid.net/runnerd/trust"
	"colloid.net/workload/syntax"
)

// Defaults and bounds.
const (
	InstancesDefault = 64
	InstancesMax     = 1024
	LogRateDefault   = 256 << 10 // bytes per second and instance
	PortMinDefault   = 1024
	ProcessesMax     = 1024
	digestsMax       = 16
	portsMax         = 64
	usersMax         = 16
)

// Policy is what a host allows.
type Policy struct {
	Instances     int    // instances at a time
	CPUMillicores uint32 // cap on the sum of requests, 0 = the host's
	MemoryMiB     uint32 // cap on the sum of limits, 0 = the host's
	LogRate       int    // bytes per second and instance
	PortMin       uint16 // no instance publishes a port below it
	MeshdUID      int64  // who may connect, -1 = not said
	Processes     []Process
	Wasm          *Wasm // nil: no modules
	Containers    Containers
	// AllowUnlimited lets a container run whose limits this host cannot enforce.
	AllowUnlimited bool
	Registries     []Registry
	ImagesAllowed  []string // patterns, see CheckImage; none = every image
	ImagesDenied   []string
	ImagesShared   Sharing

	Exec      []string // patterns of workloads in which operators may open programs; none = nobody may
	Operators []Operator

	paths map[string]int
}

// Wasm says which modules may run.
type Wasm struct {
	Files        []string // that file: URLs may name
	Addresses    bool     // http, https and oci URLs, by their digest
	Capabilities uint32   // that a module may have
	MemoryMiB    uint32   // greatest memory of one instance
}

// Process is one host binary that may run.
type Process struct {
	Path      string
	Digests   [][32]byte // sha256 of the file; empty only with AnyDigest
	AnyDigest bool
	Users     []User // the first is the default
	Arguments bool   // the specification may pass arguments
	Variables bool   // the specification may set environment variables
	Ports     []Range
}

// User is an account a process may run as.
type User struct {
	Name     string
	UID, GID uint32
}

// Range is a range of ports, both ends included.
type Range struct{ First, Last uint16 }

// Empty is the policy of a host without a file: nothing may run.
func Empty() *Policy {
	return &Policy{Instances: InstancesDefault, LogRate: LogRateDefault, PortMin: PortMinDefault, MeshdUID: -1}
}

// Load reads the file from a trusted place. An absent file gives an error for which errors.Is
// reports fs.ErrNotExist.
func Load(path string, owners trust.Users) (*Policy, error) {
	file, _, err := owners.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content := make([]byte, syntax.SourceSizeMax+1)
	n := 0
	for n < len(content) {
		read, err := file.Read(content[n:])
		n += read
		if err != nil || read == 0 {
			break
		}
	}
	return Parse(path, content[:n])
}

func (p *Policy) process(path string) *Process {
	if i, listed := p.paths[path]; listed {
		return &p.Processes[i]
	}
	return nil
}

// Capacity is the smaller of what the host has and what the policy gives away.
func capAt(limit, host uint32) uint32 {
	if limit == 0 {
		limit = math.MaxUint32
	}
	return min(limit, host)
}

// Capacity is what instances may use on a host that has the given amounts.
func (p *Policy) Capacity(hostMillicores, hostMiB uint32) (millicores, mebibytes uint32) {
	return capAt(p.CPUMillicores, hostMillicores), capAt(p.MemoryMiB, hostMiB)
}
