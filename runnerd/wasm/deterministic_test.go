package wasm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
)

// digestOf runs n invocations of a fresh worker and digests everything that comes out, fuel errors too.
func digestOf(t testing.TB, n int, interpreter bool) string {
	w := testWorker(t, fixture(t, "functions"), func(s *Settings) {
		deterministic(s)
		if interpreter {
			s.Digest = "interpreter"
		}
	})
	w.settings.Digest = "00" // part of the seed
	hash := sha256.New()
	for i := range n {
		v := &invoke.Invocation{Milliseconds: 20}
		switch i % 8 {
		case 0:
			v.Function, v.Arguments = "fib", [][]byte{[]byte(fmt.Sprint(i % 12))}
		case 1:
			v.Function = "random_word"
		case 2:
			v.Function = "nan_bits"
		case 3:
			v.Function = "time"
		case 4:
			v.Function, v.Arguments = "deep", [][]byte{[]byte(fmt.Sprint(i % 2000))}
		case 5:
			v.Function = "calls"
		case 6:
			v.Function, v.Arguments = "grow", [][]byte{[]byte(fmt.Sprint(i % 100))}
		case 7:
			v.Function, v.Arguments = "", [][]byte{[]byte(fmt.Sprint(i))}
		}
		if i%1000 == 999 {
			v.Function, v.Arguments, v.Milliseconds = "fib", [][]byte{[]byte("30")}, 1 // ends for lack of fuel
		}
		r := w.execute(v)
		fmt.Fprintf(hash, "%d %d %d %d %q\n", i, r.Errno, r.Status, r.Clock, r.Output)
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

// golden is the digest of 10,000 invocations. It must be the same on every architecture and in every
// version: it only changes together with what deterministic means.
const golden = "90ea377bba0b9f4e3a44350eb013724509a1a3fca6edf2157091870669ddd744"

// TestF143_TenThousandInvocationsAreIdentical runs them twice, in two workers: state of one invocation must
// not reach another, and a restart must not show.
func TestSAFE6_F143_TenThousandInvocationsAreIdentical(t *testing.T) {
	for range 2 {
		if got := digestOf(t, 10_000, false); got != golden {
			t.Fatalf("digest %s, expected %s", got, golden)
		}
	}
	if a, b := digestOf(t, 500, true), digestOf(t, 500, false); a != b {
		t.Fatalf("the interpreter gives %s, the compiler %s", a, b)
	}
}

func TestF143_NaNsAreCanonical(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), deterministic)
	if got := call(w, "nan_bits"); string(got.Output) != fmt.Sprint(int64(canonicalNaN64)) {
		t.Errorf("%q", got.Output)
	}
	if got := call(w, "nan32_bits"); string(got.Output) != fmt.Sprint(canonicalNaN32) {
		t.Errorf("%q", got.Output)
	}
}

// TestF143_FuelAndDepthEndAtFixedPlaces: neither depends on the clock or the machine.
func TestF143_FuelAndDepthEndAtFixedPlaces(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), deterministic)
	for range 3 {
		began := time.Now()
		got := w.execute(&invoke.Invocation{Function: "spin", Milliseconds: 10})
		if got.Errno != invoke.ErrorTimeout || !strings.Contains(string(got.Output), "used up its fuel of 1000000") {
			t.Fatalf("%d %q after %v", got.Errno, got.Output, time.Since(began))
		}
	}
	if got := call(w, "deep", fmt.Sprint(DepthMax-1)); string(got.Output) != fmt.Sprint(DepthMax-1) {
		t.Errorf("%+v", got)
	}
	if got := call(w, "deep", fmt.Sprint(DepthMax)); got.Errno != invoke.ErrorIO ||
		!strings.Contains(string(got.Output), "nest deeper than 1000") {
		t.Errorf("%d %q", got.Errno, got.Output)
	}
	if got := call(w, "calls"); string(got.Output) != "1" {
		t.Errorf("an instance was used twice: %q", got.Output)
	}
}

func TestF143_TheClockCountsInvocations(t *testing.T) {
	w := testWorker(t, fixture(t, "functions"), deterministic)
	for n := range 3 {
		got := call(w, "time")
		if want := int64(n+1)*logicalSecond + logicalStep; string(got.Output) != fmt.Sprint(want) || got.Clock != uint64(n+1) {
			t.Errorf("%q at %d, expected %d", got.Output, got.Clock, want)
		}
	}
	again := w.execute(&invoke.Invocation{Function: "time", Clock: 2})
	if want := 2*logicalSecond + logicalStep; string(again.Output) != fmt.Sprint(want) {
		t.Errorf("the clock that was given: %q", again.Output)
	}
	if got := call(w, "sleep"); string(got.Output) != "0" { // an hour passes at once
		t.Errorf("%+v", got)
	}
	if a, b := call(w, "random_word"), call(w, "random_word"); string(a.Output) == string(b.Output) {
		t.Error("two invocations drew the same random number")
	}
}

