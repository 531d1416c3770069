package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sections of a module, by their numbers in the binary format.
const (
	sectionCustom    = 0
	sectionType      = 1
	sectionImport    = 2
	sectionFunction  = 3
	sectionTable     = 4
	sectionMemory    = 5
	sectionGlobal    = 6
	sectionExport    = 7
	sectionStart     = 8
	sectionElement   = 9
	sectionCode      = 10
	sectionData      = 11
	sectionDataCount = 12
)

// Bounds on modules. They stand above what compilers make and below what hurts.
const (
	ModuleSizeMax  = 64 << 20
	functionsMax   = 200_000
	typesMax       = 20_000
	globalsMax     = 20_000
	exportsMax     = 20_000
	importsMax     = 1_000
	tablesMax      = 16
	tableSizeMax   = 1 << 20 // elements, of each table
	localsMax      = 50_000
	nestingMax     = 2_000
	parametersMax  = 1_000
	pageSize       = 64 << 10
	pagesMax       = 1 << 16
	tableMinimumOf = 1 << 18 // elements that all tables together may begin with
)

var errBinary = errors.New("the module is no valid WebAssembly binary")

// functionType is the type of a function: its parameters and results, one byte each.
type functionType struct{ parameters, results []byte }

// imported is one import; only functions are ever accepted.
type imported struct {
	module, name string
	kind         byte
	typeIndex    uint32
}

// exported is one export.
type exported struct {
	name  string
	kind  byte
	index uint32
}

const kindFunction = 0

// limits are those of a memory or table.
type limits struct {
	minimum, maximum uint32
	hasMaximum       bool
	shared           bool
}

type table struct {
	element byte
	limits  limits
}

// section is one section with its content.
type section struct {
	id      byte
	content []byte
}

// binaryModule is a module taken apart as far as it must be understood: to refuse what is never run and
// to rewrite what is. Function bodies stay bytes; the engine validates them.
type binaryModule struct {
	sections  []section
	types     []functionType
	imports   []imported
	functions []uint32 // types of the defined functions
	tables    []table
	memories  []limits
	globals   int
	exports   []exported
	hasStart  bool
	start     uint32 // function
	code      [][]byte
}

// cursor reads the binary format. After the first thing that does not fit everything it gives is empty.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.rest) {
		c.bad = true
		return nil
	}
	taken := c.rest[:n:n]
	c.rest = c.rest[n:]
	return taken
}

func (c *cursor) byte() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

// u32 reads an unsigned number of at most 32 bits.
func (c *cursor) u32() uint32 {
	value, n := binary.Uvarint(c.rest[:min(len(c.rest), 5)])
	if c.bad || n <= 0 || value > 1<<32-1 {
		c.bad = true
		return 0
	}
	c.rest = c.rest[n:]
	return uint32(value)
}

// skipSigned passes a signed number of at most size bytes.
func (c *cursor) skipSigned(size int) {
	for i := 0; i < size; i++ {
		if b := c.byte(); c.bad || b < 0x80 {
			return
		}
	}
	c.bad = true
}

// count reads the length of a vector and refuses one above limit.
func (c *cursor) count(limit int) int {
	n := c.u32()
	if n > uint32(limit) {
		c.bad = true
		return 0
	}
	return int(n)
}

func (c *cursor) bytes() []byte { return c.take(int(c.u32())) }

func (c *cursor) limits() limits {
	l := limits{}
	flags := c.byte()
	l.hasMaximum, l.shared = flags&1 != 0, flags&2 != 0
	c.bad = c.bad || flags > 3
	l.minimum = c.u32()
	if l.hasMaximum {
		l.maximum = c.u32()
	}
	return l
}

// parseBinary takes a module apart. Sections must come in their order and once.
func parseBinary(module []byte) (*binaryModule, error) {
	c := cursor{rest: module}
	if string(c.take(8)) != "\x00asm\x01\x00\x00\x00" {
		return nil, errors.New("the module is no WebAssembly binary of version 1")
	}
	m := &binaryModule{}
	last := 0
	for len(c.rest) > 0 && !c.bad {
		id := c.byte()
		content := c.bytes()
		if c.bad || id > sectionDataCount {
			return nil, errBinary
		}
		if order := sectionOrder(id); order != 0 {
			if order <= last {
				return nil, errBinary
			}
			last = order
		}
		m.sections = append(m.sections, section{id, content})
		if err := m.parseSection(id, content); err != nil {
			return nil, err
		}
	}
	if c.bad || len(m.code) != len(m.functions) {
		return nil, errBinary
	}
	return m, nil
}

