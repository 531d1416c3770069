package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// undocumented lists exported names without a doc comment, as "file name". It may only shrink.
var undocumented = []string{}

// Whoever uses a name from another package learns from its comment what it means, in which unit and
// within which bounds. One comment may serve a group of constants, or a group of methods whose interface
// says it.
func TestExportedNamesHaveComments(t *testing.T) {
	var found []string
	for _, f := range loadTree(t) {
		if f.test || f.generated || f.syntax.Name.Name == "main" {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			for _, name := range uncommented(declaration) {
				found = append(found, f.path+" "+name)
			}
		}
	}
	for _, name := range found {
		if !slices.Contains(undocumented, name) {
			t.Errorf("%s is exported and has no doc comment", name)
		}
	}
	for _, name := range undocumented {
		if !slices.Contains(found, name) {
			t.Errorf("undocumented: %s is not needed any more", name)
		}
	}
}

// uncommented returns the exported names of a declaration that nothing explains.
func uncommented(declaration ast.Decl) []string {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && !speaksForItself(d) {
			return []string{receiver(d) + d.Name.Name}
		}
	case *ast.GenDecl:
		if d.Tok == token.IMPORT {
			return nil
		}
		return uncommentedGroup(d)
	}
	return nil
}

func uncommentedGroup(d *ast.GenDecl) (names []string) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && s.Comment == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				names = append(names, s.Name.Name)
			}
		case *ast.ValueSpec:
			if s.Doc != nil || s.Comment != nil || d.Doc != nil {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// speaksForItself: methods of well-known interfaces, and methods that only a package itself can reach.
func speaksForItself(d *ast.FuncDecl) bool {
	wellKnown := []string{"String", "Error", "Unwrap", "Is", "Read", "Write", "Close", "Len", "Less", "Swap", "Push", "Pop"}
	if d.Recv == nil {
		return false
	}
	return slices.Contains(wellKnown, d.Name.Name) || !ast.IsExported(strings.TrimSuffix(receiver(d), "."))
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	kind := d.Recv.List[0].Type
	for {
		switch k := kind.(type) {
		case *ast.StarExpr:
			kind = k.X
		case *ast.IndexExpr:
			kind = k.X
		case *ast.Ident:
			return k.Name + "."
		default:
			return ""
		}
	}
}

func TestUncommentedNamesAreFound(t *testing.T) {
	source := `package p
type A struct{}
// B is.
type B struct{}
func (a A) Do() {}
func (a *A) String() string { return "" }
func (b hidden) Do() {}
const ( C = 1; D = 2 // units
)
// Both.
var ( E = 1; F = 2 )
func Free[T any]() {}
`
	syntax, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, declaration := range syntax.Decls {
		found = append(found, uncommented(declaration)...)
	}
	if want := []string{"A", "A.Do", "C", "Free"}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}
