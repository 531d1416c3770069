package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A decoder is a function that makes something of bytes from outside: network, ring, socket, file,
// environment, registry, DNS, /proc, command line. Each has a fuzz target that reaches it, or a reason why it
// needs none; both stand in decoders_table_test.go.

// decoderName is what a function that understands foreign bytes is called here, and decoderInput what it
// takes.
var (
	decoderName  = regexp.MustCompile(`^(?i:parse|decode|unmarshal|next|split|load|read|receive|restore|scan)`)
	decoderInput = regexp.MustCompile(`^(\[\]byte|string|T|io\.Reader|io\.ReaderAt|\*bufio\.\w+|record\.Record)$`)
)

// decoderCalls are calls that make a decoder of a function whatever it is called: it has a whole file or
// message, and takes it apart.
var decoderCalls = []string{"os.ReadFile", "io.ReadAll", "json.Unmarshal", "json.NewDecoder", "xml.Unmarshal", "xml.NewDecoder",
	"proto.Unmarshal", "bufio.NewScanner", "tar.NewReader", "http.ReadResponse", "fmt.Sscanf", "fmt.Sscan"}

// function is a declared function or method by the name "function" or "Type.function".
type function struct {
	pkg, name, path string
	syntax          *ast.FuncDecl
	imports         map[string]string // packages of this module by the name they have in the file
	test            bool
	uses            []string // "package name" of what is named in it, nil until it is asked
}

func (f *function) String() string { return f.pkg + " " + f.name }

// functionsOf lists what is declared with a body.
func functionsOf(files []file) (all []*function) {
	for _, f := range files {
		if f.generated {
			continue
		}
		imports := map[string]string{}
		for key, path := range f.imports() {
			name, _, _ := strings.Cut(key, " ")
			imports[name] = path
		}
		for _, declaration := range f.syntax.Decls {
			if d, ok := declaration.(*ast.FuncDecl); ok && d.Body != nil {
				all = append(all, &function{pkg: f.pkg, name: receiver(d) + d.Name.Name, path: f.path, syntax: d, imports: imports,
					test: f.test})
			}
		}
	}
	return all
}

// isDecoder: it is called like one and takes bytes, or it calls what only decoders call.
func (f *function) isDecoder() bool {
	if isReader(f.syntax) {
		return false
	}
	if decoderName.MatchString(f.syntax.Name.Name) {
		for _, parameter := range f.syntax.Type.Params.List {
			if decoderInput.MatchString(types.ExprString(parameter.Type)) {
				return true
			}
		}
	}
	found := false
	ast.Inspect(f.syntax.Body, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok && slices.Contains(decoderCalls, types.ExprString(call.Fun)) {
			found = true
		}
		return !found
	})
	return found
}

// isReader: Read of io.Reader is given room, not bytes.
func isReader(d *ast.FuncDecl) bool {
	return d.Recv != nil && d.Name.Name == "Read" && len(d.Type.Params.List) == 1 && d.Type.Results.NumFields() == 2 &&
		types.ExprString(d.Type.Params.List[0].Type) == "[]byte"
}

// reach is everything that a function calls, itself or through others, as far as names tell: functions of its
// package and of packages that it names, and all methods of its package that have the name.
func reach(from *function, all map[string][]*function) map[*function]bool {
	reached := map[*function]bool{from: true}
	for queue := []*function{from}; len(queue) > 0; {
		f := queue[0]
		queue = queue[1:]
		for _, name := range f.names() {
			for _, next := range all[name] {
				if !reached[next] && (next.pkg != f.pkg || f.test || !next.test) {
					reached[next] = true
					queue = append(queue, next)
				}
			}
		}
	}
	return reached
}

// names are the keys of what a function names, once each.
func (f *function) names() []string {
	if f.uses != nil {
		return f.uses
	}
	f.uses = []string{}
	ast.Inspect(f.syntax.Body, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.Ident:
			f.uses = append(f.uses, f.pkg+" "+n.Name)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				if pkg, ours := strings.CutPrefix(f.imports[x.Name], module); ours {
					f.uses = append(f.uses, pkg+" "+n.Sel.Name)
					return false
				}
			}
		}
		return true
	})
	slices.Sort(f.uses)
	f.uses = slices.Compact(f.uses)
	return f.uses
}

// byName groups functions by package and name without the receiver.
func byName(functions []*function) map[string][]*function {
	named := map[string][]*function{}
	for _, f := range functions {
		key := f.pkg + " " + f.syntax.Name.Name
		named[key] = append(named[key], f)
	}
	return named
}

func isTarget(f *function) bool {
	return f.test && strings.HasPrefix(f.name, "Fuzz") && f.syntax.Recv == nil
}

// notShipped are packages whose input comes from tests and developers.
var notShipped = []string{"bench", "e2e", "examples", "internal/house", "internal/invariants", "internal/testreport", "meshd/netem",
	"runnerd/image/imagetest", "runnerd/runnerdtest", "runnerd/sandbox/escape", "cmd/colloid-sim"}

// decodersOf lists the decoders that are shipped, by package and name.
func decodersOf(functions []*function) map[string]*function {
	found := map[string]*function{}
	for _, f := range functions {
		if !f.test && f.isDecoder() && !slices.ContainsFunc(notShipped, func(p string) bool { return below(f.pkg, p) }) {
			found[f.String()] = f
		}
	}
	return found
}

