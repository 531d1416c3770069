package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of deterministic modules. They are part of what a module computes: never change them without a
// new name for the mode.
const (
	// DepthMax is the deepest nesting of calls. It lies below what either engine can do on any machine.
	DepthMax = 1000
	// FuelPerMillisecond is how much fuel a millisecond of deadline buys: one unit is about one instruction.
	FuelPerMillisecond = 100_000
	// fuelAtStart is what the start function of a module may use.
	fuelAtStart = 100_000_000
	// deterministicLocalsMax keeps DepthMax frames within the engine's stack.
	deterministicLocalsMax = 2_000
	canonicalNaN32         = 0x7fc00000
	canonicalNaN64         = 0x7ff8000000000000
)

// Opcodes that the rewriting knows by name.
const (
	opUnreachable = 0x00
	opBlock       = 0x02
	opLoop        = 0x03
	opIf          = 0x04
	opElse        = 0x05
	opEnd         = 0x0b
	opBr          = 0x0c
	opBrTable     = 0x0e
	opReturn      = 0x0f
	opSelect      = 0x1b
	opLocalGet    = 0x20
	opLocalTee    = 0x22
	opGlobalGet   = 0x23
	opGlobalSet   = 0x24
	opI32Const    = 0x41
	opI64Const    = 0x42
	opF32Const    = 0x43
	opF64Const    = 0x44
	opI32GtU      = 0x4b
	opI64LtS      = 0x53
	opF32Eq       = 0x5b
	opF64Eq       = 0x61
	opI32Add      = 0x6a
	opI32Sub      = 0x6b
	opI64Sub      = 0x7d
	opI64ShrU     = 0x88
	opExtendU     = 0xad
	opMisc        = 0xfc
	opVector      = 0xfd
	opAtomic      = 0xfe
	blockEmpty    = 0x40
	valueI32      = 0x7f
	valueI64      = 0x7e
	valueF32      = 0x7d
	valueF64      = 0x7c
)

// makeDeterministic rewrites the module so that equal inputs give equal results on every machine and
// engine (F143):
//
//   - every float that arithmetic made is made canonical at once if it is no number, so its bits never
//     depend on the processor;
//   - each function, each round of a loop and each bulk operation pays fuel from a global that the host
//     fills, and a counter bounds the depth of calls; running out of either is a trap at a fixed place.
//
// Vector instructions, threads and exceptions are refused.
func (m *binaryModule) makeDeterministic() error {
	if len(m.code) == 0 {
		return errors.New("the module has no code")
	}
	fuel := uint32(m.globals)
	types := m.types
	bodies := appendU32(nil, uint32(len(m.code)))
	for i, body := range m.code {
		r := rewriter{fuel: fuel, depth: fuel + 1, signature: m.types[m.functions[i]]}
		r.block, types = blockTypeOf(r.signature.results, types)
		rewritten, err := r.rewrite(body)
		if err != nil {
			return fmt.Errorf("function %d of the deterministic module: %w", len(m.imports)+i, err)
		}
		bodies = appendBytes(bodies, rewritten)
	}
	m.replace(sectionCode, bodies)
	m.replaceTypes(types)
	m.addGlobals()
	return nil
}

// blockTypeOf gives the encoded type of a block with these results, adding a type where the format needs
// one.
func blockTypeOf(results []byte, types []functionType) ([]byte, []functionType) {
	switch len(results) {
	case 0:
		return []byte{blockEmpty}, types
	case 1:
		return []byte{results[0]}, types
	}
	for i, t := range types {
		if len(t.parameters) == 0 && string(t.results) == string(results) {
			return appendS64(nil, int64(i)), types
		}
	}
	types = append(types[:len(types):len(types)], functionType{nil, results})
	return appendS64(nil, int64(len(types)-1)), types
}

func (m *binaryModule) replaceTypes(types []functionType) {
	content := appendU32(nil, uint32(len(types)))
	for _, t := range types {
		content = appendBytes(append(content, 0x60), t.parameters)
		content = appendBytes(content, t.results)
	}
	m.replace(sectionType, content)
}

// addGlobals adds the fuel and the depth behind the module's own globals, and exports them.
func (m *binaryModule) addGlobals() {
	content := appendU32(nil, uint32(m.globals+2))
	if old := m.content(sectionGlobal); old != nil {
		c := cursor{rest: old}
		c.u32()
		content = append(content, c.rest...)
	}
	content = appendS64(append(content, valueI64, 1, opI64Const), fuelAtStart)
	content = append(content, opEnd, valueI32, 1, opI32Const, 0, opEnd)
	m.replace(sectionGlobal, content)

	exports := appendU32(nil, uint32(len(m.exports)+2))
	if old := m.content(sectionExport); old != nil {
		c := cursor{rest: old}
		c.u32()
		exports = append(exports, c.rest...)
	}
	for i, name := range []string{fuelExport, depthExport} {
		exports = appendU32(append(appendBytes(exports, []byte(name)), 3), uint32(m.globals+i))
	}
	m.replace(sectionExport, exports)
}

