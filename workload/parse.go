package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"colloid.net/workload/syntax"
)

// Block is one workload as it stood in a file.
type Block struct {
	Kind Kind
	Name string
	Spec *Spec
	File string
	Line int // of the block's first word, from 1
	// Sources are the secrets and files of the block, in its order. Their digest is not in Spec yet.
	Sources []Source
}

// Key is the key under which the block's specification is stored, for instance "spread.web".
func (b Block) Key() string { return Key(b.Kind, b.Name) }

// ParseOptions of Parse. The zero value means a file without variables.
type ParseOptions struct {
	Variables map[string]string // values of ${NAME}; a variable that is used but not here is an error
	Used      func(name string) // called for each use of a variable that is set; nil = nobody asks
}

// Parse reads a file of the configuration language (docs/configuration.md); file is its name for
// messages. The whole file is read and every block checked before anything is returned, so that a
// caller never writes the first half of a broken file (F156). The error is of type syntax.Errors: up
// to syntax.ErrorsMax complaints in the order of the file, each "file:line:column: what was expected"
// on one line. There are either blocks or an error, never both; they keep the order of the file.
func Parse(file string, source []byte, options ...ParseOptions) ([]Block, error) {
	var chosen ParseOptions
	for _, o := range options {
		chosen = o
	}
	tree, err := syntax.ParseWith(file, source, syntax.Options{
		Variables: chosen.Variables,
		Used:      chosen.Used,
		UnsetHint: ", for instance with --set NAME=VALUE",
	})
	if err != nil {
		return nil, err
	}
	var (
		blocks []Block
		errors syntax.Errors
		names  = make(map[string]syntax.Statement)
	)
	for i := range tree {
		if errors.Full() {
			break
		}
		if block, ok := parseBlock(&tree[i], names, &errors); ok {
			blocks = append(blocks, block)
		}
	}
	if len(errors) > 0 {
		slices.SortStableFunc(errors, func(a, b *syntax.Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, errors
	}
	return blocks, nil
}

// parseBlock reads one statement of the file itself. names has the blocks seen so far.
func parseBlock(s *syntax.Statement, names map[string]syntax.Statement, errors *syntax.Errors) (Block,
	bool) {
	block := Block{Kind: Kind(s.Name), Spec: &Spec{Replicas: 1}, File: s.File, Line: s.Line}
	usage := fmt.Sprintf("%s NAME { ... }", s.Name)
	switch {
	case !ValidKind(block.Kind):
		errors.Add(syntax.Errorf(s.Position, "unknown block %s, expected spread, stateful or wasm", s.Name))
		return block, false
	case len(s.Arguments) == 0:
		errors.Add(syntax.Errorf(s.End, "%s has no name, expected %s", s.Name, usage))
		return block, false
	case len(s.Arguments) > 1:
		errors.Add(syntax.Errorf(s.Arguments[1].Position, "unexpected %s, expected %s", s.Arguments[1].Text,
			usage))
	case !s.Block:
		errors.Add(syntax.Errorf(s.End, "%s has no body, expected %s", s.Name, usage))
		return block, false
	}
	name := s.Arguments[0]
	block.Name = name.Text
	if !ValidName(block.Name) {
		errors.Add(syntax.Errorf(name.Position, "%q is no workload name, expected 1 to %d of a-z, 0-9 and -",
			block.Name, NameLengthMax))
	} else if block.Name[0] == '-' && !name.Quoted { // Format quotes those that a cluster holds from before
		errors.Add(syntax.Errorf(name.Position, "name %s begins with -, which every command takes for a flag: expected "+
			"another first character, or the name in quotes", block.Name))
	} else if first, taken := names[block.Name]; taken {
		errors.Add(syntax.Errorf(name.Position,
			"name %s is already used by the %s block of line %d, expected another",
			block.Name, first.Name, first.Line))
	} else {
		names[block.Name] = *s
	}
	r := blockReader{kind: block.Kind, spec: block.Spec, errors: errors}
	r.spec.Stateful = block.Kind == KindStateful
	r.read(s)
	block.Sources = r.sources
	return block, len(*errors) == 0
}

// blockReader fills one Spec from the statements of one block.
type blockReader struct {
	kind   Kind
	spec   *Spec
	errors *syntax.Errors
	failed bool
	first  map[string]syntax.Position   // where a key was first given
	places map[string][]syntax.Position // of all statements of a key, one per entry of its list
	env    []variable

	sources []Source
}

type variable struct {
	name, text string
	at         syntax.Position
}

func (r *blockReader) fail(at syntax.Position, format string, arguments ...any) {
	r.failed = true
	r.errors.Add(syntax.Errorf(at, format, arguments...))
}

// read reads all statements, then checks what they make together.
func (r *blockReader) read(block *syntax.Statement) {
	r.first = make(map[string]syntax.Position)
	r.places = make(map[string][]syntax.Position)
	for i := range block.Body {
		if r.errors.Full() {
			return
		}
		r.statement(&block.Body[i])
	}
	slices.SortFunc(r.env, func(a, b variable) int { return cmp.Compare(a.name, b.name) })
	for _, v := range r.env {
		r.spec.Environment = append(r.spec.Environment, v.text)
		r.places["env"] = append(r.places["env"], v.at)
	}
	r.checkSources()
	if r.failed {
		return // what is missing now is likely what failed
	}
	if r.spec.Runtime == RuntimeProcess {
		for i := range r.spec.Ports {
			if port := &r.spec.Ports[i]; port.Host == 0 {
				port.Host = port.Container // it shares the host's network
			}
		}
	}
	if r.spec.Runtime == 0 {
		r.fail(block.Position, "%s block says nothing to run, expected %s", r.kind, runnable(r.kind))
		return
	}
	if p := checkKind(r.kind, r.spec); p != nil {
		r.problem(block, *p)
		return
	}
	checked := *r.spec
	if len(checked.Environment) > 0 && EncodedSize(&checked) > SpecSizeMax {
		checked.Environment, checked.EnvironmentDigest = nil, [32]byte{1} // the command line seals them (F83)
	}
	for _, p := range checked.check() {
		r.problem(block, p)
	}
}

// runnable names the keys that choose a runtime in a block of the kind.
func runnable(kind Kind) string {
	switch kind {
	case KindWasm:
		return "module URL"
	case KindSpread:
		return "image REFERENCE or process PATH"
	}
	return "image REFERENCE, process PATH or module URL"
}

// problem reports what Validate found at the statement that caused it, else at the block.
func (r *blockReader) problem(block *syntax.Statement, p problem) {
	at, text := block.Position, p.text
	if places := r.places[p.key]; p.index < len(places) {
		at = places[p.index]
	} else if first, ok := r.first[p.key]; ok {
		at = first
	}
	if p.key != "" {
		text = p.key + ": " + text
	}
	r.fail(at, "%s", text)
}

func (r *blockReader) statement(s *syntax.Statement) {
	key, known := keys[s.Name]
	if !known {
		r.fail(s.Position, "unknown key %s, expected %s", s.Name, suggestion(s.Name))
		return
	}
	if s.Block {
		r.fail(s.Position, "%s has a block, expected %s %s", s.Name, s.Name, key.usage)
		return
	}
	if first, given := r.first[s.Name]; given && !key.repeats {
		r.fail(s.Position, "%s is given twice (before in line %d), expected it once", s.Name, first.Line)
		return
	} else if !given {
		r.first[s.Name] = s.Position
	}
	if len(s.Arguments) < key.least {
		r.fail(s.End, "%s lacks an argument, expected %s %s", s.Name, s.Name, key.usage)
		return
	}
	if len(s.Arguments) > key.most {
		extra := s.Arguments[key.most]
		r.fail(extra.Position, "unexpected %s, expected %s %s", syntax.Quote(extra.Text), s.Name, key.usage)
		return
	}
	key.read(r, s)
}

// suggestion names the key that was likely meant, or all keys.
func suggestion(name string) string {
	names := make([]string, 0, len(keys))
	for known := range keys {
		names = append(names, known)
	}
	slices.Sort(names)
	for _, known := range names {
		if distanceAtMostOne(name, known) {
			return known
		}
	}
	return "one of " + strings.Join(names, ", ")
}

// distanceAtMostOne reports whether one insertion, deletion, replacement or swap of neighbours turns a
// into b.
func distanceAtMostOne(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	swapped := len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
	return len(a) <= 1 && len(b) <= 1 || swapped
}
