package workload

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the repository shows to newcomers has to work.
func TestF156_Examples(t *testing.T) {
	files, err := filepath.Glob("../examples/*.colloid")
	if err != nil || len(files) < 4 {
		t.Fatalf("found %d examples, %v", len(files), err)
	}
	kinds := make(map[Kind]bool)
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		variables := map[string]string{"BINARY": "/usr/local/bin/hello", "PORT": "8080",
			"FILE": "/usr/local/lib/hello.wasm", "SHA256": strings.Repeat("ab", 32)}
		blocks, err := Parse(file, source, ParseOptions{Variables: variables})
		if err != nil {
			t.Error(err)
		}
		for _, b := range blocks {
			kinds[b.Kind] = true
			t.Logf("%s: %d bytes", b.Key(), len(mustEncode(t, b.Spec)))
		}
	}
	if len(kinds) != 3 {
		t.Errorf("examples show the kinds %v, want all three", kinds)
	}
	_, err = Parse("hello.colloid", []byte("spread hello {\n process ${BINARY}\n}"))
	if err == nil || !strings.HasPrefix(err.Error(),
		"hello.colloid:2:10: variable BINARY is not set, expected") {
		t.Errorf("without --set: got %v", err)
	}
}

// The manual has every key with the arguments that the parser's own messages give, and no other key.
func TestF156_ManualHasEveryKey(t *testing.T) {
	raw, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := strings.ReplaceAll(string(raw), `\|`, "|")
	for key, syntax := range keys {
		if !strings.Contains(manual, "\n| `"+key+" "+syntax.usage+"` |") {
			t.Errorf("docs/configuration.md lacks a row `%s %s`", key, syntax.usage)
		}
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+) ").FindAllStringSubmatch(manual, -1) {
		if _, known := keys[match[1]]; !known && !ValidKind(Kind(match[1])) {
			t.Errorf("docs/configuration.md has a key %s that the parser does not know", match[1])
		}
	}
	for _, name := range capabilityNames {
		if !strings.Contains(manual, "\n| `"+name+"` |") {
			t.Errorf("docs/configuration.md lacks capability %s", name)
		}
	}
}