// rewriter rewrites one function.
type rewriter struct {
	fuel, depth uint32 // globals
	signature   functionType
	block       []byte // type of a block that gives the function's results
	scratch     uint32 // first of the locals i32, f32, f64
	costs       []int64
	out         []byte
}

func (r *rewriter) rewrite(body []byte) ([]byte, error) {
	c := cursor{rest: body}
	groups := c.count(localsMax)
	locals, start := uint64(0), c.rest
	for range groups {
		locals += uint64(c.u32())
		c.byte()
	}
	if c.bad {
		return nil, errBinary
	}
	if locals > deterministicLocalsMax {
		return nil, fmt.Errorf("%d locals, expected at most %d", locals, deterministicLocalsMax)
	}
	groupBytes := start[:len(start)-len(c.rest)]
	if err := r.count(c.rest); err != nil {
		return nil, err
	}
	r.scratch = uint32(len(r.signature.parameters)) + uint32(locals)
	r.out = appendU32(make([]byte, 0, 2*len(body)+64), uint32(groups+3))
	r.out = append(r.out, groupBytes...)
	r.out = append(r.out, 1, valueI32, 1, valueF32, 1, valueF64)
	r.enter()
	r.out = append(append(r.out, opBlock), r.block...)
	if err := r.copy(c.rest); err != nil {
		return nil, err
	}
	r.leave()
	return r.out, nil
}

func (r *rewriter) global(op byte, index uint32) { r.out = appendU32(append(r.out, op), index) }

func (r *rewriter) trapIf() { r.out = append(r.out, opIf, blockEmpty, opUnreachable, opEnd) }

// enter counts the call and pays for what of the body lies outside loops.
func (r *rewriter) enter() {
	r.global(opGlobalGet, r.depth)
	r.out = append(r.out, opI32Const, 1, opI32Add)
	r.global(opGlobalSet, r.depth)
	r.global(opGlobalGet, r.depth)
	r.out = appendS64(append(r.out, opI32Const), DepthMax)
	r.out = append(r.out, opI32GtU)
	r.trapIf()
	r.pay(r.costs[0])
}

func (r *rewriter) leave() {
	r.global(opGlobalGet, r.depth)
	r.out = append(r.out, opI32Const, 1, opI32Sub)
	r.global(opGlobalSet, r.depth)
	r.out = append(r.out, opEnd)
}

func (r *rewriter) pay(cost int64) {
	r.global(opGlobalGet, r.fuel)
	r.out = append(appendS64(append(r.out, opI64Const), cost), opI64Sub)
	r.settle()
}

// settle stores the new amount and traps when it is negative.
func (r *rewriter) settle() {
	r.global(opGlobalSet, r.fuel)
	r.global(opGlobalGet, r.fuel)
	r.out = append(r.out, opI64Const, 0, opI64LtS)
	r.trapIf()
}

// payBulk pays for an operation whose length lies on top of the stack: one unit for 8 bytes or elements.
func (r *rewriter) payBulk() {
	r.out = appendU32(append(r.out, opLocalTee), r.scratch)
	r.global(opGlobalGet, r.fuel)
	r.out = appendU32(append(r.out, opLocalGet), r.scratch)
	r.out = append(r.out, opExtendU, opI64Const, 3, opI64ShrU, opI64Sub)
	r.settle()
}

// canonical makes the float on top of the stack canonical if it is no number: x == x ? x : NaN.
func (r *rewriter) canonical(wide bool) {
	local := r.scratch + 1
	if wide {
		local++
	}
	r.out = appendU32(append(r.out, opLocalTee), local)
	if wide {
		r.out = binary.LittleEndian.AppendUint64(append(r.out, opF64Const), canonicalNaN64)
	} else {
		r.out = binary.LittleEndian.AppendUint32(append(r.out, opF32Const), canonicalNaN32)
	}
	r.out = appendU32(append(r.out, opLocalGet), local)
	r.out = appendU32(append(r.out, opLocalGet), local)
	if wide {
		r.out = append(r.out, opF64Eq, opSelect)
	} else {
		r.out = append(r.out, opF32Eq, opSelect)
	}
}

