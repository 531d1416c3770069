package workload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of Decode that a caller may want to tell apart.
var (
	// ErrTruncated means that the bytes end inside a field.
	ErrTruncated = errors.New("workload: specification is cut short")
	// ErrNotCanonical means that the bytes say something that Encode writes differently.
	ErrNotCanonical = errors.New("workload: specification is not in canonical form")
	// ErrCritical means that the specification needs a newer version (F82).
	ErrCritical = errors.New("workload: specification has a critical record unknown to this version, " +
		"upgrade colloid on this cell")
)

// Decode reads what Encode wrote, from an untrusted source. It accepts exactly the bytes that Encode
// can write: Encode(Decode(b)) equals b. The result does not alias encoded.
func Decode(encoded []byte) (*Spec, error) {
	if len(encoded) > SpecSizeMax {
		return nil, fmt.Errorf("workload: specification has %d bytes, expected at most %d", len(encoded),
			SpecSizeMax)
	}
	var s Spec
	r := reader{rest: encoded}
	s.decodeFixed(&r)
	if r.short {
		return nil, ErrTruncated
	}
	last := -1
	for len(r.rest) > 0 {
		kind, value := r.byte(), r.text()
		if r.short {
			return nil, ErrTruncated
		}
		if int(kind) < last || int(kind) == last && tlvKnown(kind) && !tlvRepeats(kind) {
			return nil, ErrNotCanonical
		}
		last = int(kind)
		if err := s.decodeTLV(kind, value); err != nil {
			return nil, err
		}
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	// Defaults spelled out, flags that contradict the rest and reserved bits all show here.
	if !bytes.Equal(appendSpec(make([]byte, 0, SpecSizeMax), &s), encoded) {
		return nil, ErrNotCanonical
	}
	return &s, nil
}

// decodeFixed reads everything in front of the records.
func (s *Spec) decodeFixed(r *reader) {
	s.Runtime = Runtime(r.byte())
	flags := r.byte()
	s.Stateful = flags&flagStateful != 0
	s.Deterministic = flags&flagDeterministic != 0
	s.NoFailover = flags&flagNoFailover != 0
	s.Oversubscribe = flags&flagOversubscribe != 0
	s.Replicas = r.uint16()
	s.CPUMillicores = uint32(r.uint16())
	s.MemoryMiB = uint32(r.uint16())
	if flags&flagMemoryUnits != 0 {
		s.MemoryMiB *= memoryUnitMiB
	}
	s.Image = string(r.text())
	for range r.count(4) {
		s.Ports = append(s.Ports, Port{Host: r.uint16(), Container: r.uint16()})
	}
	for range r.count(18) {
		vip := VIP{Address: [16]byte(r.take(16))}
		vip.Port = r.uint16()
		s.VIPs = append(s.VIPs, vip)
	}
	s.Capabilities = r.uint32()
	for range r.count(2) {
		volume := Volume{Name: string(r.text())}
		volume.MountPath = string(r.text())
		s.Volumes = append(s.Volumes, volume)
	}
}

// decodeTLV reads one record. A known record of the wrong length is an error; one that spells out a
// default is found by the comparison at the end of Decode.
func (s *Spec) decodeTLV(kind byte, value []byte) error {
	if !tlvKnown(kind) {
		return s.keepUnknown(kind, value)
	}
	r := reader{rest: value}
	switch kind {
	case tlvReplicationFactor:
		s.ReplicationFactor = r.byte()
	case tlvImageDigest:
		s.ImageDigest = [32]byte(r.take(32))
	case tlvVIPOptions:
		for i := range s.VIPs {
			option := r.byte()
			s.VIPs[i].Mode, s.VIPs[i].Path = option&3, option>>2&3
			s.VIPs[i].Protocol = Protocol(option >> 4 & 1)
		}
	case tlvPortProtocols:
		bitmap := r.take((len(s.Ports) + 7) / 8)
		for i := range s.Ports {
			s.Ports[i].Protocol = Protocol(bitmap[i/8] >> (i % 8) & 1)
		}
	case tlvArgument:
		s.Arguments = append(s.Arguments, r.remainder())
	case tlvEnvironmentDigest:
		s.EnvironmentDigest = [32]byte(r.take(32))
	case tlvHealth:
		s.Health.decode(&r)
	case tlvUpdate:
		s.Update = Update{UnavailableMax: r.byte(), MinReadySeconds: r.uint16(), AutoRollback: r.byte() != 0}
		if len(r.rest) > 0 {
			s.Update.DeadlineSeconds = r.uint16()
		}
	case tlvFailover:
		s.Failover = Failover(r.byte())
	case tlvArchitecture:
		s.Architecture = r.remainder()
	case tlvSignature:
		s.SignatureKeyID, s.Signature = [4]byte(r.take(4)), [64]byte(r.take(64))
	default:
		s.decodeExtension(kind, &r)
	}
	if r.short || len(r.rest) > 0 {
		return fmt.Errorf("workload: record %d of the specification has %d bytes, which is not its length",
			kind, len(value))
	}
	return nil
}

// decodeExtension is the second half of decodeTLV.
func (s *Spec) decodeExtension(kind byte, r *reader) {
	switch kind {
	case tlvStopGrace:
		s.StopGraceSeconds = r.uint16()
	case tlvUser:
		s.User = r.remainder()
	case tlvLimits:
		s.PidsMax, s.DiskMiB = r.uint32(), r.uint32()
	case tlvPriority:
		s.Priority = int8(r.byte())
	case tlvCPU:
		s.CPUMillicores = r.uint32()
	case tlvCommand:
		s.Command = append(s.Command, r.remainder())
	case tlvConstraint:
		c := Constraint{Negate: r.byte() != 0}
		c.Label = string(r.text())
		c.Value = r.remainder()
		s.Constraints = append(s.Constraints, c)
	case tlvReadOnlyRoot:
		s.ReadOnlyRoot = true
	case tlvEnvironment:
		s.Environment = append(s.Environment, r.remainder())
	case tlvRestart:
		s.Restart = RestartPolicy(r.byte())
	case tlvVIPTargets:
		for i := range s.VIPs {
			s.VIPs[i].Target = r.uint16()
		}
	default:
		panic(fmt.Sprintf("workload: known record %d has no decoder", kind))
	}
}

// keepUnknown stores a record of a newer version, or refuses the specification.
func (s *Spec) keepUnknown(kind byte, value []byte) error {
	if kind&tlvCritical != 0 {
		return fmt.Errorf("%w (record %d)", ErrCritical, kind)
	}
	record := append([]byte{kind, byte(len(value))}, value...)
	s.UnknownInformative = append(s.UnknownInformative, record)
	return nil
}

func (h *Health) decode(r *reader) {
	h.Kind = HealthKind(r.byte())
	h.Port = r.uint16()
	h.IntervalMillisecond = r.uint32()
	h.TimeoutMillisecond = r.uint32()
	h.FailuresMax = r.byte()
	if h.Kind != HealthExec {
		h.Path = r.remainder()
		return
	}
	for len(r.rest) > 0 {
		h.Command = append(h.Command, string(r.text()))
	}
}

// reader takes fields off the front of a slice. Once it runs short it gives zeros and remembers it.
type reader struct {
	rest  []byte
	short bool
}

var zeros [tlvSizeMax]byte

// take gives the next n bytes, n <= tlvSizeMax, or n zeros when there are fewer.
func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.short, r.rest = true, nil
		return zeros[:n]
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) text() []byte   { return r.take(int(r.byte())) }

func (r *reader) remainder() string { return string(r.take(len(r.rest))) }

// count reads the number of entries of a list and makes sure that the bytes for them are there, each
// entry having at least size, so that a claimed count never drives a loop.
func (r *reader) count(size int) int {
	n := int(r.byte())
	if n*size > len(r.rest) {
		r.short, r.rest = true, nil
		return 0
	}
	return n
}
