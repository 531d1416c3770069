package syntax

import (
	"fmt"
	"strings"
)

// ErrorsMax bounds how many errors one reading of a file reports; later ones are dropped, because the
// first ones have to be mended anyway and often explain the rest.
const ErrorsMax = 10

// Position is a place in a source. Line and Column count from 1; a column is one character (not one
// byte), a tab too. The zero Position means "no place".
type Position struct {
	File         string
	Line, Column int
}

// String gives "file:line:column".
func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Before reports whether p stands earlier in the same file than q.
func (p Position) Before(q Position) bool {
	return p.Line < q.Line || p.Line == q.Line && p.Column < q.Column
}

// Error is one complaint about one place.
type Error struct {
	Position
	Text string
}

// Error gives "file:line:column: text" on one line.
func (e *Error) Error() string { return e.Position.String() + ": " + e.Text }

// Errorf makes an Error; at is the Position that every Word and Statement carries. Characters that
// would break the line or command a terminal are replaced, since arguments often come from the file.
func Errorf(at Position, format string, arguments ...any) *Error {
	return &Error{Position: at, Text: strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case !printable(r):
			return '\ufffd'
		}
		return r
	}, fmt.Sprintf(format, arguments...))}
}

// Errors are the complaints about one source, in the order they were found, at most ErrorsMax.
type Errors []*Error

// Add appends e unless the list is full; a nil e is ignored.
func (l *Errors) Add(e *Error) {
	if e != nil && len(*l) < ErrorsMax {
		*l = append(*l, e)
	}
}

// Full reports whether further errors would be dropped, so that a reader may stop.
func (l Errors) Full() bool { return len(l) >= ErrorsMax }

// Err is the list as an error, nil when it is empty.
func (l Errors) Err() error {
	if len(l) == 0 {
		return nil
	}
	return l
}

// Error gives one line per complaint.
func (l Errors) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the single errors to errors.As and errors.Is.
func (l Errors) Unwrap() []error {
	all := make([]error, len(l))
	for i, e := range l {
		all[i] = e
	}
	return all
}
