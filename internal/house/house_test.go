package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// file is one parsed Go file of the tree.
type file struct {
	path      string // relative to the root
	pkg       string // import path without the module
	syntax    *ast.File
	positions *token.FileSet
	lines     int
	generated bool
	test      bool
}

func loadTree(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var files []file
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := loadFile(root, path)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files found under %s", len(files), root)
	}
	return files
}

func loadFile(root, path string) (file, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	relative, err := filepath.Rel(root, path)
	if err != nil {
		return file{}, err
	}
	positions := token.NewFileSet()
	syntax, err := parser.ParseFile(positions, relative, text, parser.ParseComments)
	if err != nil {
		return file{}, err
	}
	return file{path: relative, pkg: filepath.ToSlash(filepath.Dir(relative)), syntax: syntax, positions: positions,
		lines: strings.Count(string(text), "\n"), generated: ast.IsGenerated(syntax),
		test: strings.HasSuffix(relative, "_test.go")}, nil
}

func (f file) imports() map[string]string { // path by the name it has in the file
	found := map[string]string{}
	for _, spec := range f.syntax.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(fmt.Sprintf("%s: import %s: %v", f.path, spec.Path.Value, err))
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if name == "v2" {
			name = filepath.Base(filepath.Dir(path))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		found[name+" "+path] = path
	}
	return found
}

func TestImportsPointDown(t *testing.T) {
	for _, f := range loadTree(t) {
		layer, path := layerOf(f.pkg)
		if layer < 0 {
			t.Errorf("%s: package %s is in no layer: add it to layers in internal/house/rules_test.go", f.path, f.pkg)
			continue
		}
		for _, imported := range f.imports() {
			target, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if problem := checkImport(f, layer, path, target); problem != "" {
				t.Errorf("%s imports %s: %s", f.path, target, problem)
			}
		}
	}
}

func checkImport(f file, layer int, path, target string) string {
	for _, rule := range forbidden {
		if !below(f.pkg, rule.from) || f.test && rule.from != "ipc" {
			continue
		}
		for _, to := range rule.to {
			if below(target, to) && !below(f.pkg, to) {
				return rule.reason
			}
		}
	}
	targetLayer, targetPath := layerOf(target)
	if targetLayer < layer || targetPath == path || f.test {
		return ""
	}
	return fmt.Sprintf("imports point down, but layer %q is not below %q", targetPath, path)
}

func TestLayersNameWhatExists(t *testing.T) {
	files := loadTree(t)
	for _, paths := range layers {
		for _, path := range paths {
			if !slices.ContainsFunc(files, func(f file) bool { return below(f.pkg, path) }) {
				t.Errorf("layers: there is no package %s: remove it from internal/house/rules_test.go", path)
			}
		}
	}
}

func TestProtocolPartsDoNoIO(t *testing.T) {
	for _, f := range loadTree(t) {
		if f.test || !slices.ContainsFunc(pure, func(p string) bool { return below(f.pkg, p) }) {
			continue
		}
		names := map[string]string{}
		for key, path := range f.imports() {
			name, _, _ := strings.Cut(key, " ")
			names[name] = path
			if impure(path) {
				t.Errorf("%s imports %s: a protocol part does no I/O, take what you need as an argument", f.path, path)
			}
		}
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			if problem := impureNode(node, names); problem != "" {
				t.Errorf("%s: %s", f.positions.Position(node.Pos()), problem)
			}
			return true
		})
	}
}

func impure(path string) bool {
	if slices.Contains(pureDespite, path) {
		return false
	}
	return slices.ContainsFunc(impureImports, func(i string) bool {
		return i == path || strings.HasSuffix(i, "/") && strings.HasPrefix(path, i)
	})
}

func impureNode(node ast.Node, names map[string]string) string {
	switch n := node.(type) {
	case *ast.GoStmt:
		return "a protocol part starts no goroutine"
	case *ast.SelectStmt:
		return "a protocol part waits for nothing"
	case *ast.SelectorExpr:
		pkg, ok := n.X.(*ast.Ident)
		if !ok || pkg.Obj != nil {
			return ""
		}
		if fits := constantsOnly[names[pkg.Name]]; fits != nil && !fits.MatchString(n.Sel.Name) {
			return fmt.Sprintf("%s.%s: of %s a protocol part uses constants only", pkg.Name, n.Sel.Name, pkg.Name)
		}
		if slices.Contains(impureCalls[names[pkg.Name]], n.Sel.Name) {
			return fmt.Sprintf("%s.%s: time and randomness come in as arguments", pkg.Name, n.Sel.Name)
		}
	}
	return ""
}

