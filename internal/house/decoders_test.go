package house

import (
	"go/ast"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decoderName is what a function that understands foreign bytes is called here, and decoderInput what it takes.
var (
	decoderName  = regexp.MustCompile(`^(?i:parse|decode|unmarshal|next|split|load|read|receive|restore|scan)`)
	decoderInput = regexp.MustCompile(`^(\[\]byte|string|T|io\.Reader|io\.ReaderAt|\*bufio\.\w+|record\.Record)$`)
)

// decoderCalls are calls that make a decoder of a function whatever it is called: it has a whole file or message, and
// takes it apart.
var decoderCalls = []string{"os.ReadFile", "io.ReadAll", "json.Unmarshal", "json.NewDecoder", "xml.Unmarshal", "xml.NewDecoder",
	"proto.Unmarshal", "bufio.NewScanner", "tar.NewReader", "http.ReadResponse", "fmt.Sscanf", "fmt.Sscan"}

// function is a declared function or method by the name "function" or "Type.function".
type function struct {
	pkg, name, path string
	syntax          *ast.FuncDecl
	imports         map[string]string // packages of this module by the name they have in the file
	test            bool
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

// reach is everything that a function calls, itself or through others, as far as names tell: functions of its package and
// of packages that it names, and all methods of its package that have the name.
func reach(from *function, all map[string][]*function) map[*function]bool {
	reached := map[*function]bool{from: true}
	for queue := []*function{from}; len(queue) > 0; {
		f := queue[0]
		queue = queue[1:]
		visit := func(pkg, name string) {
			for _, next := range all[pkg+" "+name] {
				if !reached[next] && (next.pkg != f.pkg || f.test || !next.test) {
					reached[next] = true
					queue = append(queue, next)
				}
			}
		}
		ast.Inspect(f.syntax.Body, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.Ident:
				visit(f.pkg, n.Name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					if pkg, ours := strings.CutPrefix(f.imports[x.Name], module); ours {
						visit(pkg, n.Sel.Name)
						return false
					}
				}
			}
			return true
		})
	}
	return reached
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

func TestDump(t *testing.T) {
	functions := functionsOf(loadTree(t))
	named := byName(functions)
	held := map[*function][]string{}
	for _, f := range functions {
		if isTarget(f) {
			for r := range reach(f, named) {
				held[r] = append(held[r], f.String())
			}
		}
	}
	_ = maps.Keys(held)
	for _, f := range functions {
		if f.test || !f.isDecoder() || slices.ContainsFunc([]string{"e2e", "bench", "examples", "internal/house", "internal/testreport", "internal/invariants", "runnerd/runnerdtest", "runnerd/image/imagetest", "meshd/netem", "runnerd/sandbox/escape"}, func(p string) bool { return below(f.pkg, p) }) {
			continue
		}
		slices.Sort(held[f])
		var own []string
		for _, h := range held[f] {
			if strings.HasPrefix(h, f.pkg+" ") {
				own = append(own, h[len(f.pkg)+1:])
			}
		}
		other := len(held[f]) - len(own)
		t.Logf("%s %s own=%v other=%d", f.path, f.name, own, other)
	}
}
