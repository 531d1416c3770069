package main

import (
	"bufio"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	testName = regexp.MustCompile(`^(Test|Fuzz)[A-Z]`)
	idInName = regexp.MustCompile(`(SAFE|AVAIL|CONV|EXEC|STREAM|RES|BOOT|F)([0-9]+)`)
	idInText = regexp.MustCompile(`\b(SAFE|AVAIL|CONV|EXEC|STREAM|RES|BOOT|F)-?([0-9]+)\b`)
)

// stories is where the simulator's scenario files are. What stands in the test data of other packages is no
// story.
const stories = "meshd/sim/testdata/"

// scan returns the tests and stories of a tree by the ids they hold. What does not run holds nothing: a test
// in another's comment or text, in a file that no build on Linux includes, without a statement that calls
// anything, or that skips whatever happens. A benchmark is no test.
func scan(tree fs.FS) (map[string][]string, error) {
	found := make(map[string][]string)
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (d.Name()[0] == '.' || d.Name()[0] == '_'):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "testdata/"):
			return tests(tree, path, func(name string) {
				hold(found, ids(idInName, name), filepath.Dir(path)+"."+name)
			})
		case strings.HasPrefix(path, stories) && strings.HasSuffix(path, ".txt"):
			return lines(tree, path, func(line string) {
				if strings.HasPrefix(line, "#") {
					hold(found, ids(idInText, line), path)
				}
			})
		}
		return nil
	})
	return found, err
}

// tests names the tests of a file that run.
func tests(tree fs.FS, path string, each func(name string)) error {
	raw, err := fs.ReadFile(tree, path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return err
	}
	if !built(file) {
		return nil
	}
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if ok && f.Recv == nil && testName.MatchString(f.Name.Name) && runs(f) {
			each(f.Name.Name)
		}
	}
	return nil
}

// built reports whether a build for Linux, on one of the processors that are supported, includes a file.
func built(file *ast.File) bool {
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, comment := range group.List {
			if !constraint.IsGoBuild(comment.Text) {
				continue
			}
			expression, err := constraint.Parse(comment.Text)
			return err == nil && (expression.Eval(tagsOf("amd64")) || expression.Eval(tagsOf("arm64")))
		}
	}
	return true
}

func tagsOf(processor string) func(tag string) bool {
	return func(tag string) bool {
		return tag == processor || tag == "linux" || tag == "unix" || tag == "gc" || strings.HasPrefix(tag, "go1.")
	}
}

// runs reports whether a test takes what it reports to, does not begin with leaving, and calls something.
func runs(f *ast.FuncDecl) bool {
	if f.Body == nil || len(f.Body.List) == 0 || f.Type.Params.NumFields() != 1 {
		return false
	}
	calls := false
	for i, statement := range f.Body.List {
		if leaves(statement) {
			return calls && i > 0
		}
		ast.Inspect(statement, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			calls = calls || ok && !isAbout(call, "Helper", "Parallel", "Log", "Logf")
			return true
		})
	}
	return calls
}

// leaves reports a statement that ends a test without a condition.
func leaves(statement ast.Stmt) bool {
	switch s := statement.(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && isAbout(call, "Skip", "Skipf", "SkipNow")
	}
	return false
}

func isAbout(call *ast.CallExpr, methods ...string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	for _, method := range methods {
		if ok && selector.Sel.Name == method {
			return true
		}
	}
	return false
}

func lines(tree fs.FS, path string, each func(line string)) error {
	file, err := tree.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		each(scanner.Text())
	}
	return scanner.Err()
}
