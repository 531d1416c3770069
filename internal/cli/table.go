package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints rows in aligned columns, two spaces apart.
type table struct{ writer *tabwriter.Writer }

func newTable(w io.Writer, headings ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(headings...)
	return t
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	fmt.Fprintln(t.writer, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) flush() error { return t.writer.Flush() }

// printable makes one harmless line of a text that came from another machine: no control characters
// that could move the cursor or fake output. Whoever prints more than one line does it with harmlessText.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == 0x2028 || r == 0x2029 ||
			(r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '?'
		}
		return r
	}, text)
}

// harmlessText is Sprintf for a terminal: names that people and other machines chose add no control
// characters and, unless the format has several lines itself, no lines.
func harmlessText(format string, arguments ...any) string {
	text := fmt.Sprintf(format, arguments...)
	if !strings.Contains(format, "\n") {
		return printable(text)
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printable(line)
	}
	return strings.Join(lines, "\n")
}

// orDash shows an empty cell.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// shortID abbreviates a cell id for tables; forget and others accept any unique beginning.
func shortID(id string) string { return id[:min(8, len(id))] }

// duration shows seconds in the two largest units: "3h12m", "45s".
func duration(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
