package syntax

import (
	"strings"
	"unicode/utf8"
)

// Limits of one source.
const (
	// SourceSizeMax bounds the bytes of a source.
	SourceSizeMax = 1 << 20
	// DepthMax bounds how deep blocks nest; a statement of the file itself has depth 0.
	DepthMax = 8
	// StatementsMax bounds the statements of a source, those in blocks included.
	StatementsMax = 1 << 16
	// ExpandedSizeMax bounds the bytes that values of variables add, all together.
	ExpandedSizeMax = 1 << 20
)

// Word is one argument of a statement.
type Word struct {
	Position
	Text   string // unescaped, variables replaced
	Quoted bool   // it stood in quotes: an owner of a file kind may want keywords bare
}

// Statement is a name with its arguments and perhaps a body in braces.
type Statement struct {
	Position
	Name      string
	Arguments []Word
	Block     bool // braces were there, perhaps empty
	Body      []Statement
	End       Position // of the end of the statement: the place where a missing argument was expected
}

// Options of ParseWith. The zero value means a file without variables.
type Options struct {
	Variables map[string]string // values of ${NAME}
	// Used is called for each use of a variable that is set; nil = nobody asks.
	Used      func(name string)
	UnsetHint string // put behind the complaint about an unset variable, for instance how to set it
}

// Parse reads a source without variables; see ParseWith.
func Parse(file string, source []byte) ([]Statement, error) {
	return ParseWith(file, source, Options{})
}

// ParseWith reads a source. The file name is only used in positions. The error, if any, is of type
// Errors; the tree is then nil, because what follows a broken line is guesswork.
func ParseWith(file string, source []byte, options Options) ([]Statement, error) {
	start := Position{File: file, Line: 1, Column: 1}
	if len(source) > SourceSizeMax {
		return nil, Errors{Errorf(start, "file has %d bytes, expected at most %d", len(source), SourceSizeMax)}
	}
	text := strings.TrimPrefix(string(source), "\ufeff")
	if valid := validPrefix(text); valid < len(text) {
		l := lexer{source: text, at: start}
		l.advance(valid)
		return nil, Errors{Errorf(l.at, "byte 0x%02x is not text, expected UTF-8", text[valid])}
	}
	p := parser{lexer: lexer{source: text, at: start, options: &options}}
	p.step()
	tree := p.statements(0)
	if err := p.errors.Err(); err != nil {
		return nil, err
	}
	return tree, nil
}

func validPrefix(text string) int {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && size <= 1 {
			return i
		}
		i += size
	}
	return len(text)
}

// parser is a recursive descent over the tokens with one token of look-ahead.
type parser struct {
	lexer
	token token
	count int // statements read
	stop  bool
}

func (p *parser) step() { p.token = p.next() }

// statements reads until the closing brace of the block (depth > 0) or the end of the source, which is
// left as the current token.
func (p *parser) statements(depth int) []Statement {
	var list []Statement
	for !p.stop && !p.errors.Full() {
		switch p.token.kind {
		case tokenEnd:
			return list
		case tokenBreak:
			p.step()
		case tokenClose:
			if depth > 0 {
				return list
			}
			if len(p.errors) == 0 { // else it is likely the echo of an earlier complaint
				p.errorf(p.token.at, "unexpected }, expected a statement: no block is open here")
			}
			p.step()
		case tokenOpen:
			p.errorf(p.token.at, "unexpected {, expected it on the line of the statement it belongs to")
			p.step()
		case tokenWord:
			if p.count++; p.count > StatementsMax {
				p.errorf(p.token.at, "too many statements, expected at most %d", StatementsMax)
				p.stop = true
				return list
			}
			list = append(list, p.statement(depth))
		}
	}
	return list
}

func (p *parser) statement(depth int) Statement {
	name := p.token
	if !name.broken && (name.quoted || name.text != name.raw || !validName(name.text)) {
		p.errorf(name.at, "unexpected %s, expected the name of a statement", name)
	}
	s := Statement{Position: name.at, Name: name.text}
	for p.step(); p.token.kind == tokenWord; p.step() {
		word := Word{Position: p.token.at, Text: p.token.text, Quoted: p.token.quoted}
		s.Arguments = append(s.Arguments, word)
	}
	s.End = p.token.at
	if p.token.kind == tokenOpen {
		p.body(&s, depth)
	}
	return s
}

// body reads { ... } and checks that the statement ends behind it.
func (p *parser) body(s *Statement, depth int) {
	open := p.token.at
	if depth >= DepthMax {
		p.errorf(open, "blocks nest too deep, expected at most %d levels", DepthMax)
		p.stop = true
		return
	}
	s.Block = true
	p.step()
	s.Body = p.statements(depth + 1)
	if p.token.kind != tokenClose {
		if p.token.kind == tokenEnd && len(p.errors) == 0 {
			p.errorf(p.token.at, "unexpected end of the file, expected } for the block opened at %d:%d",
				open.Line, open.Column)
		}
		return
	}
	s.End = p.token.at
	p.step()
	if p.token.kind == tokenWord || p.token.kind == tokenOpen {
		p.errorf(p.token.at, "unexpected %s behind }, expected a new line or ;", p.token)
	}
}

// validName reports whether a bare word can name a statement: a letter, then letters, digits, . _ -
func validName(name string) bool {
	for i, r := range []byte(name) {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		other := r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return name != ""
}
