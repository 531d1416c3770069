package state

import (
	"net/netip"
	"reflect"
	"testing"

	"colloid.net/meshd/wire"
)

// TestF101_EndpointsTellTheAddressOfEachInstance, as far as the value has room.
func TestF101_EndpointsTellTheAddressOfEachInstance(t *testing.T) {
	e := CellEndpoint{KeyHash: 9, Address: netip.MustParseAddr("192.0.2.1"), Instances: []EndpointInstance{
		{Slot: 0, Digest: 1, State: EndpointReady, Ports: []uint16{8080}, Pod: netip.MustParseAddr("10.64.0.2")},
		{Slot: 0, Digest: 2, State: EndpointStarting}, {Slot: 1, Digest: 1, Pod: netip.MustParseAddr("fd00::2"), State: EndpointReady},
	}}
	got, err := ParseCellEndpoint(AppendCellEndpoint(nil, e))
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%v: %v became %v", err, e, got)
	}
	full := CellEndpoint{}
	for slot := range EndpointInstancesMax + 4 {
		full.Instances = append(full.Instances, EndpointInstance{Slot: uint16(slot), State: EndpointReady,
			Ports: make([]uint16, 12), Pod: netip.MustParseAddr("10.64.0.2")})
	}
	raw := AppendCellEndpoint(nil, full)
	if got, err := ParseCellEndpoint(raw); err != nil || len(raw) > wire.ValueMax || len(got.Instances) == 0 {
		t.Errorf("%d bytes, %d instances: %v", len(raw), len(got.Instances), err)
	}
	stranger := appendTLV(AppendCellEndpoint(nil, CellEndpoint{}), tagPod, make([]byte, 26))
	if _, err := ParseCellEndpoint(stranger); err == nil {
		t.Error("the address of no instance was accepted")
	}
}
