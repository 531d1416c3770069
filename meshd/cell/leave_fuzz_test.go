package cell

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzParseLeave: a LEAVE request means what it says, or nothing.
func FuzzParseLeave(f *testing.F) {
	f.Add([]byte{0, 30})
	f.Add([]byte{0, 30, leaveForce | leaveAbandon})
	f.Add([]byte{0, 30, 4})
	f.Fuzz(func(t *testing.T, payload []byte) {
		drain, flags, ok := parseLeave(payload)
		if !ok {
			if drain != 0 || flags != 0 {
				t.Fatalf("%x is refused with %v, %d", payload, drain, flags)
			}
			return
		}
		again := binary.BigEndian.AppendUint16(nil, uint16(drain/time.Second))
		if len(payload) == 3 {
			again = append(again, flags)
		} else if flags != 0 {
			t.Fatalf("%x has the flags %d", payload, flags)
		}
		if string(again) != string(payload) || drain < 0 || flags&^(leaveForce|leaveAbandon) != 0 {
			t.Fatalf("%x became %x", payload, again)
		}
	})
}
