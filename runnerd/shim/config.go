package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
)

// Config is what a shim is told. It travels as a record through a pipe: arguments and variables of a
// workload never stand in the command line of the shim.
type Config struct {
	Directory string // the instance's
	Watch     bool   // only watch the process Root
	Spare     bool   // become a sandbox that waits for its instance, see Spare
	Root      procfs.Process
	Session   int // of the workload, for cleaning up

	Cgroup      cgroup.Group
	Identity    bool // change to UID and GID
	UID, GID    uint32
	Arguments   []string // argv, the path included
	Environment []string
	LogRate     int
	// Nice is how little of the processors the workload gets beside others, 0 to 19 as the kernel counts.
	Nice int
	// Sandbox is the world that the workload runs in, nil for a process of the host.
	Sandbox *sandbox.Config
	// Extra are files that the workload inherits as descriptors ExtraFirst, ExtraFirst+1, ...; the caller
	// closes its own copies after Launch.
	Extra []*os.File
	extra int // their number
	// Runtime is an external OCI runtime that makes the sandbox, "" = this program; Name is the container's.
	Runtime, Name string
	// Terminal makes the first standard file of a further process its controlling terminal.
	Terminal bool
	// binary says that the workload is a descriptor that was checked; without one the sandbox looks the
	// first argument up inside.
	binary bool
}

// configVersion changes with whatever a shim of an earlier version would not understand or would miss: a
// half-upgraded host must not run an image outside its sandbox.
const configVersion = "4"

func (c *Config) record() record.Record {
	r := record.Record{}
	r.Set("version", configVersion)
	r.Set("directory", c.Directory)
	r.Set("watch", strconv.FormatBool(c.Watch))
	r.Set("spare", strconv.FormatBool(c.Spare))
	r.SetInt("pid", int64(c.Root.PID))
	r.SetUint("ticks", c.Root.StartTicks)
	r.SetInt("session", int64(c.Session))
	r["cgroup"] = c.Cgroup
	r.Set("identity", strconv.FormatBool(c.Identity))
	r.SetUint("uid", uint64(c.UID))
	r.SetUint("gid", uint64(c.GID))
	r["argument"] = c.Arguments
	r["variable"] = c.Environment
	r.SetInt("log_rate", int64(c.LogRate))
	r.SetInt("nice", int64(c.Nice))
	r.Set("runtime", c.Runtime)
	r.Set("name", c.Name)
	r.Set("binary", strconv.FormatBool(c.binary))
	r.SetInt("extra", int64(c.extra))
	if c.Sandbox != nil {
		r.Set("sandbox", string(c.Sandbox.Record().Encode()))
	}
	return r
}

// NiceMax is the lowest priority of a process.
const NiceMax = 19

var errForm = errors.New("shim: configuration has values that are not understood")

var errConfig = errors.New("shim: configuration lacks the directory or the arguments")

func parseConfig(r record.Record) (*Config, error) {
	if version := r.Get("version"); version != configVersion {
		return nil, fmt.Errorf("shim: configuration of version %.20q, expected %s: runnerd and runnerd-shim are not of one release",
			version, configVersion)
	}
	c := &Config{
		Directory:   r.Get("directory"),
		Watch:       r.Get("watch") == "true",
		Spare:       r.Get("spare") == "true",
		Root:        procfs.Process{PID: int(r.Int("pid")), StartTicks: r.Uint("ticks")},
		Session:     int(r.Int("session")),
		Cgroup:      r["cgroup"],
		Identity:    r.Get("identity") == "true",
		UID:         uint32(r.Uint("uid")),
		GID:         uint32(r.Uint("gid")),
		Arguments:   r["argument"],
		Environment: r["variable"],
		LogRate:     int(r.Int("log_rate")),
		Nice:        int(r.Int("nice")),
		Runtime:     r.Get("runtime"),
		Name:        r.Get("name"),
		binary:      r.Get("binary") == "true",
		extra:       int(r.Int("extra")),
	}
	if text := r.Get("sandbox"); text != "" {
		inner, err := record.Parse([]byte(text))
		if err != nil {
			return nil, err
		}
		if c.Sandbox, err = sandbox.ParseRecord(inner); err != nil {
			return nil, err
		}
	}
	// Numbers out of range, garbage and fields of another version: a shim carries out nothing but what it was told.
	if !bytes.Equal(c.record().Encode(), r.Encode()) {
		return nil, errForm
	}
	if c.extra < 0 || c.extra > extraMax || c.Nice < 0 || c.Nice > NiceMax {
		return nil, errConfig
	}
	if c.Directory == "" || !c.Watch && !c.Spare && len(c.Arguments) == 0 || c.Spare && c.Sandbox == nil {
		return nil, errConfig
	}
	return c, nil
}
