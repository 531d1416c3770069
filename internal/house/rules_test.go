package house

import (
	"regexp"
	"strings"
)

const module = "colloid.net/"

// layers is the order of the tree: a package may import only what stands in a line above its own.
// A path stands for itself and for everything below it; packages of one path may import each other.
// The longest path that fits decides. A package that fits none fails the test: add it here.
var layers = [][]string{
	{"ipc/passed"},
	{"internal/version", "workload/syntax", "ipc/uds", "ipc/message", "ipc/supply", "ipc/packet", "ipc/invoke", "ipc/grant", "ipc/attach"},
	{"workload", "ipc/ring", "ipc/operator", "ipc/caller"},
	{"meshd/clock"},
	{"meshd/wire"},
	{"meshd/state"},
	{"meshd/crdt", "meshd/seal"},
	{"meshd/overlay"},
	{"meshd/names", "meshd/swim", "meshd/gossip", "meshd/antientropy", "meshd/join", "meshd/placement", "meshd/nat", "meshd/stream"},
	{"meshd/reconcile"},
	{"meshd/cell"},
	{"meshd/sim"},
	{"meshd/reactor", "meshd/resolver", "meshd/storage", "meshd/control", "meshd/pcp"},
	{"meshd"},
	{"runnerd/trust", "runnerd/procfs"},
	{"runnerd/cgroup"},
	{"runnerd/record", "runnerd/health"},
	{"runnerd/sandbox"},
	{"runnerd/policy"},
	{"runnerd/podnet", "runnerd/shim", "runnerd/image", "runnerd/wasm"},
	{"runnerd/logs"},
	{"runnerd"},
	{"runnerd/guest"},
	{"internal/launcher"},
	{"internal/cli"},
	{"cmd", "examples", "internal/testreport", "internal/invariants", "internal/house"},
	{"e2e/cluster"},
	{"e2e", "bench"},
}

// forbidden are imports that the order alone would allow. A helper and meshd never share code but
// what both agree on, or a bug in what reads the network is a bug in what runs as root.
var forbidden = []struct {
	from   string
	to     []string
	except []string
	reason string
}{
	{"ipc", []string{"meshd", "runnerd", "bpfd", "gwd", "volumed", "workload", "internal"}, nil,
		"both sides of every socket import ipc, so it imports neither"},
	{"workload", []string{"meshd", "runnerd", "ipc", "internal"}, nil, "command line, meshd and helpers share it"},
	{"meshd", []string{"runnerd", "bpfd", "gwd", "volumed", "internal/launcher", "internal/cli"}, nil,
		"meshd never imports a helper"},
	{"runnerd", []string{"meshd", "bpfd", "gwd", "volumed", "internal/launcher", "internal/cli"}, nil,
		"a helper never imports meshd or another helper"},
	{"internal/launcher", []string{"meshd", "runnerd", "workload", "ipc/uds", "ipc/ring", "ipc/message"}, nil,
		"the launcher only orchestrates processes"},
	{"internal/cli", []string{"meshd", "runnerd"}, nil, "the command line talks to daemons over the socket"},
	{"e2e", []string{"meshd", "runnerd", "internal"}, nil, "end-to-end tests see what an operator sees"},
	{"cmd/meshd", []string{"runnerd", "internal/cli", "internal/launcher"}, nil, "meshd never imports a helper"},
	{"cmd/runnerd", []string{"meshd", "internal/cli", "internal/launcher"}, nil, "a helper never imports meshd"},
	{"cmd/runnerd-shim", []string{"meshd", "internal/cli", "internal/launcher", "runnerd/image"}, nil,
		"a shim is small"},
	{"cmd/colloid", []string{"meshd", "runnerd"}, nil, "the command line talks to daemons over the socket"},
}

// pure are the packages that are functions of their inputs: time, randomness and I/O come in as
// arguments (DESIGN: the core is a pure state machine), so that one seed gives one run.
var pure = []string{
	"workload",
	"meshd/clock", "meshd/wire", "meshd/state", "meshd/crdt", "meshd/seal", "meshd/overlay", "meshd/swim",
	"meshd/gossip", "meshd/antientropy", "meshd/join", "meshd/names", "meshd/nat", "meshd/placement", "meshd/reconcile",
	"meshd/stream",
	"meshd/cell",
}

// impureImports may not be imported by a pure package; a name that ends in / means all below it too.
var impureImports = []string{
	"os", "os/", "net", "net/", "golang.org/x/sys/", "crypto/rand", "math/rand", "log", "log/",
	"unsafe", "io/ioutil", "path/filepath",
}

// pureDespite lists what of impureImports is harmless.
var pureDespite = []string{"net/netip", "net/url"}

// impureCalls read a clock, or randomness that no seed controls.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"math/rand/v2": {"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint32", "Uint32N", "Uint64", "Uint64N",
		"UintN", "Uint", "N", "Float32", "Float64", "ExpFloat64", "NormFloat64", "Perm", "Shuffle"},
}

// constantsOnly are packages of which a pure package may use nothing but what the expression fits:
// numbers of errors, and for which machine it was compiled.
var constantsOnly = map[string]*regexp.Regexp{
	"syscall": regexp.MustCompile("^E[A-Z0-9]+$"),
	"runtime": regexp.MustCompile("^(GOARCH|GOOS)$"),
}

// noNetwork are packages that open no network socket, with what they may use of package net: nothing.
var noNetwork = []string{"internal/cli", "internal/launcher", "workload"}

// Bounds on length. A function that does not fit a screen, or a file about more than one thing, is
// taken apart.
const (
	functionLinesMax = 70
	fileLinesMax     = 500
)

// lengthExceptions lists what is longer, with its present length. It may only shrink: an entry whose
// code got shorter must be lowered, one that is not needed any more must go.
var lengthExceptions = map[string]int{}

// below reports whether a package path is path itself or below it.
func below(pkg, path string) bool { return pkg == path || strings.HasPrefix(pkg, path+"/") }

// layerOf finds the layer and the path that decided it.
func layerOf(pkg string) (layer int, path string) {
	layer = -1
	for i, paths := range layers {
		for _, p := range paths {
			if below(pkg, p) && len(p) > len(path) {
				layer, path = i, p
			}
		}
	}
	return layer, path
}
