package wire

import (
	"bytes"
	"testing"
)

// What a relay adds leaves no datagram too long, and everything comes back as it was (F36, RES-2).
func TestF36_RelayHeadFitsEveryDatagram(t *testing.T) {
	if RelayHeadSize+HeaderSize+SealedPayloadMax+TrailerSize != DatagramMax {
		t.Fatalf("a relayed datagram has up to %d bytes", RelayHeadSize+HeaderSize+SealedPayloadMax+TrailerSize)
	}
	inner := bytes.Repeat([]byte{7}, DatagramMax-RelayHeadSize)
	for _, kind := range []Type{RelayFirst, RelayLast} {
		datagram := append(AppendRelay(nil, kind, 42), inner...)
		gotKind, target, got, err := ParseRelay(datagram)
		if err != nil || gotKind != kind || target != 42 || !bytes.Equal(got, inner) || !IsRelay(datagram) {
			t.Errorf("%v: %v, %v, %d bytes, %v", kind, gotKind, target, len(got), err)
		}
		if kind.Known() {
			t.Errorf("%v is also the type of a header", kind)
		}
	}
}

func FuzzParseRelay(f *testing.F) {
	f.Add(append(AppendRelay(nil, RelayFirst, 1), make([]byte, HeaderSize+TrailerSize)...))
	f.Add(append(AppendRelay(nil, RelayLast, 2), make([]byte, DatagramMax-RelayHeadSize)...))
	f.Add([]byte{Version, byte(RelayFirst)})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		kind, target, inner, err := ParseRelay(datagram)
		if err != nil {
			return
		}
		if len(datagram) > DatagramMax || !target.Valid() {
			t.Fatalf("accepted %d bytes for %v", len(datagram), target)
		}
		if again := append(AppendRelay(nil, kind, target), inner...); !bytes.Equal(again, datagram) {
			t.Fatalf("%x became %x", datagram, again)
		}
	})
}
