package policy

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"colloid.net/workload"
	"colloid.net/workload/syntax"
)

// Memory of modules, in MiB: of one whose specification names none, and the most that WebAssembly has.
const (
	WasmMemoryDefault = 256
	wasmMemoryMost    = 4096
	modulesMax        = 1024
)

// WasmMemoryMiB is the memory that an instance of the specification gets.
func WasmMemoryMiB(spec *workload.Spec) uint32 {
	if spec.MemoryMiB == 0 {
		return WasmMemoryDefault
	}
	return spec.MemoryMiB
}

func (p *Policy) checkWasm(spec *workload.Spec) (Permit, error) {
	w := p.Wasm
	if w == nil {
		return Permit{}, errors.New("the host's policy allows no modules (wasm { ... })")
	}
	module, err := url.Parse(spec.Image)
	if err != nil {
		return Permit{}, fmt.Errorf("module %s is no URL", syntax.Quote(spec.Image))
	}
	denied := spec.Capabilities &^ w.Capabilities
	memory := WasmMemoryMiB(spec)
	switch {
	case module.Scheme == "file" && !slices.Contains(w.Files, module.Path):
		return Permit{}, fmt.Errorf("the host's policy does not list module %s", syntax.Quote(module.Path))
	case module.Scheme != "file" && !w.Addresses:
		return Permit{}, errors.New("the host's policy allows modules of files only (wasm { url any })")
	case spec.ImageDigest == [32]byte{}:
		return Permit{}, errors.New("a module runs by its digest only: write sha256 into the workload")
	case denied != 0:
		return Permit{}, fmt.Errorf("the host's policy does not let modules have %s", workload.CapabilityNames(denied))
	case memory > w.MemoryMiB:
		return Permit{}, fmt.Errorf("the host's policy gives a module %d MiB of memory, it asks for %d: lower mem",
			w.MemoryMiB, memory)
	case len(spec.Ports) > 0:
		return Permit{}, errors.New("a module has no network, so it publishes no ports")
	case len(spec.Command) > 0:
		return Permit{}, errors.New("a module has no command: its words are args")
	case spec.User != "":
		return Permit{}, errors.New("a module has no user: every instance has an id of its own")
	case spec.EnvironmentDigest != [32]byte{}:
		return Permit{}, errors.New("environment records (env.NAME) are not supported for modules")
	}
	if err := checkModuleVariables(spec.Environment); err != nil {
		return Permit{}, err
	}
	return Permit{Module: spec.Image, User: defaultUser()}, checkWords(spec.Arguments)
}

// checkModuleVariables allows more than processes get: nothing outside the module reads its variables.
func checkModuleVariables(environment []string) error {
	for _, variable := range environment {
		name, _, found := strings.Cut(variable, "=")
		if !found || !syntax.ValidVariable(name) || strings.ContainsRune(variable, 0) {
			return fmt.Errorf("environment variable %s is not NAME=value", syntax.Quote(variable))
		}
		if strings.HasPrefix(name, "COLLOID_") {
			return fmt.Errorf("environment variable %s is set by runnerd itself", name)
		}
	}
	return nil
}

// wasm reads the block about modules.
func (p *parser) wasm(s *syntax.Statement) {
	if len(s.Arguments) != 0 || !s.Block {
		p.complain(s.Position, "wasm needs a block, as in wasm { module /usr/lib/colloid/hello.wasm }")
		return
	}
	w := &Wasm{Capabilities: workload.CapabilitiesKnown, MemoryMiB: wasmMemoryMost}
	seen := map[string]bool{}
	for i := range s.Body {
		body := &s.Body[i]
		if seen[body.Name] && body.Name != "module" {
			p.complain(body.Position, "%s is given twice, expected once", body.Name)
		}
		seen[body.Name] = true
		switch body.Name {
		case "module":
			p.moduleFiles(w, body)
		case "url":
			w.Addresses = p.anyOrNone(body)
		case "capabilities":
			w.Capabilities = p.capabilities(body)
		case "memory":
			w.MemoryMiB = uint32(p.number(body, "an amount as in 256mb", 1, wasmMemoryMost, units{"mb": 1, "gb": 1024}))
		default:
			p.complain(body.Position, "unknown statement %s, expected module, url, capabilities or memory", body.Name)
		}
	}
	p.policy.Wasm = w
}

func (p *parser) moduleFiles(w *Wasm, s *syntax.Statement) {
	if s.Block || len(s.Arguments) == 0 || len(w.Files)+len(s.Arguments) > modulesMax {
		p.complain(s.Position, "module needs the paths of files and no block, at most %d in all", modulesMax)
		return
	}
	for _, word := range s.Arguments {
		if !filepath.IsAbs(word.Text) || filepath.Clean(word.Text) != word.Text {
			p.complain(word.Position, "path %s is not a clean absolute path", syntax.Quote(word.Text))
		}
		w.Files = append(w.Files, word.Text)
	}
}

func (p *parser) capabilities(s *syntax.Statement) (mask uint32) {
	if s.Block || len(s.Arguments) == 0 {
		p.complain(s.Position, "capabilities needs names, or the word none")
		return 0
	}
	for _, word := range s.Arguments {
		for name := range strings.SplitSeq(word.Text, ",") {
			bit := workload.CapabilityOf(name)
			if bit == 0 && (name != "none" || len(s.Arguments) > 1) {
				p.complain(word.Position, "capability %s is unknown, expected some of %s", syntax.Quote(name),
					workload.CapabilityNames(workload.CapabilitiesKnown))
			}
			mask |= bit
		}
	}
	return mask
}
