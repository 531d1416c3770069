package health

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// FuzzParseStatus: what is success says 2xx or 3xx in HTTP, and every other answer is told with its number.
func FuzzParseStatus(f *testing.F) {
	for _, line := range []string{"HTTP/1.1 200 OK\r\n", "HTTP/1.0 503 x", "HTTP/1.1 +20", "HTTP/2 200", "HTTP/1.1 2000", ""} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		err := parseStatus(line)
		var answer answerError
		switch {
		case err == nil:
			if _, rest, _ := strings.Cut(line, " "); !strings.HasPrefix(line, "HTTP/1.") || rest[0] != '2' && rest[0] != '3' {
				t.Fatalf("%q is taken for success", line)
			}
		case errors.As(err, &answer):
			if !strings.Contains(line, fmt.Sprintf(" %03d", int(answer))) {
				t.Fatalf("%q answers %d", line, answer)
			}
		case !errors.Is(err, errNotHTTP):
			t.Fatal(err)
		}
	})
}