// TestF143_InterpreterAndCompilerAgree runs generated modules in both engines for a few seconds.
func TestF143_InterpreterAndCompilerAgree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	deadline, count := time.Now().Add(3*time.Second), 0
	for ; time.Now().Before(deadline) && count < 10_000; seed, count = seed+1, count+1 {
		module := generate(seed)
		var results [2]*invoke.Result
		for engine, digest := range []string{"compiler", "interpreter"} {
			w, err := tryWorker(t, module, func(s *Settings) { deterministic(s); s.Digest = digest })
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			results[engine] = w.execute(&invoke.Invocation{Function: "run", Milliseconds: 5, Arguments: [][]byte{
				[]byte(fmt.Sprint(seed % 1000)), []byte("1.5")}})
		}
		a, b := results[0], results[1]
		if a.Errno != b.Errno || string(a.Output) != string(b.Output) {
			t.Fatalf("seed %d: compiler %d %q, interpreter %d %q", seed, a.Errno, a.Output, b.Errno, b.Output)
		}
	}
	t.Logf("%d modules", count)
}

// generator makes valid modules: three functions of (i64, f64) to i64 that compute, branch, loop, touch
// memory and call those before them.
type generator struct {
	*rand.Rand
	out   []byte
	calls uint32 // functions that may be called
}

func generate(seed uint64) []byte {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 143))}
	m := append([]byte(nil), "\x00asm\x01\x00\x00\x00"...)
	section := func(id byte, content ...byte) { m = appendBytes(append(m, id), content) }
	section(sectionType, 1, 0x60, 2, valueI64, valueF64, 1, valueI64)
	section(sectionFunction, 3, 0, 0, 0)
	section(sectionMemory, 1, 0, 1)
	section(sectionExport, append([]byte{1, 3}, append([]byte("run"), 0, 2)...)...)
	code := []byte{3}
	for f := range uint32(3) {
		g.calls, g.out = f, []byte{4, 1, valueI32, 1, valueI64, 1, valueF32, 1, valueF64}
		for range 1 + g.IntN(6) {
			g.statement(3)
		}
		g.expression(valueI64, 3)
		g.emit(opEnd)
		code = appendBytes(code, g.out)
	}
	section(sectionCode, code...)
	return m
}

func (g *generator) emit(b ...byte) { g.out = append(g.out, b...) }

// localOf gives a local of a type: parameters 0 and 1, then i32, i64, f32, f64.
func (g *generator) localOf(kind byte) byte {
	switch kind {
	case valueI32:
		return 2
	case valueI64:
		return []byte{0, 3}[g.IntN(2)]
	case valueF32:
		return 4
	}
	return []byte{1, 5}[g.IntN(2)]
}

var valueKinds = []byte{valueI32, valueI64, valueF32, valueF64}

func (g *generator) statement(depth int) {
	kind := valueKinds[g.IntN(4)]
	switch choice := g.IntN(6); {
	case choice < 3 || depth == 0:
		g.expression(kind, depth)
		g.emit(0x21, g.localOf(kind))
	case choice == 3:
		g.expression(valueI32, depth-1)
		g.emit(opIf, blockEmpty)
		g.statement(depth - 1)
		g.emit(opElse)
		g.statement(depth - 1)
		g.emit(opEnd)
	case choice == 4: // a loop whose counter decides; some go on until the fuel ends
		g.emit(opLoop, blockEmpty)
		g.statement(depth - 1)
		g.emit(opLocalGet, 2, opI32Const, 1, opI32Add, opLocalTee, 2, opI32Const, 0x3f, 0x71, 0x0d, 0, opEnd)
	default:
		g.expression(valueI32, 0)
		g.emit(opI32Const, 0xff, 0x0f, 0x71) // i32.and: inside the page
		g.expression(kind, depth-1)
		g.emit(map[byte]byte{valueI32: 0x36, valueI64: 0x37, valueF32: 0x38, valueF64: 0x39}[kind], 0, 0)
	}
}

