package syntax

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokenEnd   tokenKind = iota // of the source
	tokenBreak                  // new line or ;
	tokenOpen                   // {
	tokenClose                  // }
	tokenWord
)

// token is one lexical unit. A word keeps its text already unescaped and substituted; raw is what
// stood in the source, for messages.
type token struct {
	kind   tokenKind
	at     Position
	text   string
	raw    string
	quoted bool
	broken bool // an error was reported for it; what it says must not be complained about again
}

func (t token) String() string {
	switch t.kind {
	case tokenEnd:
		return "the end of the file"
	case tokenBreak:
		return "the end of the statement"
	case tokenOpen, tokenClose, tokenWord:
		return shorten(t.raw)
	}
	panic(fmt.Sprintf("syntax: token of unknown kind %d", t.kind))
}

// lexer cuts a source into tokens. The source is known to be valid UTF-8.
type lexer struct {
	source   string
	offset   int
	at       Position
	options  *Options
	expanded int // bytes of variable values put in so far
	errors   Errors
}

func (l *lexer) rest() string { return l.source[l.offset:] }

// advance consumes n bytes, which must end on a character boundary.
func (l *lexer) advance(n int) {
	for _, r := range l.source[l.offset : l.offset+n] {
		if r == '\n' {
			l.at.Line++
			l.at.Column = 1
		} else {
			l.at.Column++
		}
	}
	l.offset += n
}

func (l *lexer) errorf(at Position, format string, arguments ...any) {
	l.errors.Add(Errorf(at, format, arguments...))
}

func (l *lexer) next() token {
	l.skipBlanks()
	rest, at := l.rest(), l.at
	if rest == "" {
		return token{kind: tokenEnd, at: at}
	}
	kind := tokenWord
	switch rest[0] {
	case '\n', ';':
		kind = tokenBreak
	case '{':
		kind = tokenOpen
	case '}':
		kind = tokenClose
	case '"':
		return l.quoted()
	default:
		return l.bare()
	}
	l.advance(1)
	return token{kind: kind, at: at, raw: rest[:1]}
}

// skipBlanks passes blanks, continued lines and comments, but not the end of a line.
func (l *lexer) skipBlanks() {
	for {
		rest := l.rest()
		switch {
		case rest == "":
			return
		case rest[0] == ' ' || rest[0] == '\t':
			l.advance(1)
		case strings.HasPrefix(rest, "\r\n"):
			l.advance(1)
		case strings.HasPrefix(rest, "\\\n"):
			l.advance(2)
		case strings.HasPrefix(rest, "\\\r\n"):
			l.advance(3)
		case rest[0] == '#':
			l.advance(lineLength(rest))
		default:
			return
		}
	}
}

func lineLength(s string) int {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		return i
	}
	return len(s)
}

// bare reads a word without quotes.
func (l *lexer) bare() token {
	start, at := l.offset, l.at
	word := token{kind: tokenWord, at: at}
	var text strings.Builder
	for {
		rest := l.rest()
		if endsBare(rest) {
			break
		}
		if strings.HasPrefix(rest, "${") {
			word.broken = !l.variable(&text) || word.broken
			continue
		}
		r, size := utf8.DecodeRuneInString(rest)
		if problem := bareProblem(r); problem != "" && !word.broken {
			l.errorf(l.at, "%s", problem)
			word.broken = true
		}
		text.WriteString(rest[:size])
		l.advance(size)
	}
	word.text, word.raw = text.String(), l.source[start:l.offset]
	return word
}

// endsBare reports whether a bare word ends before rest.
func endsBare(rest string) bool {
	if rest == "" || strings.IndexByte(" \t\n;{}", rest[0]) >= 0 {
		return true
	}
	for _, end := range [...]string{"\r\n", "\\\n", "\\\r\n"} {
		if strings.HasPrefix(rest, end) {
			return true
		}
	}
	return false
}

// bareProblem says why a character cannot stand in a word without quotes; empty means it can.
func bareProblem(r rune) string {
	switch {
	case r == '"':
		return `unexpected quote inside a word, expected a blank before it or quotes around all of the word`
	case r == '\\':
		return `unexpected backslash, expected double quotes around a word that has one`
	case !printable(r):
		return fmt.Sprintf(`unexpected character %U, expected it as \u{%x} in double quotes`, r, r)
	}
	return ""
}

// printable excludes what an editor or terminal would hide or act upon: such characters have to be
// written as escapes, so that a file does what it looks like.
func printable(r rune) bool {
	return r == ' ' || strconv.IsGraphic(r) && r != '\u00a0' && !blankLike(r)
}

