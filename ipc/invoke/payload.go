package invoke

import "encoding/binary"

// AppendCall adds the payload of the command WASM_INVOKE on meshd's command socket: the name of the
// workload, then the invocation without its id.
func AppendCall(dst []byte, workload string, v *Invocation) []byte {
	dst = append(append(dst, byte(len(workload))), workload...)
	return v.appendBody(dst)
}

// ParseCall reads what AppendCall wrote. The arguments point into payload.
func ParseCall(payload []byte) (workload string, v *Invocation, err error) {
	r := reader{rest: payload}
	workload = string(r.take(int(r.u8())))
	v = r.invocation(0)
	if r.bad || len(r.rest) > 0 || len(workload) == 0 {
		return "", nil, ErrFrame
	}
	return workload, v, nil
}

// AppendOutcome adds the payload of the reply to WASM_INVOKE: status, logical clock, nanoseconds in the
// module, digest of the key-value snapshot, output. Errors are replies of their own.
func AppendOutcome(dst []byte, s *Result) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.Status))
	dst = binary.BigEndian.AppendUint64(dst, s.Clock)
	dst = binary.BigEndian.AppendUint64(dst, s.Nanos)
	return append(append(dst, s.Snapshot[:]...), s.Output...)
}

// ParseOutcome reads what AppendOutcome wrote.
func ParseOutcome(payload []byte) (*Result, error) {
	r := reader{rest: payload}
	s := &Result{Status: int32(r.u32()), Clock: r.u64(), Nanos: r.u64()}
	copy(s.Snapshot[:], r.take(len(s.Snapshot)))
	s.Output = r.remaining(OutputMax)
	if r.bad {
		return nil, ErrFrame
	}
	return s, nil
}