func (g *generator) constant(kind byte) {
	bits := g.Uint64() >> g.IntN(64)
	switch kind {
	case valueI32:
		g.out = appendS64(append(g.out, opI32Const), int64(int32(uint32(bits))))
	case valueI64:
		g.out = appendS64(append(g.out, opI64Const), int64(bits))
	case valueF32:
		g.out = binary.LittleEndian.AppendUint32(append(g.out, opF32Const), uint32(bits))
	default:
		g.out = binary.LittleEndian.AppendUint64(append(g.out, opF64Const), bits)
	}
}

// span is a range of opcodes that turn operands of one type into a result.
type span struct {
	first, last, from byte
	operands          int
}

// spans are the arithmetic of the format, by the type of the result. Divisions and conversions that trap
// are among them: they trap in both engines.
var spans = map[byte][]span{
	valueI32: {{0x67, 0x69, valueI32, 1}, {0x6a, 0x78, valueI32, 2}, {0x46, 0x4f, valueI32, 2}, {0x51, 0x5a, valueI64, 2},
		{0x5b, 0x60, valueF32, 2}, {0x61, 0x66, valueF64, 2}, {0xa7, 0xa7, valueI64, 1}, {0xa8, 0xa9, valueF32, 1},
		{0xbc, 0xbc, valueF32, 1}, {0xc0, 0xc1, valueI32, 1}},
	valueI64: {{0x79, 0x7b, valueI64, 1}, {0x7c, 0x8a, valueI64, 2}, {0xac, 0xad, valueI32, 1}, {0xb0, 0xb1, valueF64, 1},
		{0xbd, 0xbd, valueF64, 1}, {0xc2, 0xc4, valueI64, 1}},
	valueF32: {{0x8b, 0x91, valueF32, 1}, {0x92, 0x98, valueF32, 2}, {0xb2, 0xb3, valueI32, 1}, {0xb4, 0xb5, valueI64, 1},
		{0xb6, 0xb6, valueF64, 1}, {0xbe, 0xbe, valueI32, 1}},
	valueF64: {{0x99, 0x9f, valueF64, 1}, {0xa0, 0xa6, valueF64, 2}, {0xb7, 0xb8, valueI32, 1}, {0xb9, 0xba, valueI64, 1},
		{0xbb, 0xbb, valueF32, 1}, {0xbf, 0xbf, valueI64, 1}},
}

func (g *generator) expression(kind byte, depth int) {
	switch choice := g.IntN(8); {
	case depth <= 0 && choice < 4:
		g.emit(opLocalGet, g.localOf(kind))
	case depth <= 0:
		g.constant(kind)
	case choice == 0 && kind == valueI64 && g.calls > 0:
		g.expression(valueI64, depth-1)
		g.expression(valueF64, depth-1)
		g.emit(0x10, byte(g.UintN(uint(g.calls))))
	case choice == 1:
		g.expression(valueI32, 0)
		g.emit(opI32Const, 0xff, 0x0f, 0x71)
		g.emit(map[byte]byte{valueI32: 0x28, valueI64: 0x29, valueF32: 0x2a, valueF64: 0x2b}[kind], 0, 0)
	case choice == 2: // leaves early now and then
		g.expression(valueI32, 0)
		g.emit(opIf, kind)
		g.expression(kind, depth-1)
		g.emit(opElse)
		if g.IntN(4) == 0 {
			g.expression(valueI64, 0)
			g.emit(opReturn)
		} else {
			g.expression(kind, depth-1)
		}
		g.emit(opEnd)
	default:
		s := spans[kind][g.IntN(len(spans[kind]))]
		for range s.operands {
			g.expression(s.from, depth-1)
		}
		g.emit(s.first + byte(g.IntN(int(s.last-s.first)+1)))
	}
}

// FuzzPrepare takes anything for a module. What is accepted must be accepted by the engine's validation or
// refused by it, and rewriting must not make a valid module invalid.
func FuzzPrepare(f *testing.F) {
	for _, name := range []string{"functions", "grow_table", "start_loop", "vector"} {
		f.Add(fixture(f, name))
	}
	f.Add(generate(1))
	f.Fuzz(func(t *testing.T, module []byte) {
		_, plainErr := tryWorker(t, module, nil)
		_, err := tryWorker(t, module, deterministic)
		if err != nil && plainErr == nil && strings.Contains(err.Error(), "the module is invalid") {
			t.Fatalf("rewriting broke the module: %v", err)
		}
	})
}