func blankLike(r rune) bool {
	return r == '\u1680' || r >= '\u2000' && r <= '\u200a' || r == '\u202f' || r == '\u205f' || r == '\u3000'
}

// quoted reads a word in double quotes; it must end on its line.
func (l *lexer) quoted() token {
	start, at := l.offset, l.at
	word := token{kind: tokenWord, at: at, quoted: true}
	var text strings.Builder
	l.advance(1)
	for {
		rest := l.rest()
		if rest == "" || rest[0] == '\n' || strings.HasPrefix(rest, "\r\n") {
			l.errorf(at, `quote is never closed, expected " before the end of the line`)
			word.broken = true
			break
		}
		if rest[0] == '"' {
			l.advance(1)
			l.checkBoundary(&word)
			break
		}
		if strings.HasPrefix(rest, "${") {
			word.broken = !l.variable(&text) || word.broken
			continue
		}
		if rest[0] == '\\' {
			word.broken = !l.escape(&text) || word.broken
			continue
		}
		r, size := utf8.DecodeRuneInString(rest)
		if !printable(r) && r != '\t' && !word.broken {
			l.errorf(l.at, `unexpected character %U, expected it as \u{%x}`, r, r)
			word.broken = true
		}
		text.WriteString(rest[:size])
		l.advance(size)
	}
	word.text, word.raw = text.String(), l.source[start:l.offset]
	return word
}

// checkBoundary refuses "a"b and "a""b", which would be read differently by different people.
func (l *lexer) checkBoundary(word *token) {
	rest := l.rest()
	if rest == "" || strings.IndexByte(" \t\r\n;{}", rest[0]) >= 0 {
		return
	}
	if !word.broken {
		r, _ := utf8.DecodeRuneInString(rest)
		l.errorf(l.at, "unexpected %q right after a quoted word, expected a blank", r)
		word.broken = true
	}
}

// escape consumes one backslash sequence inside quotes.
func (l *lexer) escape(text *strings.Builder) bool {
	const expected = `expected one of \" \\ \$ \n \r \t \u{HEX}`
	at, rest := l.at, l.rest()
	if len(rest) > 1 {
		if i := strings.IndexByte(`"\$nrt`, rest[1]); i >= 0 {
			text.WriteByte("\"\\$\n\r\t"[i])
			l.advance(2)
			return true
		}
	}
	if !strings.HasPrefix(rest, `\u{`) {
		l.errorf(at, "unknown escape, %s", expected)
		l.advance(1)
		return false
	}
	l.advance(3)
	digits, _, closed := strings.Cut(l.rest()[:lineLength(l.rest())], "}")
	value, err := strconv.ParseUint(digits, 16, 32)
	if !closed || err != nil || len(digits) > 6 || !utf8.ValidRune(rune(value)) || value > utf8.MaxRune {
		l.errorf(at, `bad character escape, expected \u{HEX} with the number of a Unicode character`)
		return false
	}
	text.WriteRune(rune(value))
	l.advance(len(digits) + 1)
	return true
}

// variable consumes ${NAME} and writes its value.
func (l *lexer) variable(text *strings.Builder) bool {
	at := l.at
	l.advance(2)
	line := l.rest()[:lineLength(l.rest())]
	name, _, closed := strings.Cut(line, "}")
	if !closed || !ValidVariable(name) {
		l.errorf(at, "bad variable, expected ${NAME} with letters, digits and _ in the name")
		if closed { // so that its } is not taken for the end of a block
			l.advance(len(name) + 1)
		}
		return false
	}
	l.advance(len(name) + 1)
	value, set := l.options.Variables[name]
	if !set {
		l.errorf(at, "variable %s is not set, expected a value for it%s", name, l.options.UnsetHint)
		return false
	}
	if l.options.Used != nil {
		l.options.Used(name)
	}
	if !utf8.ValidString(value) {
		l.errorf(at, "variable %s holds bytes that are not text, expected UTF-8", name)
		return false
	}
	if l.expanded += len(value); l.expanded > ExpandedSizeMax {
		l.errorf(at, "values of variables take more than %d bytes, expected less", ExpandedSizeMax)
		return false
	}
	text.WriteString(value)
	return true
}

// ValidVariable reports whether name can be used as ${name}: a letter or _, then up to 63 letters,
// digits and _.
func ValidVariable(name string) bool {
	for i, r := range []byte(name) {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// shorten makes a piece of source fit for a message.
func shorten(raw string) string {
	const lengthMax = 40
	if utf8.RuneCountInString(raw) <= lengthMax {
		return raw
	}
	return string([]rune(raw)[:lengthMax-3]) + "..."
}