// Whoever writes a function that reads what comes from outside also writes the fuzz target for it.
func TestEveryDecoderHasAFuzzTarget(t *testing.T) {
	functions := functionsOf(loadTree(t))
	named := byName(functions)
	decoders := decodersOf(functions)
	listed := map[string]bool{}
	for pkg, targets := range fuzzed {
		for name, list := range targets {
			target := slices.IndexFunc(functions, func(f *function) bool { return isTarget(f) && f.pkg == pkg && f.name == name })
			if target < 0 {
				t.Errorf("fuzzed: %s has no target %s", pkg, name)
				continue
			}
			reached := reach(functions[target], named)
			for decoder := range strings.FieldsSeq(list) {
				f := decoders[pkg+" "+decoder]
				listed[pkg+" "+decoder] = true
				switch {
				case f == nil:
					t.Errorf("fuzzed: %s has no decoder %s", pkg, decoder)
				case !reached[f]:
					t.Errorf("fuzzed: %s of %s does not come to %s", name, pkg, decoder)
				}
			}
		}
	}
	for name, reason := range unfuzzed {
		f := decoders[name]
		switch {
		case f == nil:
			t.Errorf("unfuzzed: there is no decoder %s (any more)", name)
		case listed[name]:
			t.Errorf("unfuzzed: %s has a target", name)
		case reason == "":
			t.Errorf("unfuzzed: %s: why?", name)
		}
		if to, hands := strings.CutPrefix(reason, handsOn); f != nil && hands && !mentions(f, to) {
			t.Errorf("unfuzzed: %s does not hand on to %s", name, to)
		}
		listed[name] = true
	}
	for name, f := range decoders {
		if !listed[name] {
			t.Errorf("%s: %s reads what comes from outside: write a fuzz target that reaches it and list both in fuzzed, "+
				"or say in unfuzzed why not", f.path, name)
		}
	}
}

// mentions reports whether a function uses a name.
func mentions(f *function, name string) bool {
	found := false
	ast.Inspect(f.syntax.Body, func(node ast.Node) bool {
		if identifier, ok := node.(*ast.Ident); ok && identifier.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// failures are what a test calls when something is wrong.
var failures = []string{"Fatal", "Fatalf", "Error", "Errorf", "Fail", "FailNow", "MakeFuzz"}

// A target that only waits for a panic overlooks everything else that can be wrong with what came out.
func TestEveryFuzzTargetChecksSomething(t *testing.T) {
	functions := functionsOf(loadTree(t))
	named := byName(slices.DeleteFunc(slices.Clone(functions), func(f *function) bool { return !f.test }))
	targets := 0
	for _, f := range functions {
		if !isTarget(f) {
			continue
		}
		targets++
		if !checksSomething(f, named) {
			t.Errorf("%s: %s checks nothing: hold it to what comes out, such as that it is written as it was read", f.path, f.name)
		}
	}
	if targets < 50 {
		t.Errorf("only %d targets found", targets)
	}
}

// checksSomething looks into the function that is given to f.Fuzz, and into the functions of tests that it
// calls.
func checksSomething(f *function, helpers map[string][]*function) bool {
	found := false
	ast.Inspect(f.syntax.Body, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return !found
		}
		if selector, ok := call.Fun.(*ast.SelectorExpr); !ok || selector.Sel.Name != "Fuzz" {
			return !found
		}
		ast.Inspect(call, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.SelectorExpr:
				found = found || slices.Contains(failures, n.Sel.Name)
			case *ast.Ident:
				for _, helper := range helpers[f.pkg+" "+n.Name] {
					found = found || slices.ContainsFunc(failures, func(name string) bool { return mentions(helper, name) })
				}
			}
			return !found
		})
		return false
	})
	return found
}

func TestDecodersAreFound(t *testing.T) {
	f := source(t, `package p
func parseA(raw []byte) int { return parseB(string(raw)) }
func parseB[T ~string](raw T) int { return 0 }
func parseC(n int) int { return n }
func look() { text, _ := os.ReadFile("x"); _ = text }
func (r *R) Read(p []byte) (int, error) { return 0, nil }
func (r *R) receive(p []byte) { r.count++ }
func other(raw []byte) {}
`, false)
	target := source(t, `package p
	func FuzzA(f *testing.F) { f.Fuzz(func(t *testing.T, raw []byte) { if parseA(raw) > 0 { t.Fatal(raw) } }) }
	func FuzzNothing(f *testing.F) { f.Fatal(); f.Fuzz(func(t *testing.T, raw []byte) { parseA(raw) }) }
`, true)
	functions := functionsOf([]file{f, target})
	var found []string
	for name := range decodersOf(functions) {
		found = append(found, name)
	}
	slices.Sort(found)
	if want := []string{"p R.receive", "p look", "p parseA", "p parseB"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	targets := slices.DeleteFunc(slices.Clone(functions), func(f *function) bool { return !isTarget(f) })
	if len(targets) != 2 || !checksSomething(targets[0], nil) || checksSomething(targets[1], nil) {
		t.Errorf("targets %v", targets)
	}
	reached := reach(targets[0], byName(functions))
	for _, f := range functions {
		if want := f.name == "parseA" || f.name == "parseB" || f.name == "FuzzA"; reached[f] != want {
			t.Errorf("%s is reached: %t", f, reached[f])
		}
	}
}

func source(t *testing.T, text string, test bool) file {
	t.Helper()
	positions := token.NewFileSet()
	syntax, err := parser.ParseFile(positions, "p.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file{path: "p/p.go", pkg: "p", syntax: syntax, positions: positions, test: test}
}
