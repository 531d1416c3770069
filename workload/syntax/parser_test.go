package syntax

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// render writes a tree in one canonical line form, so that tests compare strings.
func render(list []Statement) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(s.Name)
		for _, word := range s.Arguments {
			if word.Quoted {
				fmt.Fprintf(&b, " %q", word.Text)
			} else {
				b.WriteString(" " + word.Text)
			}
		}
		if s.Block {
			b.WriteString(" {" + render(s.Body) + "}")
		}
	}
	return b.String()
}

func TestF156_SyntaxTree(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{"", ""},
		{"\n\n;;\n", ""},
		{"\ufeffa b", "a b"},
		{"a\r\nb c\r\n", "a; b c"},
		{"a # comment { } \"\nb", "a; b"},
		{"#only a comment", ""},
		{"load host:1#key", "load host:1#key"},
		{`a "x y" "" "q\"\\\$\n\r\t\u{1F600}"`, "a \"x y\" \"\" \"q\\\"\\\\$\\n\\r\\t😀\""},
		{"a b \\\n  c\nd", "a b c; d"},
		{"a b\\\r\nc", "a b c"},
		{"a {}", "a {}"},
		{"a { b; c d }; e", "a {b; c d}; e"},
		{"a x {\n b { c {\n}\n }\n}\ne", "a x {b {c {}}}; e"},
		{"a.b-c_9 1", "a.b-c_9 1"},
		{"a $ $x x$ grüße", "a $ $x x$ grüße"},
		{"a ${V}b \"${V}\" x${V}", "a v \"{\nb \"v \\\"{\\n\" xv \"{\n"},
		{`a "\${V}"`, `a "${V}"`},
	} {
		options := Options{Variables: map[string]string{"V": "v \"{\n"}}
		tree, err := ParseWith("f", []byte(test.source), options)
		if err != nil {
			t.Errorf("%q: %v", test.source, err)
		} else if got := render(tree); got != test.want {
			t.Errorf("%q: got %q, want %q", test.source, got, test.want)
		}
	}
}

func TestF156_SyntaxErrorsHavePositions(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{"a {", "f:1:4: unexpected end of the file, expected } for the block opened at 1:3"},
		{"a {\n b\n", "f:3:1: unexpected end of the file, expected } for the block opened at 1:3"},
		{"a\n}", "f:2:1: unexpected }, expected a statement: no block is open here"},
		{"a\n{\n}", "f:2:1: unexpected {, expected it on the line of the statement it belongs to"},
		{"a {} b", "f:1:6: unexpected b behind }, expected a new line or ;"},
		{"9a x", "f:1:1: unexpected 9a, expected the name of a statement"},
		{`"a" x`, `f:1:1: unexpected "a", expected the name of a statement`},
		{"${V} x", "f:1:1: unexpected ${V}, expected the name of a statement"},
		{"a \"x\nb", `f:1:3: quote is never closed, expected " before the end of the line`},
		{`a x"y"`, "f:1:4: unexpected quote inside a word, " +
			"expected a blank before it or quotes around all of the word"},
		{`ü "x"y`, "f:1:1: unexpected ü, expected the name of a statement\n" +
			"f:1:6: unexpected 'y' right after a quoted word, expected a blank"},
		{`a x\y`, "f:1:4: unexpected backslash, expected double quotes around a word that has one"},
		{`a "\q"`, `f:1:4: unknown escape, expected one of \" \\ \$ \n \r \t \u{HEX}`},
		{`a "\u{d800}"`, `f:1:4: bad character escape, expected \u{HEX} with the number of a Unicode character`},
		{"a x\x1b", `f:1:4: unexpected character U+001B, expected it as \u{1b} in double quotes`},
		{"a \"\u202e\"", `f:1:4: unexpected character U+202E, expected it as \u{202e}`},
		{"a\xff", "f:1:2: byte 0xff is not text, expected UTF-8"},
		{"a ${9}", "f:1:3: bad variable, expected ${NAME} with letters, digits and _ in the name"},
		{"x\n  a ${GONE} y", "f:2:5: variable GONE is not set, expected a value for it (--set GONE=VALUE)"},
		{"a ${BAD}", "f:1:3: variable BAD holds bytes that are not text, expected UTF-8"},
		{"grüße ü${GONE}", "f:1:1: unexpected grüße, expected the name of a statement\n" +
			"f:1:8: variable GONE is not set, expected a value for it (--set GONE=VALUE)"},
	} {
		options := Options{Variables: map[string]string{"V": "v", "BAD": "\xff"},
			UnsetHint: " (--set GONE=VALUE)"}
		tree, err := ParseWith("f", []byte(test.source), options)
		if err == nil {
			t.Errorf("%q: accepted as %q", test.source, render(tree))
		} else if err.Error() != test.want {
			t.Errorf("%q: got\n%v\nwant\n%s", test.source, err, test.want)
		}
	}
}

