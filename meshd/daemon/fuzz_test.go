package daemon

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// FuzzParseForwarded holds the answer of another cell to an invocation: what a caller is told is a result that parses, or
// one line that names workload and cell.
func FuzzParseForwarded(f *testing.F) {
	f.Add(invoke.AppendOutcome([]byte{0, 0}, &invoke.Result{Output: []byte("x")}))
	f.Add([]byte{0})
	f.Add(binary.BigEndian.AppendUint16(nil, uds.ErrorNotFound))
	f.Add(append(binary.BigEndian.AppendUint16(nil, uds.ErrorBusy), sentenceBusy...))
	f.Add(append(binary.BigEndian.AppendUint16(nil, invoke.ErrorIO), "it\ntrapped\x1b[2J"...))
	f.Fuzz(func(t *testing.T, reply []byte) {
		response, again := parseForwarded("f", 0xabc, reply)
		switch {
		case again && response.Status == 0:
			return // the next cell is asked
		case response.Status == uds.OK:
			if _, err := invoke.ParseOutcome(response.Payload); err != nil || again || !bytes.Equal(response.Payload, reply[2:]) {
				t.Fatalf("%x became %+v, %t, %v", reply, response, again, err)
			}
		case response.Status != uds.Error || response.Errno == 0 || again && response.Errno != uds.ErrorBusy:
			t.Fatalf("%x became %+v, %t", reply, response, again)
		case !strings.Contains(response.Text, "f") || !strings.Contains(response.Text, "0000000000000abc") ||
			len(response.Text) > invoke.TextMax+100 ||
			strings.IndexFunc(response.Text, func(r rune) bool { return r < ' ' || r > '~' }) >= 0:
			t.Fatalf("%x became %q", reply, response.Text)
		}
	})
}

// FuzzLoad holds what the kernel says of the host's load: shares of one hundred percent.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"), []byte("MemTotal: 100 kB\nMemAvailable: 40 kB\n"))
	f.Add([]byte("cpu 18446744073709551615 1 1 1"), []byte("MemTotal: 18446744073709551615\nMemAvailable: 1"))
	f.Add([]byte("cpu 9 x -3"), []byte("MemAvailable: 5 MemTotal: 3"))
	f.Fuzz(func(t *testing.T, stat, meminfo []byte) {
		now := parseProcessorTime(stat)
		if share := now.since(processorTime{}); share < 0 || share > 10_000 {
			t.Fatalf("%q is %d of 10000", stat, share)
		}
		if share := now.since(now); share != 0 {
			t.Fatalf("no time is %d of 10000", share)
		}
		if share := parseMemory(meminfo); share < 0 || share > 10_000 {
			t.Fatalf("%q is %d of 10000", meminfo, share)
		}
	})
}

// FuzzDefaultGateway: only a router with a private address that the table names is asked for a port.
func FuzzDefaultGateway(f *testing.F) {
	head := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
	f.Add(head + "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f.Add(head + "eth0\t00000000\t08080808\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f.Add(head + "eth0\t00000000\t0101A8\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
	f.Fuzz(func(t *testing.T, table string) {
		gateway, err := defaultGateway(strings.NewReader(table))
		if (err == nil) != gateway.IsValid() || err == nil && !gateway.IsPrivate() {
			t.Fatalf("%q gives %v, %v", table, gateway, err)
		}
		if err == nil {
			a := gateway.As4()
			raw := []byte{a[3], a[2], a[1], a[0]}
			if !strings.Contains(strings.ToLower(table), hexadecimal(raw)) {
				t.Fatalf("%v is not in %q", gateway, table)
			}
		}
	})
}

func hexadecimal(raw []byte) string {
	const digits = "0123456789abcdef"
	var text []byte
	for _, b := range raw {
		text = append(text, digits[b>>4], digits[b&15])
	}
	return string(text)
}
