package workload

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Environment is what an instance gets besides its specification: variables and files that are secret or too
// large for it. The cluster keeps it sealed; a specification names it by its digest (F83).
type Environment struct {
	Variables []Variable // sorted by name
	Files     []File     // sorted by path
}

// Variable is one environment variable.
type Variable struct{ Name, Value string }

// File is a file that an instance finds: in its image at Path, as a process below $COLLOID_FILES.
type File struct {
	Path    string
	Mode    uint16 // permission bits
	Content []byte
}

// Bounds of an environment. The whole is bounded by what eight sealed values of the store hold.
const (
	EnvironmentSizeMax      = 4000
	EnvironmentVariablesMax = 64
	EnvironmentFilesMax     = 16
	FileModeDefault         = 0o400
)

// Kinds of records of an encoded environment.
const (
	environmentVersion  = 1
	environmentVariable = 1 // name length 1, name, value length 2, value
	environmentFile     = 2 // path length 1, path, mode 2, content length 2, content
)

// IsEmpty reports whether there is nothing in it.
func (e *Environment) IsEmpty() bool { return len(e.Variables) == 0 && len(e.Files) == 0 }

// Names lists what is in it without the values, for people.
func (e *Environment) Names() []string {
	var names []string
	for _, v := range e.Variables {
		names = append(names, "secret "+v.Name)
	}
	for _, f := range e.Files {
		names = append(names, fmt.Sprintf("file %s mode=%04o, %d bytes", f.Path, f.Mode, len(f.Content)))
	}
	return names
}

// EncodeEnvironment gives the one encoding of e. It sorts e and refuses what DecodeEnvironment would.
func EncodeEnvironment(e *Environment) ([]byte, error) {
	slices.SortFunc(e.Variables, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(e.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	if err := e.check(); err != nil {
		return nil, err
	}
	encoded := []byte{environmentVersion}
	for _, v := range e.Variables {
		encoded = appendText(append(encoded, environmentVariable), v.Name)
		encoded = binary.BigEndian.AppendUint16(encoded, uint16(len(v.Value)))
		encoded = append(encoded, v.Value...)
	}
	for _, f := range e.Files {
		encoded = appendText(append(encoded, environmentFile), f.Path)
		encoded = binary.BigEndian.AppendUint16(encoded, f.Mode)
		encoded = binary.BigEndian.AppendUint16(encoded, uint16(len(f.Content)))
		encoded = append(encoded, f.Content...)
	}
	if len(encoded) > EnvironmentSizeMax {
		return nil, fmt.Errorf("secrets and files take %d bytes with their names, expected at most %d: shorten them, or put large "+
			"files into the image", len(encoded), EnvironmentSizeMax)
	}
	return encoded, nil
}

func (e *Environment) check() error {
	if len(e.Variables) > EnvironmentVariablesMax || len(e.Files) > EnvironmentFilesMax {
		return fmt.Errorf("%d variables and %d files, expected at most %d and %d", len(e.Variables), len(e.Files),
			EnvironmentVariablesMax, EnvironmentFilesMax)
	}
	for i, v := range e.Variables {
		switch {
		case !validVariable(v.Name) || len(v.Name) > TextLengthMax:
			return fmt.Errorf("%.80q is no variable, expected a name of letters, digits and _", v.Name)
		case len(v.Value) > EnvironmentSizeMax || strings.IndexByte(v.Value, 0) >= 0:
			return fmt.Errorf("variable %s has %d bytes or a zero byte, expected at most %d bytes of text", v.Name,
				len(v.Value), EnvironmentSizeMax)
		case i > 0 && v.Name <= e.Variables[i-1].Name:
			return fmt.Errorf("variable %s is given twice or out of order, expected each once", v.Name)
		}
	}
	for i, f := range e.Files {
		switch {
		case !ValidFilePath(f.Path):
			return fmt.Errorf("%.80q is no place for a file, expected a clean absolute path outside /proc, /sys "+
				"and /dev", f.Path)
		case f.Mode > 0o777:
			return fmt.Errorf("file %s has mode %o, expected permission bits up to 0777", f.Path, f.Mode)
		case len(f.Content) > EnvironmentSizeMax:
			return fmt.Errorf("file %s has %d bytes, expected at most %d", f.Path, len(f.Content), EnvironmentSizeMax)
		case i > 0 && f.Path <= e.Files[i-1].Path:
			return fmt.Errorf("file %s is given twice or out of order, expected each once", f.Path)
		case slices.ContainsFunc(e.Files[:i], func(o File) bool { return strings.HasPrefix(f.Path, o.Path+"/") }):
			return fmt.Errorf("file %s lies below another file, expected a directory there", f.Path)
		}
	}
	return nil
}

// ValidFilePath reports whether a file of an environment may have the path.
func ValidFilePath(path string) bool {
	if !validPath(path) || path == "/" {
		return false
	}
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if path == kernel || strings.HasPrefix(path, kernel+"/") {
			return false
		}
	}
	return true
}

// ErrEnvironment is returned for bytes that EncodeEnvironment does not write.
var ErrEnvironment = errors.New("workload: environment is not in canonical form")

// DecodeEnvironment reads exactly what EncodeEnvironment writes. The result does not alias encoded.
func DecodeEnvironment(encoded []byte) (*Environment, error) {
	if len(encoded) > EnvironmentSizeMax || len(encoded) == 0 || encoded[0] != environmentVersion {
		return nil, ErrEnvironment
	}
	e := new(Environment)
	rest, last := encoded[1:], byte(0)
	take := func(width int) ([]byte, bool) { // a length of width bytes and as much behind it
		if len(rest) < width {
			return nil, false
		}
		length := int(rest[0])
		if width == 2 {
			length = int(binary.BigEndian.Uint16(rest))
		}
		if len(rest) < width+length {
			return nil, false
		}
		taken := rest[width : width+length]
		rest = rest[width+length:]
		return taken, true
	}
	for len(rest) > 0 {
		kind := rest[0]
		rest = rest[1:]
		name, ok := take(1)
		if !ok || kind < last || kind != environmentVariable && kind != environmentFile {
			return nil, ErrEnvironment
		}
		last = kind
		mode := uint16(0)
		if kind == environmentFile {
			if len(rest) < 2 {
				return nil, ErrEnvironment
			}
			mode, rest = binary.BigEndian.Uint16(rest), rest[2:]
		}
		content, ok := take(2)
		if !ok {
			return nil, ErrEnvironment
		}
		if kind == environmentVariable {
			e.Variables = append(e.Variables, Variable{string(name), string(content)})
		} else {
			e.Files = append(e.Files, File{string(name), mode, slices.Clone(content)})
		}
		if len(e.Variables) > EnvironmentVariablesMax || len(e.Files) > EnvironmentFilesMax {
			return nil, ErrEnvironment
		}
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	return e, nil
}