func TestSyntaxPositions(t *testing.T) {
	tree, err := Parse("f", []byte("\n\ta ü \"x\" {\n b c\n}"))
	if err != nil {
		t.Fatal(err)
	}
	a := tree[0]
	b := a.Body[0]
	got := fmt.Sprint(a.Position, a.Arguments[0].Position, a.Arguments[1].Position, a.End, b.Position, b.End)
	if want := "f:2:2 f:2:4 f:2:6 f:4:1 f:3:2 f:3:5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSyntaxBounds(t *testing.T) {
	deep := strings.Repeat("a {\n", DepthMax) + strings.Repeat("}\n", DepthMax)
	if _, err := Parse("f", []byte(deep)); err != nil {
		t.Errorf("depth %d: %v", DepthMax, err)
	}
	big := strings.Repeat("v", 1<<16)
	many := strings.Repeat("a ${V}\n", ExpandedSizeMax/len(big)+1)
	for name, source := range map[string]string{
		"nest too deep":       strings.Repeat("a {\n", DepthMax+1) + strings.Repeat("}\n", DepthMax+1),
		"file has":            strings.Repeat("#", SourceSizeMax+1),
		"too many statements": strings.Repeat("a\n", StatementsMax+1),
		"values of variables": many,
	} {
		_, err := ParseWith("f", []byte(source), Options{Variables: map[string]string{"V": big}})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSyntaxErrorsAreBounded(t *testing.T) {
	_, err := Parse("f", []byte(strings.Repeat("\"\n", 1000)))
	var list Errors
	if !errors.As(err, &list) || len(list) != ErrorsMax {
		t.Fatalf("got %d errors, want %d", len(list), ErrorsMax)
	}
	var single *Error
	if !errors.As(err, &single) || single.Line != 1 {
		t.Errorf("errors.As does not reach the single errors: %v", single)
	}
	if (Errors{}).Err() != nil {
		t.Error("an empty list is an error")
	}
	if text := Errorf(Position{}, "a\nb\x1b").Text; text != "a b\ufffd" {
		t.Errorf("an error text keeps control characters: %q", text)
	}
}

func FuzzQuote(f *testing.F) {
	for _, seed := range []string{"", "a", "#a", "a#b", "a b", "${X}", "$", "\\", "\"", "\x1b\u202e\u00a0",
		"{", "}", ";"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			text = strings.ToValidUTF8(text, "\ufffd")
		}
		if strings.Contains(text, "\n") && strings.Contains(Quote(text), "\n") {
			t.Fatalf("quoted form of %q has a line end", text)
		}
		tree, err := Parse("f", []byte("a "+Quote(text)))
		if err != nil {
			t.Fatalf("%q written as %s: %v", text, Quote(text), err)
		}
		if len(tree) != 1 || len(tree[0].Arguments) != 1 || tree[0].Arguments[0].Text != text {
			t.Fatalf("%q written as %s reads as %q", text, Quote(text), render(tree))
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("a {\nb \"c\" ${V} # d\n}\n")
	f.Add("\ufeffa b\\\n c; d {e}")
	f.Add("a \"\\u{41}\" } {")
	f.Add("a ${ \"${\" x\"")
	f.Fuzz(func(t *testing.T, source string) {
		tree, err := ParseWith("f", []byte(source), Options{Variables: map[string]string{"V": "x"}})
		if err != nil {
			if tree != nil {
				t.Fatal("a tree beside an error")
			}
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") || !strings.Contains(line, "xpected") {
					t.Fatalf("error without position or expectation: %q", line)
				}
			}
			return
		}
		again, err := Parse("f", []byte(write(tree)))
		if err != nil || render(again) != render(tree) {
			t.Fatalf("%q: written again reads as %q, %v", source, render(again), err)
		}
	})
}

// write gives the tree as source, keeping which words were quoted.
func write(list []Statement) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s.Name)
		for _, word := range s.Arguments {
			quoted := Quote(word.Text)
			if word.Quoted && quoted[0] != '"' {
				quoted = `"` + quoted + `"`
			}
			b.WriteString(" " + quoted)
		}
		if s.Block {
			b.WriteString(" {\n" + write(s.Body) + "}")
		}
		b.WriteString("\n")
	}
	return b.String()
}
