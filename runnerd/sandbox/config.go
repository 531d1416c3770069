package sandbox

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"colloid.net/runnerd/record"
)

// Bounds.
const (
	MountsMax   = 32
	FilesMax    = 64
	FileSizeMax = 64 << 10 // of all files together
	IDCount     = 65536    // ids of one instance
)

// Config describes the world of one instance.
type Config struct {
	// Rootfs is a mounted directory of the host, owned by the instance's ids; "" means an empty tmpfs.
	Rootfs       string
	ReadOnlyRoot bool
	// UIDBase and GIDBase are what 0 inside is outside; Count ids follow each other.
	UIDBase, GIDBase, Count uint32
	// User is "user", "user:group", names of the image's passwd and group files or numbers. If it is
	// empty, UID, GID and AdditionalGIDs (all ids inside) say who runs the program.
	User             string
	UID, GID         uint32
	AdditionalGIDs   []uint32
	Hostname         string
	WorkingDirectory string
	// NetworkNamespace is the path of a prepared one; "" means a new one with nothing but lo.
	NetworkNamespace string
	Mounts           []Mount
	Files            []File
	// Capabilities bound what root inside can do, by name without CAP_; nil means DefaultCapabilities.
	Capabilities []string
	RlimitNOFILE uint64 // 0 means 65536
	// Init keeps the stage as process 1 in front of the program. Without it the stage becomes the
	// program: nobody collects zombies, and nothing further can be executed inside.
	Init       bool
	StopSignal int // what the init passes on when it is told to end, 0 means SIGTERM
}

// Mount is a directory or file of the host, or a tmpfs, inside.
type Mount struct {
	Source, Target  string
	ReadOnly, Tmpfs bool
	SizeMiB         uint32 // of a tmpfs, 0 means 64
}

// File is a file that runnerd writes, in memory, in front of what the image has at its place.
type File struct {
	Path     string
	Mode     uint32
	Content  []byte
	ReadOnly bool
	// Owned gives the file to the user of the program instead of root inside.
	Owned bool
}

// Record gives the form that travels through the pipe.
func (c *Config) Record() record.Record {
	r := record.Record{}
	r.Set("rootfs", c.Rootfs)
	r.Set("read_only", strconv.FormatBool(c.ReadOnlyRoot))
	r.SetUint("uid_base", uint64(c.UIDBase))
	r.SetUint("gid_base", uint64(c.GIDBase))
	r.SetUint("count", uint64(c.Count))
	r.Set("user", c.User)
	r.SetUint("uid", uint64(c.UID))
	r.SetUint("gid", uint64(c.GID))
	for _, gid := range c.AdditionalGIDs {
		r.Add("group", strconv.FormatUint(uint64(gid), 10))
	}
	r.Set("hostname", c.Hostname)
	r.Set("directory", c.WorkingDirectory)
	r.Set("network", c.NetworkNamespace)
	for _, m := range c.Mounts {
		for _, value := range []string{m.Source, m.Target, strconv.FormatBool(m.ReadOnly),
			strconv.FormatBool(m.Tmpfs), strconv.FormatUint(uint64(m.SizeMiB), 10)} {
			r.Add("mount", value)
		}
	}
	for _, f := range c.Files {
		for _, value := range []string{f.Path, strconv.FormatUint(uint64(f.Mode), 10), string(f.Content),
			strconv.FormatBool(f.ReadOnly), strconv.FormatBool(f.Owned)} {
			r.Add("file", value)
		}
	}
	r["capability"] = c.capabilities()
	r.SetUint("nofile", c.RlimitNOFILE)
	r.Set("init", strconv.FormatBool(c.Init))
	r.SetInt("stop", int64(c.StopSignal))
	return r
}

