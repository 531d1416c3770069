package runnerd

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"colloid.net/runnerd/image"
	"colloid.net/runnerd/podnet"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
	"colloid.net/workload"
)

// fileVariables is where the environment of a container's program is kept for probes, in the instance's
// directory, which only root reads; without the secrets (F83).
const fileVariables = "variables"

// describe fills in the world of a container: what the image says, and what the specification says
// instead.
func (j *launchJob) describe(rootfs string, base uint32, lease podnet.Lease, mounts []sandbox.Mount) {
	spec := j.spec
	entrypoint, arguments := programOf(j)
	j.config.Arguments = append(slices.Clone(entrypoint), arguments...)
	j.config.Environment = mergeVariables([]string{"PATH=" + defaultPath}, j.image.Environment,
		withoutDefaults(j.config.Environment))
	user := spec.User
	if user == "" {
		user = j.image.User
	}
	hostname := hostnameOf(j.key, j.id.Slot, j.cell)
	j.config.Name = j.id.String()
	j.config.Sandbox = &sandbox.Config{
		Rootfs: rootfs, ReadOnlyRoot: spec.ReadOnlyRoot, UIDBase: base, GIDBase: base, Count: sandbox.IDCount,
		User: user, Hostname: hostname, WorkingDirectory: workingDirectory(j.image.WorkingDirectory),
		NetworkNamespace: lease.Namespace, Mounts: mounts, Files: j.sandboxFiles(hostname, lease),
		Capabilities: append(slices.Clone(sandbox.DefaultCapabilities), j.permit.Containers.Capabilities...),
		Init:         true, StopSignal: sandbox.SignalNumber(j.image.StopSignal),
	}
	r := record.Record{}
	r["variable"] = withoutNames(j.config.Environment, j.secrets)
	_ = record.Keep(filepath.Join(j.config.Directory, fileVariables), r) // a probe then runs with less
}

// programOf is what a container runs, and with which arguments.
func programOf(j *launchJob) (entrypoint, arguments []string) {
	entrypoint, arguments = j.image.Entrypoint, j.image.Command
	if len(j.spec.Command) > 0 { // the image's arguments were meant for its own program
		entrypoint, arguments = j.spec.Command, nil
	}
	if len(j.spec.Arguments) > 0 {
		arguments = j.spec.Arguments
	}
	return entrypoint, arguments
}

func workingDirectory(image string) string {
	if !filepath.IsAbs(image) {
		return "/"
	}
	return filepath.Clean(image)
}

// withoutDefaults drops the search path that processes of the host get: an image has its own.
func withoutDefaults(environment []string) []string {
	if len(environment) > 0 && environment[0] == "PATH="+defaultPath {
		return environment[1:]
	}
	return environment
}

// mergeVariables joins lists of NAME=value; a later value replaces an earlier one at its place.
func mergeVariables(lists ...[]string) []string {
	var merged []string
	place := map[string]int{}
	for _, list := range lists {
		for _, variable := range list {
			name, _, found := strings.Cut(variable, "=")
			if !found || name == "" {
				continue
			}
			if n, seen := place[name]; seen {
				merged[n] = variable
				continue
			}
			place[name] = len(merged)
			merged = append(merged, variable)
		}
	}
	return merged
}

func withoutNames(environment, secrets []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		return slices.Contains(secrets, variable)
	})
}

// hostnameMax is the longest label of a domain name.
const hostnameMax = 63

// hostnameOf makes a host name of a workload's key, a slot and a cell: "web-0-0ed8834c" of "spread.web". Each cell counts
// its slots from 0, so only the beginning of its id tells the copies of a workload apart.
func hostnameOf(key string, slot uint16, cell uint64) string {
	name := key
	if _, after, found := strings.Cut(key, "."); found {
		name = after
	}
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return fmt.Sprintf("%s-%d-%08x", name[:min(len(name), hostnameMax-1-len("65535")-1-8)], slot, cell>>32)
}

