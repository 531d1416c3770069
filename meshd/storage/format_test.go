package storage

import (
	"bytes"
	"errors"
	"testing"
)

func FuzzOpenEnvelope(f *testing.F) {
	f.Add([]byte{}, byte(1))
	f.Add(appendEnvelope(nil, kindPeers, []byte("payload")), byte(kindPeers))
	f.Add(appendEnvelope(appendEnvelope(nil, kindLog), kindLog), byte(kindLog))
	f.Fuzz(func(t *testing.T, data []byte, kind byte) {
		payload, rest, err := openEnvelope(data, "file", kind)
		if err != nil {
			var newer *NewerError
			if !errors.Is(err, ErrDamaged) && !errors.As(err, &newer) {
				t.Fatalf("unexpected kind of error: %v", err)
			}
			return
		}
		if again := append(appendEnvelope(nil, kind, payload), rest...); !bytes.Equal(again, data) {
			t.Fatalf("%x became %x", data, again)
		}
	})
}

func FuzzNextEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 64))
	f.Add(appendEntry(appendEntry(nil, 1, []byte("one")), 2, []byte("two")))
	f.Fuzz(func(t *testing.T, data []byte) {
		for {
			sequence, record, rest, ok := nextEntry(data)
			if !ok {
				return
			}
			if again := append(appendEntry(nil, sequence, record), rest...); !bytes.Equal(again, data) {
				t.Fatalf("%x became %x", data, again)
			}
			data = rest
		}
	})
}

func FuzzValues(f *testing.F) {
	id := identity{cell: 7, machineID: "m"}
	f.Add(id.marshal())
	f.Add(marshalCluster(Cluster{Joined: true}))
	f.Add(marshalPeers(peersNumbered(1)))
	f.Add(marshalIncarnation(5))
	f.Fuzz(func(t *testing.T, data []byte) {
		if id, err := parseIdentity(data); err == nil && !bytes.Equal(id.marshal(), data) {
			t.Errorf("identity %x", data)
		}
		if c, err := parseCluster(data); err == nil && !bytes.Equal(marshalCluster(c), data) {
			t.Errorf("cluster %x", data)
		}
		if p, err := parsePeers(data); err == nil && !bytes.Equal(marshalPeers(p), data) {
			t.Errorf("peers %x", data)
		}
		if n, err := parseIncarnation(data); err == nil && !bytes.Equal(marshalIncarnation(n), data) {
			t.Errorf("incarnation %x", data)
		}
	})
}
