package wasm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Argument is the first argument of the worker, Program the small program that is nothing else.
const (
	Argument = "wasm-worker"
	Program  = "runnerd-wasm"
)

// Extra descriptors of the worker, in the order in which runnerd passes them; the shim says where the
// first one is.
const (
	ExtraSettings = 0 // memory file with the Settings
	ExtraModule   = 1 // the module, read-only
	ExtraListener = 2 // listening SOCK_SEQPACKET socket on which runnerd makes connections
	ExtraCount    = 3
)

// Exit codes of the worker itself. A service's own code passes through.
const (
	ExitModule = 125 // the module cannot run; the last line of the log that begins with ReasonPrefix says why
	ExitTrap   = 134 // the service trapped
)

// LoadedMark is a file that the worker makes in its cache directory once the module is compiled: from then on it takes
// invocations. Workers that run for LoadPatience have done so or could not write.
const (
	LoadedMark   = "loaded"
	LoadPatience = compilePatience + 10*time.Second
)

// ReasonPrefix begins the line with which a worker says why it ends.
const ReasonPrefix = "colloid-wasm: "

const settingsSizeMax = 256 << 10

// Volume is a directory that the module finds at Mount.
type Volume struct {
	Directory string // where the worker finds it
	Mount     string // where the module does
}

// Settings is what a worker is told.
type Settings struct {
	Workload       string // name for messages
	Digest         string // of the module, hexadecimal
	Capabilities   uint32 // workload.Capability...
	Deterministic  bool
	MemoryPages    uint32 // of 64 KiB, the most a module may have
	Arguments      []string
	Environment    []string
	Volumes        []Volume
	CacheDirectory string // "" = no cache
	CacheKey       []byte // of the codes over its files
	CompileOnly    bool   // compile into the cache and end: there is no listener, and nothing of the module runs
}

// Capability bits; they equal those of package workload, which a test compares.
const (
	capabilityKVRead  = 1 << 0
	capabilityKVWrite = 1 << 1
	capabilityMetrics = 1 << 2
	capabilityStreams = 1 << 3
	capabilityFSRead  = 1 << 4
	capabilityFSWrite = 1 << 5
	capabilityClock   = 1 << 6
	capabilityRandom  = 1 << 7
	capabilityEnv     = 1 << 8
	capabilityStdio   = 1 << 9
)

func (s *Settings) may(capability uint32) bool { return s.Capabilities&capability != 0 }

func (s *Settings) check() error {
	if s.MemoryPages == 0 || s.MemoryPages > pagesMax {
		return fmt.Errorf("settings: %d pages of memory", s.MemoryPages)
	}
	if s.CompileOnly && (s.CacheDirectory == "" || len(s.CacheKey) == 0 || len(s.Volumes) > 0) {
		return errors.New("settings: there is nothing but a cache to compile for, and it needs a directory and a key")
	}
	if s.Deterministic && len(s.Volumes) > 0 {
		return errors.New("a deterministic module has no volumes: what they hold is no input of an invocation")
	}
	for _, v := range s.Volumes {
		if !path.IsAbs(v.Mount) || !path.IsAbs(v.Directory) {
			return fmt.Errorf("settings: volume %q at %q", v.Directory, v.Mount)
		}
	}
	return nil
}

// File puts the settings into a sealed memory file, to be passed to the worker.
func (s *Settings) File() (*os.File, error) {
	raw, err := json.Marshal(s)
	if err != nil || len(raw) > settingsSizeMax {
		return nil, fmt.Errorf("settings of %d bytes, expected at most %d", len(raw), settingsSizeMax)
	}
	fd, err := unix.MemfdCreate("colloid-wasm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "settings")
	if _, err = file.WriteAt(raw, 0); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return file, nil
}

func readSettings(file io.ReaderAt) (*Settings, error) {
	raw, err := io.ReadAll(io.NewSectionReader(file, 0, settingsSizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	s := &Settings{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}