// sectionOrder is the place of a section in a module; the data count stands before the code.
func sectionOrder(id byte) int {
	switch {
	case id == sectionDataCount:
		return 2*sectionCode - 1
	default:
		return 2 * int(id)
	}
}

func (m *binaryModule) parseSection(id byte, content []byte) error {
	c := &cursor{rest: content}
	switch id {
	case sectionType:
		m.parseTypes(c)
	case sectionImport:
		m.parseImports(c)
	case sectionFunction:
		for range c.count(functionsMax) {
			m.functions = append(m.functions, c.u32())
		}
	case sectionTable:
		for range c.count(tablesMax) {
			m.tables = append(m.tables, table{c.byte(), c.limits()})
		}
	case sectionMemory:
		for range c.count(tablesMax) {
			m.memories = append(m.memories, c.limits())
		}
	case sectionGlobal:
		m.globals = c.count(globalsMax)
		c.rest = nil
	case sectionExport:
		for range c.count(exportsMax) {
			m.exports = append(m.exports, exported{string(c.bytes()), c.byte(), c.u32()})
		}
	case sectionStart:
		m.hasStart, m.start = true, c.u32()
	case sectionCode:
		for range c.count(functionsMax) {
			m.code = append(m.code, c.bytes())
		}
	default:
		return nil
	}
	if c.bad || len(c.rest) > 0 {
		return fmt.Errorf("%w: section %d", errBinary, id)
	}
	return nil
}

func (m *binaryModule) parseTypes(c *cursor) {
	for range c.count(typesMax) {
		c.bad = c.bad || c.byte() != 0x60
		parameters := c.take(c.count(parametersMax))
		m.types = append(m.types, functionType{parameters, c.take(c.count(parametersMax))})
	}
}

func (m *binaryModule) parseImports(c *cursor) {
	for range c.count(importsMax) {
		i := imported{module: string(c.bytes()), name: string(c.bytes()), kind: c.byte()}
		switch i.kind {
		case kindFunction:
			i.typeIndex = c.u32()
		case 1:
			c.byte()
			c.limits()
		case 2:
			c.limits()
		case 3:
			c.take(2)
		default:
			c.bad = true
		}
		m.imports = append(m.imports, i)
	}
}

// appendU32 writes a number as the format does.
func appendU32(dst []byte, value uint32) []byte { return binary.AppendUvarint(dst, uint64(value)) }

func appendS64(dst []byte, value int64) []byte {
	for {
		b := byte(value & 0x7f)
		value >>= 7
		if value == 0 && b&0x40 == 0 || value == -1 && b&0x40 != 0 {
			return append(dst, b)
		}
		dst = append(dst, b|0x80)
	}
}

func appendBytes(dst, content []byte) []byte {
	return append(appendU32(dst, uint32(len(content))), content...)
}

func appendLimits(dst []byte, l limits) []byte {
	if !l.hasMaximum {
		return appendU32(append(dst, 0), l.minimum)
	}
	return appendU32(appendU32(append(dst, 1), l.minimum), l.maximum)
}

// encode puts a module together again.
func (m *binaryModule) encode() []byte {
	size := 8
	for _, s := range m.sections {
		size += len(s.content) + 6
	}
	dst := append(make([]byte, 0, size), "\x00asm\x01\x00\x00\x00"...)
	for _, s := range m.sections {
		dst = appendBytes(append(dst, s.id), s.content)
	}
	return dst
}

// replace exchanges the content of a section, or puts a new one in its place.
func (m *binaryModule) replace(id byte, content []byte) {
	at := len(m.sections)
	for i := range m.sections {
		if m.sections[i].id == id && id != sectionCustom {
			m.sections[i].content = content
			return
		}
		if m.sections[i].id != sectionCustom && sectionOrder(m.sections[i].id) > sectionOrder(id) {
			at = i
			break
		}
	}
	m.sections = append(m.sections[:at:at], append([]section{{id, content}}, m.sections[at:]...)...)
}

func (m *binaryModule) content(id byte) []byte {
	for i := range m.sections {
		if m.sections[i].id == id {
			return m.sections[i].content
		}
	}
	return nil
}
