package wasm

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// FuzzReadSettings holds what runnerd tells a worker.
func FuzzReadSettings(f *testing.F) {
	f.Add([]byte(`{"Workload":"f","MemoryPages":16,"Arguments":["a"],"Volumes":[{"Directory":"/v","Mount":"/m"}]}`))
	f.Add([]byte(`{"MemoryPages":16,"Deterministic":true,"Volumes":[{"Directory":"/v","Mount":"/m"}]}`))
	f.Add([]byte(`{"MemoryPages":16}{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := readSettings(bytes.NewReader(raw))
		if err != nil {
			if strings.Contains(err.Error(), "\n") || s != nil {
				t.Fatalf("%+v beside %q", s, err)
			}
			return
		}
		if s.MemoryPages == 0 || s.MemoryPages > pagesMax || s.Deterministic && len(s.Volumes) > 0 {
			t.Fatalf("%q is taken for %+v", raw, s)
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > settingsSizeMax { // what JSON escapes takes more room
			return
		}
		if second, err := readSettings(bytes.NewReader(again)); err != nil || !reflect.DeepEqual(second, s) {
			t.Fatalf("%+v became %+v, %v", s, second, err)
		}
	})
}