// The command line takes part in the cluster through its cell's socket and never as a cell of its own:
// nothing about it can reach health tracking or a routing table (BOOT-3 as F9 repairs it).
func TestBOOT3_F9_CommandLineAndLauncherOpenNoNetworkSocket(t *testing.T) {
	for _, f := range loadTree(t) {
		if f.test || !slices.ContainsFunc(noNetwork, func(p string) bool { return below(f.pkg, p) }) {
			continue
		}
		for _, path := range f.imports() {
			if path == "net" || strings.HasPrefix(path, "net/") && !slices.Contains(pureDespite, path) {
				t.Errorf("%s imports %s: it talks to the local daemon through ipc/uds only", f.path, path)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range loadTree(t) {
		if !f.test {
			documented[f.pkg] = documented[f.pkg] || f.syntax.Doc != nil
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment: say what its nouns are, who owns what, what is bounded", pkg)
		}
	}
}

func TestNothingIsLeftForLater(t *testing.T) {
	words := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}
	for _, f := range loadTree(t) {
		for _, group := range f.syntax.Comments {
			for _, word := range words {
				if strings.Contains(group.Text(), word) {
					t.Errorf("%s: %s: finish it or leave it out", f.positions.Position(group.Pos()), word)
				}
			}
		}
	}
}

func TestFunctionsAndFilesStayShort(t *testing.T) {
	needed := map[string]int{}
	for _, f := range loadTree(t) {
		if f.generated {
			continue
		}
		if f.lines > fileLinesMax {
			needed[f.path] = f.lines
		}
		if f.test {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := f.positions.Position(function.End()).Line - f.positions.Position(function.Pos()).Line + 1
			if lines > functionLinesMax {
				needed[f.path+" "+function.Name.Name] = lines
			}
		}
	}
	for name, lines := range needed {
		if allowed, ok := lengthExceptions[name]; !ok {
			t.Errorf("%s has %d lines: take it apart", name, lines)
		} else if lines > allowed {
			t.Errorf("%s has grown from %d to %d lines: exceptions only shrink", name, allowed, lines)
		}
	}
	for name, allowed := range lengthExceptions {
		if lines := needed[name]; lines < allowed {
			t.Errorf("lengthExceptions: %s may be lowered from %d to %d, or removed", name, allowed, lines)
		}
	}
}

// The rules themselves are tested on what they must refuse, so that a slip in a table shows.
func TestRulesRefuseWhatTheyShould(t *testing.T) {
	for _, c := range []struct {
		from, to string
		allowed  bool
	}{
		{"meshd/crdt", "meshd/wire", true}, {"meshd/wire", "meshd/crdt", false}, {"meshd/swim", "meshd/gossip", false},
		{"meshd/cell", "ipc/uds", true}, {"ipc/uds", "meshd/wire", false}, {"runnerd", "meshd/wire", false},
		{"runnerd/policy", "workload", true}, {"meshd/cell", "runnerd/policy", false}, {"cmd/meshd", "runnerd", false},
		{"cmd/meshd", "meshd/reactor", true}, {"internal/cli", "meshd/control", false}, {"workload", "ipc/uds", false},
		{"meshd/cell", "meshd/reactor", false}, {"cmd/colloid", "internal/cli", true},
	} {
		layer, path := layerOf(c.from)
		problem := checkImport(file{pkg: c.from}, layer, path, c.to)
		if (problem == "") != c.allowed {
			t.Errorf("%s imports %s: %q, want allowed=%v", c.from, c.to, problem, c.allowed)
		}
	}
	for path, want := range map[string]bool{"os": true, "os/exec": true, "net": true, "net/http": true,
		"net/netip": false, "golang.org/x/sys/unix": true, "math/rand": true, "math/rand/v2": false, "time": false} {
		if impure(path) != want {
			t.Errorf("impure(%s) = %v", path, !want)
		}
	}
}
