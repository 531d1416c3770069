package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"colloid.net/ipc/attach"
)

// logPrinter prints lines of several replicas. While it gathers, lines wait to be put in the order of their
// times.
type logPrinter struct {
	app        *app
	timestamps bool
	single     bool // one replica was asked for: nothing stands in front of its lines
	terminal   bool
	colour     bool
	gathering  bool
	started    bool // something was printed, or could have been
	waiting    []printedLine
	size       int
	colours    map[instance]int
	open       *source // of a single replica, whose line has no end yet
}

type printedLine struct {
	source *source
	time   int64
	text   []byte
}

func newLogPrinter(a *app, timestamps bool) logPrinter {
	terminal := isTerminal(a.Output)
	return logPrinter{
		app: a, timestamps: timestamps, terminal: terminal, colours: map[instance]int{},
		colour: terminal && a.Variable("NO_COLOR") == "" && a.Variable("TERM") != "dumb",
	}
}

// line takes one line, or part of one. Parts are put together unless a person waits for the single replica's.
func (p *logPrinter) line(s *source, line attach.Line) {
	if p.single && !p.gathering {
		p.print(printedLine{s, line.UnixMilliseconds, line.Text}, !line.Partial)
		return
	}
	s.held = append(s.held, line.Text...)
	if line.Partial && len(s.held) < logsHeld {
		return
	}
	p.add(printedLine{s, line.UnixMilliseconds, s.held})
	s.held = nil
}

// finish prints what a replica that ended has not finished.
func (p *logPrinter) finish(s *source) {
	if len(s.held) > 0 {
		p.add(printedLine{s, s.last, s.held})
		s.held = nil
	}
	if p.open == s {
		p.endLine()
	}
}

// endLine ends a line that has no end yet.
func (p *logPrinter) endLine() {
	if p.open != nil {
		fmt.Fprintln(p.app.Output)
		p.open = nil
	}
}

func (p *logPrinter) add(line printedLine) {
	if !p.gathering {
		p.print(line, true)
		return
	}
	p.waiting = append(p.waiting, line)
	if p.size += len(line.text); p.size > logsGatherMax {
		p.flush()
	}
}

// flush prints what waits and ends the gathering.
func (p *logPrinter) flush() {
	p.endLine()
	p.gathering, p.started, p.size = false, true, 0
	slices.SortStableFunc(p.waiting, func(a, b printedLine) int { return int(a.time - b.time) })
	for _, line := range p.waiting {
		p.print(line, true)
	}
	p.waiting = nil
}

func (p *logPrinter) print(line printedLine, whole bool) {
	var out bytes.Buffer
	if p.open != line.source {
		p.endLine()
		p.front(&out, line)
	}
	if p.terminal {
		out.Write(harmless(line.text))
	} else {
		out.Write(line.text)
	}
	p.open = line.source
	if whole {
		p.open = nil
		out.WriteByte('\n')
	}
	_, _ = p.app.Output.Write(out.Bytes()) // remembered, see output
}

func (p *logPrinter) front(out *bytes.Buffer, line printedLine) {
	if !p.single {
		s := line.source
		name := fmt.Sprintf("%s %s | ", s.replica.name(), s.host)
		if p.colour {
			id := s.replica.instance()
			if _, known := p.colours[id]; !known {
				p.colours[id] = len(p.colours)
			}
			fmt.Fprintf(out, "\x1b[%dm%s\x1b[0m", 31+p.colours[id]%6, name)
		} else {
			out.WriteString(name)
		}
	}
	if p.timestamps {
		at := "-"
		if line.time > 0 {
			at = time.UnixMilli(line.time).UTC().Format("2006-01-02T15:04:05.000Z")
		}
		out.WriteString(at + " ")
	}
}

// harmless leaves of a line what cannot do more to a terminal than show text in colour.
func harmless(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if !bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
		return line
	}
	var out strings.Builder
	coloured := false
	for rest := string(line); rest != ""; {
		if n := colourSequence(rest); n > 0 {
			out.WriteString(rest[:n])
			rest, coloured = rest[n:], true
			continue
		}
		n := strings.IndexByte(rest[1:], 0x1b) + 1
		if n == 0 {
			n = len(rest)
		}
		for i, part := range strings.Split(rest[:n], "\t") {
			if i > 0 {
				out.WriteByte('\t')
			}
			out.WriteString(printable(part))
		}
		rest = rest[n:]
	}
	if coloured {
		out.WriteString("\x1b[0m")
	}
	return []byte(out.String())
}

// colourSequence is the length of ESC [ numbers m at the beginning of a text, 0 if there is none.
func colourSequence(text string) int {
	if !strings.HasPrefix(text, "\x1b[") {
		return 0
	}
	for i := 2; i < len(text) && i < 32; i++ {
		switch c := text[i]; {
		case c == 'm':
			return i + 1
		case c != ';' && (c < '0' || c > '9'):
			return 0
		}
	}
	return 0
}