// sandboxFiles are what runnerd puts in front of the image: names, resolvers, and the environment's files.
func (j *launchJob) sandboxFiles(hostname string, lease podnet.Lease) []sandbox.File {
	own := "127.0.1.1"
	if lease.IPv4.IsValid() {
		own = lease.IPv4.String()
	}
	hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + own + " " + hostname + "\n"
	if lease.IPv6.IsValid() {
		hosts += lease.IPv6.String() + " " + hostname + "\n"
	}
	files := []sandbox.File{
		{Path: "/etc/hosts", Mode: 0o644, Content: []byte(hosts)},
		{Path: "/etc/hostname", Mode: 0o644, Content: []byte(hostname + "\n")},
		{Path: "/etc/resolv.conf", Mode: 0o644, Content: []byte(resolvers(lease.Resolvers))},
	}
	for _, f := range j.files {
		files = append(files, sandbox.File{
			Path: f.Path, Mode: uint32(f.Mode), Content: f.Content, ReadOnly: true, Owned: true,
		})
	}
	return files
}

func resolvers(list []netip.Addr) string {
	if len(list) == 0 {
		return "# no resolver: this instance has no network\n"
	}
	var text strings.Builder
	for _, address := range list {
		text.WriteString("nameserver " + address.String() + "\n")
	}
	return text.String()
}

// volumesDirName holds the volumes of containers: plain directories of this host, one per replica, that
// outlive the instance.
const volumesDirName = "volumes"

// volumes gives the mounts of a container: what the policy binds to the volume's name, or a directory.
func (b *ociBackend) volumes(j *launchJob, base uint32) ([]sandbox.Mount, error) {
	var mounts []sandbox.Mount
	for _, v := range j.spec.Volumes {
		if bind, listed := j.permit.Containers.Bind(v.Name); listed {
			mounts = append(mounts, sandbox.Mount{Source: bind.Path, Target: v.MountPath, ReadOnly: bind.ReadOnly})
			continue
		}
		place := filepath.Join(b.directory, volumesDirName, j.key, strconv.Itoa(int(j.id.Slot)), v.Name)
		if err := makeVolume(b.directory, place, base); err != nil {
			return nil, fmt.Errorf("make volume %s: %w", v.Name, err)
		}
		mounts = append(mounts, sandbox.Mount{Source: place, Target: v.MountPath})
	}
	return mounts, nil
}

// makeVolume makes the directory of a volume and gives what is in it to the ids of the instance: an
// earlier one had others.
func makeVolume(top, place string, base uint32) error {
	if !strings.HasPrefix(place, top+"/") || filepath.Clean(place) != place {
		return fmt.Errorf("%s is not below %s", place, top)
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(place, 0o755); err == nil {
		return os.Lchown(place, int(base), int(base))
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	root, err := os.OpenRoot(place)
	if err != nil {
		return err
	}
	defer root.Close()
	own := func(id uint32) int { return int(base + id%sandbox.IDCount) }
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid-stat.Uid%sandbox.IDCount == base && stat.Gid-stat.Gid%sandbox.IDCount == base {
			return nil
		}
		if err := root.Lchown(name, own(stat.Uid), own(stat.Gid)); err != nil {
			return err
		}
		if entry.Type().IsRegular() { // changing the owner takes these bits away
			return root.Chmod(name, info.Mode())
		}
		return nil
	})
}

// checkLimits refuses a container whose limits this host cannot hold (F141).
func (s *Supervisor) checkLimits(spec *workload.Spec) error {
	if spec.Runtime != workload.RuntimeOCI || s.policy.AllowUnlimited {
		return nil
	}
	missing := s.options.Groups.Missing()
	for _, limit := range [...]struct {
		controller string
		wanted     bool
	}{{"cpu", spec.CPUMillicores > 0}, {"memory", spec.MemoryMiB > 0}, {"pids", spec.PidsMax > 0}} {
		if limit.wanted && slices.Contains(missing, limit.controller) {
			return fmt.Errorf("this host has no control group controller %s for the limit that the workload asks for: "+
				"give runnerd one (Delegate=yes), or write allow_unlimited in its policy", limit.controller)
		}
	}
	return nil
}

// check asks the policy about a specification, and about the image and the limits of a container.
func (s *Supervisor) check(spec *workload.Spec) (policy.Permit, error) {
	permit, err := s.policy.Check(spec)
	if err != nil || spec.Runtime != workload.RuntimeOCI {
		return permit, err
	}
	_, repository, err := image.Normalize(spec.Image)
	if err != nil {
		return policy.Permit{}, fmt.Errorf("%.200q is no reference of an image: %w", spec.Image, err)
	}
	if err := s.policy.CheckImage(repository); err != nil {
		return policy.Permit{}, err
	}
	return permit, s.checkLimits(spec)
}
