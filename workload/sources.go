package workload

import (
	"strconv"
	"strings"

	"colloid.net/workload/syntax"
)

// Origin says where the content of a Source comes from.
type Origin string

// Origins.
const (
	FromFile     Origin = "file"
	FromVariable Origin = "env"
	FromLiteral  Origin = "literal"
)

// Source is a secret or a file of a block whose content the command line still has to fetch: this package
// reads no files.
type Source struct {
	Name   string // of the variable; "" for a file
	Path   string // of the file; "" for a variable
	Mode   uint16 // of the file
	Origin Origin
	From   string // name of the file or variable, or the content itself
	Line   int
}

const secretUsage = "NAME from file FILE|env VARIABLE|literal VALUE"

func readSecret(r *blockReader, s *syntax.Statement) {
	name := s.Arguments[0]
	if !validVariable(name.Text) {
		r.expected(name, "the name of a variable: letters, digits and _")
		return
	}
	source := Source{Name: name.Text, Line: s.Position.Line}
	if !r.origin(s, &source, secretUsage, FromFile, FromVariable, FromLiteral) {
		return
	}
	for _, other := range r.sources {
		if other.Name == source.Name {
			r.fail(name.Position, "secret %s is given twice (before in line %d), expected it once", name.Text, other.Line)
			return
		}
	}
	r.sources = append(r.sources, source)
}

const fileUsage = "/PATH from file FILE|literal TEXT [mode=0400]"

func readFile(r *blockReader, s *syntax.Statement) {
	place := s.Arguments[0]
	if !ValidFilePath(place.Text) {
		r.expected(place, "a clean absolute path outside /proc, /sys and /dev")
		return
	}
	source := Source{Path: place.Text, Mode: FileModeDefault, Line: s.Position.Line}
	if len(s.Arguments) == 5 {
		option := s.Arguments[4]
		text, ok := strings.CutPrefix(option.Text, "mode=")
		mode, err := strconv.ParseUint(text, 8, 16)
		if !ok || err != nil || mode > 0o777 {
			r.expected(option, "mode= and permission bits in octal, as in mode=0440")
			return
		}
		source.Mode = uint16(mode)
	}
	if !r.origin(s, &source, fileUsage, FromFile, FromLiteral) {
		return
	}
	for _, other := range r.sources {
		if other.Path == source.Path {
			r.fail(place.Position, "file %s is given twice (before in line %d), expected it once", place.Text, other.Line)
			return
		}
	}
	r.sources = append(r.sources, source)
}

// origin reads "from KIND VALUE" behind the name.
func (r *blockReader) origin(s *syntax.Statement, source *Source, usage string, kinds ...Origin) bool {
	if from := s.Arguments[1]; from.Text != "from" {
		r.expected(from, usage)
		return false
	}
	for _, kind := range kinds {
		if s.Arguments[2].Text == string(kind) {
			source.Origin, source.From = kind, s.Arguments[3].Text
			if source.From == "" && kind != FromLiteral {
				r.fail(s.Arguments[3].Position, "from %s \"\" names nothing, expected %s %s", kind, s.Name, usage)
				return false
			}
			return true
		}
	}
	r.expected(s.Arguments[2], usage)
	return false
}

// checkSources checks what secrets and files make together with the rest of the block.
func (r *blockReader) checkSources() {
	if len(r.sources) == 0 {
		return
	}
	if at, given := r.first["env_digest"]; given {
		r.fail(at, "env_digest besides secret or file, expected one: the digest is computed from them")
	}
	for _, source := range r.sources {
		for _, v := range r.env {
			if source.Name != "" && v.name == source.Name {
				r.fail(v.at, "variable %s is a secret too (line %d), expected it once", v.name, source.Line)
			}
		}
	}
}
