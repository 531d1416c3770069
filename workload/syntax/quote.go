package syntax

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Quote writes text as one word that Parse reads back as the same text: bare where that is possible,
// else in quotes with escapes. Bytes that are not UTF-8 have no written form; they become U+FFFD.
func Quote(text string) string {
	if bareSafe(text) {
		return text
	}
	var b strings.Builder
	b.WriteByte('"')
	for i, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '$' && strings.HasPrefix(text[i:], "${"):
			b.WriteString(`\$`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case !printable(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func bareSafe(text string) bool {
	if text == "" || text[0] == '#' || !utf8.ValidString(text) || strings.ContainsAny(text, " \t\n;{}") {
		return false
	}
	for _, r := range text {
		if bareProblem(r) != "" {
			return false
		}
	}
	return true
}
