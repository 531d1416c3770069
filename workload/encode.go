package workload

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Encode gives the canonical binary form of s, at most SpecSizeMax bytes. It refuses what Validate
// refuses. Layout, all numbers big-endian:
//
//	runtime 1, flags 1, replicas 2, cpu millicores 2, memory 2,
//	image length 1, image,
//	port count 1, each: host 2, container 2,
//	vip count 1, each: address 16, port 2,
//	capabilities 4,
//	volume count 1, each: name length 1, name, mount length 1, mount path,
//	records (type 1, length 1, value) of tlv.go, ascending; a default has none
func Encode(s *Spec) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return appendSpec(make([]byte, 0, SpecSizeMax), s), nil
}

// EncodedSize gives the length that Encode would need, also for a Spec that is too long or otherwise
// invalid, so that the command line can say by how much.
func EncodedSize(s *Spec) int { return len(appendSpec(nil, s)) }

// appendSpec writes s without any check of it. Lengths that do not fit their byte are cut; Validate
// has refused them before the result matters.
func appendSpec(dst []byte, s *Spec) []byte {
	memory, flags := s.MemoryMiB, s.flags()
	if flags&flagMemoryUnits != 0 {
		memory /= memoryUnitMiB
	}
	dst = append(dst, byte(s.Runtime), flags)
	dst = binary.BigEndian.AppendUint16(dst, s.Replicas)
	dst = binary.BigEndian.AppendUint16(dst, uint16(min(s.CPUMillicores, math.MaxUint16)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(min(memory, math.MaxUint16)))
	dst = appendText(dst, s.Image)
	dst = append(dst, byte(len(s.Ports)))
	for _, port := range s.Ports {
		dst = binary.BigEndian.AppendUint16(dst, port.Host)
		dst = binary.BigEndian.AppendUint16(dst, port.Container)
	}
	dst = append(dst, byte(len(s.VIPs)))
	for _, vip := range s.VIPs {
		dst = append(dst, vip.Address[:]...)
		dst = binary.BigEndian.AppendUint16(dst, vip.Port)
	}
	dst = binary.BigEndian.AppendUint32(dst, s.Capabilities)
	dst = append(dst, byte(len(s.Volumes)))
	for _, volume := range s.Volumes {
		dst = appendText(dst, volume.Name)
		dst = appendText(dst, volume.MountPath)
	}
	w := tlvWriter{dst: dst}
	w.informative(s)
	for _, record := range s.UnknownInformative { // types above those of informative, below tlvCritical
		w.dst = append(w.dst, record...)
	}
	w.critical(s)
	return w.dst
}

func (s *Spec) flags() byte {
	var flags byte
	for _, f := range []struct {
		set bool
		bit byte
	}{
		{s.Stateful, flagStateful},
		{len(s.VIPs) > 0, flagRequiresVIP},
		{s.Deterministic, flagDeterministic},
		{s.NoFailover, flagNoFailover},
		{s.Oversubscribe, flagOversubscribe},
		{s.MemoryMiB > math.MaxUint16, flagMemoryUnits},
	} {
		if f.set {
			flags |= f.bit
		}
	}
	return flags
}

// appendText writes a length byte and the text.
func appendText(dst []byte, text string) []byte {
	text = text[:min(len(text), tlvSizeMax)]
	return append(append(dst, byte(len(text))), text...)
}

// tlvWriter writes records in ascending order.
type tlvWriter struct {
	dst  []byte
	last byte
}

func (w *tlvWriter) put(kind byte, value []byte) {
	if kind < w.last {
		panic(fmt.Sprintf("workload: record %d written after %d", kind, w.last))
	}
	w.last = kind
	value = value[:min(len(value), tlvSizeMax)]
	w.dst = append(w.dst, kind, byte(len(value)))
	w.dst = append(w.dst, value...)
}

// putIf writes a record only for a value that is not the default.
func (w *tlvWriter) putIf(present bool, kind byte, value ...byte) {
	if present {
		w.put(kind, value)
	}
}

func (w *tlvWriter) putEach(kind byte, list []string) {
	for _, text := range list {
		w.put(kind, []byte(text))
	}
}

// informative writes the records that a reader may skip.
func (w *tlvWriter) informative(s *Spec) {
	u16, u32 := binary.BigEndian.AppendUint16, binary.BigEndian.AppendUint32
	w.putIf(s.ReplicationFactor != 0, tlvReplicationFactor, s.ReplicationFactor)
	w.putIf(s.ImageDigest != [32]byte{}, tlvImageDigest, s.ImageDigest[:]...)
	if options, any := vipOptions(s.VIPs); any {
		w.put(tlvVIPOptions, options)
	}
	if bitmap, any := portProtocols(s.Ports); any {
		w.put(tlvPortProtocols, bitmap)
	}
	w.putEach(tlvArgument, s.Arguments)
	w.putIf(s.EnvironmentDigest != [32]byte{}, tlvEnvironmentDigest, s.EnvironmentDigest[:]...)
	if !s.Health.isZero() {
		w.put(tlvHealth, appendHealth(nil, &s.Health))
	}
	if s.Update != (Update{}) {
		value := u16([]byte{s.Update.UnavailableMax}, s.Update.MinReadySeconds)
		value = append(value, boolByte(s.Update.AutoRollback))
		if s.Update.DeadlineSeconds != 0 {
			value = u16(value, s.Update.DeadlineSeconds)
		}
		w.put(tlvUpdate, value)
	}
	w.putIf(s.Failover != FailoverAP, tlvFailover, byte(s.Failover))
	w.putIf(s.Architecture != "", tlvArchitecture, []byte(s.Architecture)...)
	if s.signed() {
		w.put(tlvSignature, slices.Concat(s.SignatureKeyID[:], s.Signature[:]))
	}
	w.putIf(s.StopGraceSeconds != 0, tlvStopGrace, u16(nil, s.StopGraceSeconds)...)
	w.putIf(s.User != "", tlvUser, []byte(s.User)...)
	w.putIf(s.PidsMax != 0 || s.DiskMiB != 0, tlvLimits, u32(u32(nil, s.PidsMax), s.DiskMiB)...)
	w.putIf(s.Priority != 0, tlvPriority, byte(s.Priority))
	w.putIf(s.CPUMillicores > math.MaxUint16, tlvCPU, u32(nil, s.CPUMillicores)...)
}

// critical writes the records without which the wrong thing would run.
func (w *tlvWriter) critical(s *Spec) {
	w.putEach(tlvCommand, s.Command)
	for _, c := range s.Constraints {
		value := appendText([]byte{boolByte(c.Negate)}, c.Label)
		w.put(tlvConstraint, append(value, c.Value...))
	}
	w.putIf(s.ReadOnlyRoot, tlvReadOnlyRoot)
	w.putEach(tlvEnvironment, s.Environment)
	w.putIf(s.Restart != RestartAlways, tlvRestart, byte(s.Restart))
	var targets []byte
	any := false
	for _, vip := range s.VIPs {
		targets = binary.BigEndian.AppendUint16(targets, vip.Target)
		any = any || vip.Target != 0
	}
	w.putIf(any, tlvVIPTargets, targets...)
}

func (s *Spec) signed() bool {
	return s.SignatureKeyID != [4]byte{} || s.Signature != [64]byte{}
}

func (h *Health) isZero() bool {
	return h.Kind == HealthDefault && h.Port == 0 && h.Path == "" && len(h.Command) == 0 &&
		h.IntervalMillisecond == 0 && h.TimeoutMillisecond == 0 && h.FailuresMax == 0
}

func appendHealth(dst []byte, h *Health) []byte {
	dst = append(dst, byte(h.Kind))
	dst = binary.BigEndian.AppendUint16(dst, h.Port)
	dst = binary.BigEndian.AppendUint32(dst, h.IntervalMillisecond)
	dst = binary.BigEndian.AppendUint32(dst, h.TimeoutMillisecond)
	dst = append(dst, h.FailuresMax)
	if h.Kind != HealthExec {
		return append(dst, h.Path...)
	}
	for _, word := range h.Command {
		dst = appendText(dst, word)
	}
	return dst
}

// vipOptions packs mode, path and protocol of each VIP; any is false when all are defaults.
func vipOptions(vips []VIP) (options []byte, any bool) {
	for _, vip := range vips {
		option := vip.Mode&3 | vip.Path&3<<2 | byte(vip.Protocol)&1<<4
		options = append(options, option)
		any = any || option != 0
	}
	return options, any
}

// portProtocols gives a bit per port; any is false when all are TCP.
func portProtocols(ports []Port) (bitmap []byte, any bool) {
	bitmap = make([]byte, (len(ports)+7)/8)
	for i, port := range ports {
		if port.Protocol == UDP {
			bitmap[i/8] |= 1 << (i % 8)
			any = true
		}
	}
	return bitmap, any
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
