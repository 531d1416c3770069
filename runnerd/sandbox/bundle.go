package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/sandbox/seccomp"
)

// Bundle gives the config.json of the OCI runtime specification that describes the same world to an
// external runtime, and its process alone, without program and environment, for further processes in the
// same container. rootfs is where the runtime finds the root. files is a directory in which Bundle writes
// what the container finds as files; it and the result hold secrets, so neither may lie on a disk (F83).
func Bundle(c *Config, program Program, rootfs, files string) (config, process []byte, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	identity, err := resolveIn(c)
	if err != nil {
		return nil, nil, err
	}
	mounts := bundleMounts(c)
	for n, f := range c.Files {
		source := filepath.Join(files, fmt.Sprint(n))
		if err := writeBundleFile(c, &f, identity, source); err != nil {
			return nil, nil, fmt.Errorf("write %s: %w", f.Path, err)
		}
		options := []string{"bind", "nosuid", "nodev", "noexec"}
		if f.ReadOnly {
			options = append(options, "ro")
		}
		mounts = append(mounts, bundleMount{f.Path, "bind", source, options})
	}
	first := bundleProcess(c, identity)
	if process, err = json.Marshal(first); err != nil {
		return nil, nil, err
	}
	first["args"], first["env"] = program.Arguments, withHome(program.Environment, identity.Home)
	config, err = json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"hostname":   c.Hostname,
		"root":       map[string]any{"path": rootfs, "readonly": c.ReadOnlyRoot},
		"mounts":     mounts,
		"process":    first,
		"linux": map[string]any{
			"uidMappings":   []map[string]any{{"containerID": 0, "hostID": c.UIDBase, "size": c.Count}},
			"gidMappings":   []map[string]any{{"containerID": 0, "hostID": c.GIDBase, "size": c.Count}},
			"namespaces":    bundleNamespaces(c),
			"maskedPaths":   masked,
			"readonlyPaths": readOnly,
			"seccomp":       bundleSeccomp(),
		},
	})
	return config, process, err
}

// writeBundleFile writes one file with the owner and the mode that it has inside.
func writeBundleFile(c *Config, f *File, identity Identity, path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	owner := Identity{}
	if f.Owned {
		owner = identity
	}
	_, err = file.Write(f.Content)
	return errors.Join(err, file.Chown(int(c.UIDBase+owner.UID), int(c.GIDBase+owner.GID)),
		file.Chmod(os.FileMode(f.Mode&0o777)), file.Close())
}

// bundleProcess is the part of a process that does not depend on what it runs.
func bundleProcess(c *Config, identity Identity) map[string]any {
	var capabilities []string
	for _, name := range c.capabilities() {
		capabilities = append(capabilities, "CAP_"+name)
	}
	filesMax := c.RlimitNOFILE
	if filesMax == 0 {
		filesMax = rlimitFiles
	}
	var now unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &now) == nil {
		filesMax = min(filesMax, now.Max)
	}
	return map[string]any{
		"cwd":             workingDirectory(c),
		"user":            map[string]any{"uid": identity.UID, "gid": identity.GID, "additionalGids": identity.Groups},
		"capabilities":    map[string]any{"bounding": capabilities, "permitted": capabilities, "effective": capabilities},
		"noNewPrivileges": true,
		"rlimits": []map[string]any{
			{"type": "RLIMIT_NOFILE", "hard": filesMax, "soft": filesMax}, {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
		},
	}
}

// resolveIn finds the ids of the user in an image that is mounted but not entered.
func resolveIn(c *Config) (Identity, error) {
	root, err := unix.Open(c.Rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Identity{}, fmt.Errorf("open %s: %w", c.Rootfs, err)
	}
	defer unix.Close(root)
	return resolveUser(c, openIn(root))
}

// openIn opens files of an image by a descriptor of its root; no link leads out of it.
func openIn(root int) openFile {
	return func(name string) (*os.File, error) {
		how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
		fd, err := unix.Openat2(root, name[1:], &how)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

type bundleMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

func bundleMounts(c *Config) []bundleMount {
	data := []string{"nosuid", "noexec", "nodev"}
	with := func(more ...string) []string { return append(append([]string{}, data...), more...) }
	list := []bundleMount{
		{"/proc", "proc", "proc", data},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "noexec", "mode=755", "size=64k"}},
		{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{"/dev/shm", "tmpfs", "shm", with("mode=1777", "size=64m")},
		{"/dev/mqueue", "mqueue", "mqueue", data},
		{"/sys", "tmpfs", "tmpfs", with("ro", "mode=755", "size=4k")},
	}
	for _, m := range c.Mounts {
		if m.Tmpfs {
			size := max(m.SizeMiB, 1)
			list = append(list, bundleMount{m.Target, "tmpfs", "tmpfs",
				[]string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%dm", size)}})
			continue
		}
		options := []string{"bind", "nosuid", "nodev"}
		if m.ReadOnly {
			options = append(options, "ro")
		}
		list = append(list, bundleMount{m.Target, "bind", m.Source, options})
	}
	return list
}

func bundleNamespaces(c *Config) []map[string]string {
	var list []map[string]string
	for _, kind := range []string{"user", "pid", "mount", "uts", "ipc", "cgroup"} {
		list = append(list, map[string]string{"type": kind})
	}
	network := map[string]string{"type": "network"}
	if c.NetworkNamespace != "" {
		network["path"] = c.NetworkNamespace
	}
	return append(list, network)
}

// bundleSeccomp is the filter of package seccomp in the runtime specification's form.
func bundleSeccomp() map[string]any {
	allow := func(name string, value, valueTwo uint64, op string) map[string]any {
		return map[string]any{"names": []string{name}, "action": "SCMP_ACT_ALLOW", "args": []map[string]any{
			{"index": 0, "value": value, "valueTwo": valueTwo, "op": op}}}
	}
	calls := []map[string]any{
		{"names": seccomp.Allowed, "action": "SCMP_ACT_ALLOW"},
		{"names": seccomp.Unavailable, "action": "SCMP_ACT_ERRNO", "errnoRet": uint(unix.ENOSYS)},
		allow("clone", seccomp.NamespaceFlags, 0, "SCMP_CMP_MASKED_EQ"),
	}
	for _, family := range seccomp.SocketFamilies {
		calls = append(calls, allow("socket", family, 0, "SCMP_CMP_EQ"))
	}
	for _, persona := range seccomp.Personalities {
		calls = append(calls, allow("personality", persona, 0, "SCMP_CMP_EQ"))
	}
	architecture := "SCMP_ARCH_X86_64"
	if runtime.GOARCH == "arm64" {
		architecture = "SCMP_ARCH_AARCH64"
	}
	return map[string]any{"defaultAction": "SCMP_ACT_ERRNO", "architectures": []string{architecture}, "syscalls": calls}
}
