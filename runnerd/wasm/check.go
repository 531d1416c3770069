package wasm

import (
	"fmt"
	"slices"
	"strings"
)

// Module is a module that passed the checks, in the form that is compiled.
type Module struct {
	Binary    []byte
	Style     Style
	Imports   []string // "module.name"
	hasKV     bool
	hasMemory bool
}

// importsFunction reports whether the module imports a function of this name.
func (m *Module) importsFunction(module, name string) bool {
	return slices.Contains(m.Imports, module+"."+name)
}

// importsFrom reports whether the module imports anything of another.
func (m *Module) importsFrom(module string) bool {
	return slices.ContainsFunc(m.Imports, func(i string) bool { return strings.HasPrefix(i, module+".") })
}

// Style is how a module is used.
type Style uint8

// Styles of modules: one that waits for invocations, one whose _start is the workload.
const (
	StyleFunctions Style = 1
	StyleService   Style = 2
)

// Names with a meaning.
const (
	startExport      = "_start"
	initializeExport = "_initialize"
	invokeExport     = "colloid_invoke"
	wasiModule       = "wasi_snapshot_preview1"
	hostModule       = "colloid"
	fuelExport       = "colloid:fuel"
	depthExport      = "colloid:depth"
	// startSectionExport is the start function, which the worker calls itself (stack.go).
	startSectionExport = reservedPrefix + "start"
	// reservedPrefix begins the names that are added to modules.
	reservedPrefix = "colloid:"
)

// Prepare checks a module and gives it the form that is compiled. pages is the largest memory it may
// have. An error is one sentence that names the thing and the way out.
func Prepare(module []byte, deterministic bool, pages uint32) (*Module, error) {
	if len(module) > ModuleSizeMax {
		return nil, fmt.Errorf("the module has %d bytes, expected at most %d", len(module), ModuleSizeMax)
	}
	m, err := parseBinary(module)
	if err != nil {
		return nil, err
	}
	if err := m.check(pages); err != nil {
		return nil, err
	}
	m.clampTables()
	if err := m.exportStart(); err != nil {
		return nil, err
	}
	if deterministic {
		if err := m.makeDeterministic(); err != nil {
			return nil, err
		}
	}
	prepared := &Module{Binary: m.encode(), Style: StyleFunctions, hasMemory: len(m.memories) > 0}
	for _, i := range m.imports {
		prepared.Imports = append(prepared.Imports, i.module+"."+i.name)
		prepared.hasKV = prepared.hasKV || i.module == hostModule && slices.Contains(keyValueNames, i.name)
	}
	if m.exports != nil && m.export(startExport) && !m.export(initializeExport) {
		prepared.Style = StyleService
	}
	if deterministic && prepared.Style == StyleService {
		return nil, fmt.Errorf("a deterministic module is invoked, expected one without %s (build it as a reactor)",
			startExport)
	}
	return prepared, nil
}

func (m *binaryModule) export(name string) bool {
	return slices.ContainsFunc(m.exports, func(e exported) bool { return e.name == name && e.kind == kindFunction })
}

func (m *binaryModule) check(pages uint32) error {
	for _, i := range m.imports {
		if i.kind != kindFunction {
			return fmt.Errorf("the module imports %q.%q, which is no function: only functions can be imported",
				cut(i.module), cut(i.name))
		}
		if !importKnown(i.module, i.name) {
			return fmt.Errorf("the module imports the unknown function %q.%q, expected those of %s or %s",
				cut(i.module), cut(i.name), wasiModule, hostModule)
		}
		if int(i.typeIndex) >= len(m.types) {
			return errBinary
		}
	}
	if len(m.memories) > 1 {
		return fmt.Errorf("the module has %d memories, expected one", len(m.memories))
	}
	for _, memory := range m.memories {
		if memory.shared {
			return fmt.Errorf("the module has shared memory: threads are not supported, build it without them")
		}
		if memory.minimum > pages {
			return fmt.Errorf("the module begins with %d KiB of memory, its limit is %d KiB: give it more with mem",
				uint64(memory.minimum)*pageSize>>10, uint64(pages)*pageSize>>10)
		}
	}
	sum := uint64(0)
	for _, t := range m.tables {
		sum += uint64(t.limits.minimum)
		if t.limits.shared {
			return errBinary
		}
	}
	if sum > tableMinimumOf {
		return fmt.Errorf("the module's tables begin with %d elements, expected at most %d", sum, tableMinimumOf)
	}
	for _, e := range m.exports {
		if strings.HasPrefix(e.name, reservedPrefix) {
			return fmt.Errorf("the module exports %q, a name that is reserved", e.name)
		}
	}
	for _, typeIndex := range m.functions {
		if int(typeIndex) >= len(m.types) {
			return errBinary
		}
	}
	return nil
}

// exportStart makes the start function an export, so that the worker can call it with a stack of its choice.
func (m *binaryModule) exportStart() error {
	if !m.hasStart {
		return nil
	}
	function, kind := m.start, uint32(0)
	switch imports := uint32(len(m.imports)); {
	case function < imports:
		kind = m.imports[function].typeIndex
	case function-imports < uint32(len(m.functions)):
		kind = m.functions[function-imports]
	default:
		return errBinary
	}
	if len(m.types[kind].parameters)+len(m.types[kind].results) > 0 {
		return fmt.Errorf("%w: its start function has parameters or results", errBinary)
	}
	exports := appendU32(nil, uint32(len(m.exports)+1))
	if old := m.content(sectionExport); old != nil {
		c := cursor{rest: old}
		c.u32()
		exports = append(exports, c.rest...)
	}
	exports = appendU32(append(appendBytes(exports, []byte(startSectionExport)), kindFunction), function)
	m.replace(sectionExport, exports)
	m.exports = append(m.exports, exported{startSectionExport, kindFunction, function})
	m.sections = slices.DeleteFunc(m.sections, func(s section) bool { return s.id == sectionStart })
	return nil
}

// cut keeps names of a hostile module out of messages as far as they are too long.
func cut(name string) string {
	if len(name) > 64 {
		return name[:64] + "..."
	}
	return name
}

// clampTables gives every table a maximum: table.grow beyond it answers -1 instead of eating memory that
// no page limit counts.
func (m *binaryModule) clampTables() {
	if len(m.tables) == 0 {
		return
	}
	content := appendU32(nil, uint32(len(m.tables)))
	for _, t := range m.tables {
		if !t.limits.hasMaximum || t.limits.maximum > tableSizeMax {
			t.limits.hasMaximum, t.limits.maximum = true, tableSizeMax
		}
		content = appendLimits(append(content, t.element), t.limits)
	}
	m.replace(sectionTable, content)
}
