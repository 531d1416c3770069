package netem

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Transfer is what came of sending.
type Transfer struct {
	Bytes int64
	Took  time.Duration
	Busy  float64 // share of the processors' time that was used meanwhile, 0 to 1; 1 means that they were the limit
}

// Rate is in MB/s, of a million bytes.
func (t Transfer) Rate() float64 { return float64(t.Bytes) / t.Took.Seconds() / 1e6 }

// String gives figures for people.
func (t Transfer) String() string {
	return fmt.Sprintf("%.2f MB/s (%.1f MB in %.1f s, processors busy %.0f %%)",
		t.Rate(), float64(t.Bytes)/1e6, t.Took.Seconds(), t.Busy*100)
}

// moment is a time and what the processors had done by then.
type moment struct {
	at          time.Time
	idle, total uint64 // ticks of all processors
}

func sample() moment {
	m := moment{at: time.Now()}
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks [8]uint64 // user nice system idle iowait irq softirq steal
	_, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4],
		&ticks[5], &ticks[6], &ticks[7])
	if err != nil {
		return m
	}
	m.idle = ticks[3] + ticks[4]
	for _, n := range ticks {
		m.total += n
	}
	return m
}

func (m moment) until(end moment, bytes int64) Transfer {
	t := Transfer{Bytes: bytes, Took: end.at.Sub(m.at)}
	if total := end.total - m.total; total > 0 {
		t.Busy = 1 - float64(end.idle-m.idle)/float64(total)
	}
	return t
}
