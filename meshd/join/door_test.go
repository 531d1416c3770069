package join

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/seal"
)

func TestD1_DoorKeyText(t *testing.T) {
	door := DoorKey(cluster)
	if door == cluster || door.IsZero() || door == DoorKey(seal.Key{9}) {
		t.Fatal("door key is not a key of its own")
	}
	text := FormatDoorKey(door)
	if text != goldenDoorKey {
		t.Errorf("door key %s, want %s", text, goldenDoorKey)
	}
	for name, text := range map[string]string{
		"empty": "", "short": text[1:], "long": text + "a", "upper case": strings.ToUpper(text),
		"digit 1": "1" + text[1:], "newline": text[:51] + "\n", "padding": text[:51] + "=",
		"bits beyond the key": text[:51] + "b", "space": " " + text[1:],
	} {
		_, err := ParseDoorKey(text)
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if len(text) > 20 && strings.Contains(err.Error(), text[5:20]) {
			t.Errorf("%s: the error repeats the secret: %v", name, err)
		}
	}
}

const goldenDoorKey = "3ltcmfij5xs33imtdsxypoidp6niw3nn5f2le6wfgpqsa3dd2yoq"

func TestDoorKeysComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := seal.Key(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key"))
		if got, err := ParseDoorKey(FormatDoorKey(k)); err != nil || got != k {
			t.Fatalf("%v", err)
		}
	})
}

func FuzzDoorKey(f *testing.F) {
	f.Add(FormatDoorKey(DoorKey(cluster)))
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParseDoorKey(text); err == nil && FormatDoorKey(k) != text {
			t.Fatalf("%q has another form", text)
		}
	})
}
