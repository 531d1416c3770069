// Package record is the form of runnerd's small files and of what it hands to its shims: lines of a
// name and a quoted value. Files are replaced as a whole (temporary file, rename), so that a reader sees the old
// or the new content and nothing between, whatever is killed when. Save makes them durable as well (fsync of the
// file and of its directory); Keep does not.
//
// Limits: SizeMax bytes per record. A name may repeat; values keep their order.
package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SizeMax bounds a record. The largest is a sandbox with the files that it finds inside, quoted twice.
const SizeMax = 512 << 10

// Record is the parsed form: all values of each name.
type Record map[string][]string

// Add appends one value.
func (r Record) Add(name, value string) { r[name] = append(r[name], value) }

// Set replaces the values of a name by one.
func (r Record) Set(name, value string) { r[name] = []string{value} }

// Get is the first value of a name, "" if there is none.
func (r Record) Get(name string) string {
	if values := r[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// Int is the first value of a name as a number, 0 if there is none or it is not a number.
func (r Record) Int(name string) int64 {
	n, _ := strconv.ParseInt(r.Get(name), 10, 64)
	return n
}

// Uint is Int for unsigned numbers.
func (r Record) Uint(name string) uint64 {
	n, _ := strconv.ParseUint(r.Get(name), 10, 64)
	return n
}

// SetInt stores a number.
func (r Record) SetInt(name string, n int64) { r.Set(name, strconv.FormatInt(n, 10)) }

// SetUint stores an unsigned number.
func (r Record) SetUint(name string, n uint64) { r.Set(name, strconv.FormatUint(n, 10)) }

// Encode gives the text form, names sorted, values in order.
func (r Record) Encode() []byte {
	names := make([]string, 0, len(r))
	for name := range r {
		names = append(names, name)
	}
	sortStrings(names)
	var text []byte
	for _, name := range names {
		for _, value := range r[name] {
			text = append(text, name...)
			text = append(text, ' ')
			text = strconv.AppendQuote(text, value)
			text = append(text, '\n')
		}
	}
	return text
}

// sortStrings is an insertion sort: records have a dozen names, and the shim stays small.
func sortStrings(list []string) {
	for i := 1; i < len(list); i++ {
		for j := i; j > 0 && list[j] < list[j-1]; j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
}

// Errors of Parse.
var (
	ErrSize = errors.New("record: longer than 512 KiB")
	ErrForm = errors.New("record: line is not a name and a quoted value")
)

// Parse reads the text form.
func Parse(text []byte) (Record, error) {
	if len(text) > SizeMax {
		return nil, ErrSize
	}
	r := Record{}
	for rest := string(text); rest != ""; {
		line, next, whole := strings.Cut(rest, "\n")
		name, quoted, found := strings.Cut(line, " ")
		value, err := strconv.Unquote(quoted)
		if !whole || !found || name == "" || err != nil || quoted[0] != '"' {
			return nil, ErrForm
		}
		r.Add(name, value)
		rest = next
	}
	return r, nil
}

// Read reads all of a stream, bounded, and parses it.
func Read(from io.Reader) (Record, error) {
	text, err := io.ReadAll(io.LimitReader(from, SizeMax+1))
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Load reads a file. It follows no symbolic link in the last component.
func Load(path string) (Record, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Read(file)
}

// Save replaces a file durably.
func Save(path string, r Record) error { return WriteFile(path, r.Encode()) }

// Keep replaces a file so that it survives the death of any process, but perhaps not that of the host: for what
// means nothing after a restart of the host, where waiting for the disk would only cost time. What is then found
// may be old, empty or half; whoever reads it must take it for absent.
func Keep(path string, r Record) error { return replace(path, r.Encode(), false) }

// WriteFile replaces a file by content, durably, mode 0600.
func WriteFile(path string, content []byte) error { return replace(path, content, true) }

func replace(path string, content []byte, durable bool) error {
	temporary := path + ".new"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|noFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil && durable {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("record: replace %s: %w", path, err)
	}
	if !durable {
		return nil
	}
	return SyncDirectory(filepath.Dir(path))
}

// SyncDirectory makes the names in a directory durable.
func SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer directory.Close()
	return directory.Sync()
}
