package wire

import (
	"strings"
	"testing"
)

// FuzzParseCellID: an id has one form (F61), for the store and for people.
func FuzzParseCellID(f *testing.F) {
	for _, text := range []string{CellID(1).String(), strings.Repeat("0", 16), strings.Repeat("f", 16), "0A00000000000000", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseCellID(text)
		fast, ok := DecodeCellID([]byte(text))
		if (err == nil) != ok || ok && (fast != id || id.String() != text || !id.Valid()) {
			t.Fatalf("%q: %v, %v and %v, %t", text, id, err, fast, ok)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q", err)
		}
		if (ParseEmpty([]byte(text)) == nil) != (text == "") {
			t.Fatalf("%q is taken for nothing", text)
		}
	})
}