// count finds what each stretch of the function costs: costs[0] for what lies outside loops, then one for
// each loop in the order of their beginnings, without what lies in a loop inside.
func (r *rewriter) count(code []byte) error {
	r.costs = append(r.costs[:0], 1)
	open := []int{0} // the stretch of each nesting level
	c := cursor{rest: code}
	for len(open) > 0 {
		op, err := instruction(&c)
		if err != nil {
			return err
		}
		here := open[len(open)-1]
		r.costs[here]++
		switch op {
		case opLoop:
			r.costs = append(r.costs, 1)
			open = append(open, len(r.costs)-1)
		case opBlock, opIf:
			open = append(open, here)
		case opEnd:
			open = open[:len(open)-1]
		}
		if len(open) > nestingMax {
			return fmt.Errorf("blocks nest deeper than %d", nestingMax)
		}
	}
	if len(c.rest) > 0 {
		return errBinary
	}
	return nil
}

// copy writes the instructions with what is added to them.
func (r *rewriter) copy(code []byte) error {
	c := cursor{rest: code}
	loop := 0
	for level := 0; level >= 0; {
		before := c.rest
		op, err := instruction(&c)
		if err != nil {
			return err
		}
		raw := before[:len(before)-len(c.rest)]
		switch {
		case op == opReturn:
			r.out = appendU32(append(r.out, opBr), uint32(level)) // to the end of the block around everything
			continue
		case op == opMisc && bulk(raw[1]):
			r.payBulk()
		}
		r.out = append(r.out, raw...)
		switch op {
		case opLoop:
			level++
			loop++
			r.pay(r.costs[loop])
		case opBlock, opIf:
			level++
		case opEnd:
			level--
		default:
			if wide, makes := makesFloat(op); makes {
				r.canonical(wide)
			}
		}
	}
	return nil
}

// bulk reports whether the operation works through as many bytes or elements as the top of the stack says.
// table.grow is among them; its top is the count as well.
func bulk(operation byte) bool {
	switch operation {
	case 8, 10, 11, 12, 14, 15, 17:
		return true
	}
	return false
}

// makesFloat reports whether the result of an instruction is a float whose bits the format leaves open
// when it is no number.
func makesFloat(op byte) (wide, makes bool) {
	switch {
	case op >= 0x8d && op <= 0x97, op == 0xb6: // ceil ... max, demote
		return false, true
	case op >= 0x9b && op <= 0xa5, op == 0xbb: // the same with 64 bits, promote
		return true, true
	}
	return false, false
}

// instruction passes one instruction and gives its opcode.
func instruction(c *cursor) (byte, error) {
	op := c.byte()
	switch {
	case op == opVector:
		return op, errors.New("vector instructions are not deterministic here, build it without them")
	case op == opAtomic:
		return op, errors.New("threads are not deterministic, build it without them")
	case op == opMisc:
		miscellaneous(c)
	case op >= 0x45 && op <= 0xc4: // arithmetic without operands
	default:
		operands(c, op)
	}
	if c.bad {
		return op, fmt.Errorf("%w: instruction 0x%02x is unknown or cut off", errBinary, op)
	}
	return op, nil
}

func operands(c *cursor, op byte) {
	switch {
	case op == opUnreachable, op == 0x01, op == opElse, op == opEnd, op == opReturn, op == 0x1a, op == opSelect,
		op == 0xd1:
	case op == opBlock, op == opLoop, op == opIf:
		c.skipSigned(5)
	case op == opBr, op == 0x0d, op == 0x10, op >= 0x20 && op <= 0x26, op == 0xd2:
		c.u32()
	case op == opBrTable:
		for range c.count(1 << 20) {
			if c.u32(); c.bad {
				return
			}
		}
		c.u32()
	case op == 0x11:
		c.u32()
		c.u32()
	case op == 0x1c:
		c.bytes()
	case op >= 0x28 && op <= 0x3e:
		c.u32()
		c.u32()
	case op == 0x3f, op == 0x40, op == 0xd0:
		c.byte()
	case op == opI32Const:
		c.skipSigned(5)
	case op == opI64Const:
		c.skipSigned(10)
	case op == opF32Const:
		c.take(4)
	case op == opF64Const:
		c.take(8)
	default:
		c.bad = true
	}
}

func miscellaneous(c *cursor) {
	if len(c.rest) == 0 || c.rest[0] >= 0x80 { // one byte, so that bulk can look at it
		c.bad = true
		return
	}
	switch operation := c.byte(); operation {
	case 0, 1, 2, 3, 4, 5, 6, 7:
	case 8, 10, 12, 14:
		c.u32()
		c.u32()
	case 9, 11, 13, 15, 16, 17:
		c.u32()
	default:
		c.bad = true
	}
}
