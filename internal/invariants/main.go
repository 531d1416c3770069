// Command invariants prints which tests hold which invariant of the specification and which flaw of its
// review, and fails if one that is listed as landed has none. A test says what it holds in its name
// (TestSAFE1_..., TestF42_..., TestF57F58_...); a scenario file in testdata says it in its comments.
//
// The list is list.txt: one line each, an id and "landed", or "later:" and why.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

//go:embed list.txt
var list string

func main() {
	found, err := scan(os.DirFS("."))
	if err == nil {
		var entries []entry
		if entries, err = parse(list); err == nil {
			err = report(os.Stdout, entries, found)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "invariants:", err)
		os.Exit(1)
	}
}

// entry is one line of the list.
type entry struct {
	id     string // SAFE-1, F42
	landed bool
	reason string // why later
}

var idForm = regexp.MustCompile(`^((SAFE|AVAIL|CONV|EXEC|STREAM|RES|BOOT)-[0-9]+|F[0-9]+)$`)

func parse(text string) ([]entry, error) {
	var entries []entry
	seen := make(map[string]bool)
	for number, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		e := entry{id: fields[0]}
		switch {
		case !idForm.MatchString(e.id):
			return nil, fmt.Errorf("list.txt:%d: %q is no id", number+1, e.id)
		case seen[e.id]:
			return nil, fmt.Errorf("list.txt:%d: %s is listed twice", number+1, e.id)
		case len(fields) == 2 && fields[1] == "landed":
			e.landed = true
		case len(fields) > 2 && fields[1] == "later:":
			e.reason = strings.Join(fields[2:], " ")
		default:
			return nil, fmt.Errorf("list.txt:%d: want: ID landed, or: ID later: REASON", number+1)
		}
		seen[e.id] = true
		entries = append(entries, e)
	}
	return entries, nil
}

// ids returns the ids in a name or text; those of the specification get their hyphen.
func ids(form *regexp.Regexp, text string) []string {
	var list []string
	for _, m := range form.FindAllStringSubmatch(text, -1) {
		if m[1] == "F" {
			list = append(list, "F"+m[2])
		} else {
			list = append(list, m[1]+"-"+m[2])
		}
	}
	return list
}

func hold(found map[string][]string, ids []string, by string) {
	for _, id := range ids {
		if !slices.Contains(found[id], by) {
			found[id] = append(found[id], by)
		}
	}
}

// report prints the list and returns an error that names what is landed without a test, or tested under an
// id that is not listed.
func report(out io.Writer, entries []entry, found map[string][]string) error {
	var missing []string
	listed := make(map[string]bool)
	for _, e := range entries {
		listed[e.id] = true
		tests := found[e.id]
		slices.Sort(tests)
		switch {
		case len(tests) > 0:
			fmt.Fprintf(out, "%-9s %s\n", e.id, strings.Join(tests, "\n          "))
		case e.landed:
			fmt.Fprintf(out, "%-9s NO TEST\n", e.id)
			missing = append(missing, e.id)
		default:
			fmt.Fprintf(out, "%-9s later: %s\n", e.id, e.reason)
		}
	}
	for id := range found {
		if !listed[id] {
			missing = append(missing, id+" (not in list.txt)")
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		return fmt.Errorf("no test holds %s", strings.Join(missing, ", "))
	}
	return nil
}