// ParseRecord reads what Record wrote and validates it.
func ParseRecord(r record.Record) (*Config, error) {
	c := &Config{
		Rootfs: r.Get("rootfs"), ReadOnlyRoot: r.Get("read_only") == "true",
		UIDBase: uint32(r.Uint("uid_base")), GIDBase: uint32(r.Uint("gid_base")), Count: uint32(r.Uint("count")),
		User: r.Get("user"), UID: uint32(r.Uint("uid")), GID: uint32(r.Uint("gid")), Hostname: r.Get("hostname"),
		WorkingDirectory: r.Get("directory"), NetworkNamespace: r.Get("network"),
		Capabilities: append([]string{}, r["capability"]...), RlimitNOFILE: r.Uint("nofile"),
		Init: r.Get("init") == "true", StopSignal: int(r.Int("stop")),
	}
	for _, text := range r["group"] {
		gid, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("sandbox: group %q is no number", text)
		}
		c.AdditionalGIDs = append(c.AdditionalGIDs, uint32(gid))
	}
	mounts, files := r["mount"], r["file"]
	if len(mounts)%5 != 0 || len(files)%5 != 0 {
		return nil, errors.New("sandbox: the configuration has an incomplete mount or file")
	}
	for ; len(mounts) > 0; mounts = mounts[5:] {
		size, _ := strconv.ParseUint(mounts[4], 10, 32)
		c.Mounts = append(c.Mounts, Mount{Source: mounts[0], Target: mounts[1], ReadOnly: mounts[2] == "true",
			Tmpfs: mounts[3] == "true", SizeMiB: uint32(size)})
	}
	for ; len(files) > 0; files = files[5:] {
		mode, _ := strconv.ParseUint(files[1], 10, 32)
		c.Files = append(c.Files, File{Path: files[0], Mode: uint32(mode), Content: []byte(files[2]),
			ReadOnly: files[3] == "true", Owned: files[4] == "true"})
	}
	return c, c.Validate()
}

// idLowest is the lowest id outside that may belong to an instance: below are the host's own accounts.
const idLowest = 65536

// Validate checks what a mistake in would cost the host.
func (c *Config) Validate() error {
	for _, base := range []uint32{c.UIDBase, c.GIDBase} {
		if base < idLowest || uint64(base)+uint64(c.Count) > 1<<31 {
			return fmt.Errorf("sandbox: ids %d to %d are not outside the host's own", base, uint64(base)+uint64(c.Count))
		}
	}
	if c.Count == 0 || c.Count > IDCount || c.UID >= c.Count || c.GID >= c.Count {
		return fmt.Errorf("sandbox: user %d, group %d of %d ids", c.UID, c.GID, c.Count)
	}
	if len(c.Mounts) > MountsMax || len(c.Files) > FilesMax {
		return fmt.Errorf("sandbox: %d mounts and %d files, expected at most %d and %d",
			len(c.Mounts), len(c.Files), MountsMax, FilesMax)
	}
	for _, m := range c.Mounts {
		if err := checkTarget(m.Target); err != nil {
			return err
		}
		if m.Tmpfs == (m.Source != "") {
			return fmt.Errorf("sandbox: mount at %q needs a source or tmpfs, not both", m.Target)
		}
	}
	total := 0
	for _, f := range c.Files {
		if err := checkTarget(f.Path); err != nil {
			return err
		}
		total += len(f.Content)
	}
	if total > FileSizeMax {
		return fmt.Errorf("sandbox: files have %d bytes, expected at most %d", total, FileSizeMax)
	}
	if c.StopSignal < 0 || c.StopSignal > 64 {
		return fmt.Errorf("sandbox: stop signal %d does not exist", c.StopSignal)
	}
	_, err := capabilityNumbers(c.capabilities())
	return err
}

// checkTarget refuses what would cover the parts of the world that confine.
func checkTarget(target string) error {
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" || strings.ContainsRune(target, 0) {
		return fmt.Errorf("sandbox: %q is no clean absolute path below /", target)
	}
	for _, kept := range []string{"/proc", "/sys"} {
		if target == kept || strings.HasPrefix(target, kept+"/") {
			return fmt.Errorf("sandbox: nothing may be mounted at %s", target)
		}
	}
	return nil
}
