package workload

import "testing"

// FuzzUnits holds numbers with units: what is read is written in a form that reads the same.
func FuzzUnits(f *testing.F) {
	for _, text := range []string{"5m", "500ms", "2h", "1gb", "4294967296mb", "1.5", "500m", "1.", ".5", "0s", "1193h", "-1s", "+1s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, units := range [][]unit{durationUnits, memoryUnits} {
			value, ok := parseUnits(text, units)
			if !ok {
				continue
			}
			if again, ok := parseUnits(formatUnits(value, units), units); !ok || again != value {
				t.Fatalf("%q is %d, written as %q that is %d", text, value, formatUnits(value, units), again)
			}
		}
		value, ok := parseCPU(text)
		if !ok {
			return
		}
		if again, ok := parseCPU(formatCPU(value)); !ok || again != value || value > CPUMillicoresMax {
			t.Fatalf("%q is %d, written as %q that is %d", text, value, formatCPU(value), again)
		}
	})
}
