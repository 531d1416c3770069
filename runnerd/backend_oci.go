package runnerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"colloid.net/runnerd/image"
	"colloid.net/runnerd/podnet"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/trust"
	"colloid.net/workload"
)

// Images is where containers get their root file systems; *image.Client is one.
type Images interface {
	Ensure(ctx context.Context, reference string, digest [32]byte, progress func(image.Progress)) (image.Config, error)
	Mount(ctx context.Context, name string, digest [32]byte, ids image.IDRange, diskMiB uint32) (string, error)
	Unmount(ctx context.Context, name string) error
}

// Network gives containers a network of their own; *podnet.Network is one. Without one, a container has
// nothing but lo. Its methods may be called from any goroutine.
type Network interface {
	// Prepare makes the network of an instance, or finds it as it was made before.
	Prepare(ctx context.Context, name string, request podnet.Request) (podnet.Lease, error)
	// Publish gives a network that Prepare made without ports to an instance, the owner.
	Publish(name, owner string, ports []workload.Port) error
	// Release takes it away; there need not be one. It may be called by a later runnerd.
	Release(name string) error
	// Retain takes away what no instance of these has.
	Retain(names []string) error
	// Resolver and ResolverSocket are about the sockets on which meshd answers names.
	Resolver() (ranges []netip.Prefix, generation uint64)
	ResolverSocket(ipv6, stream bool) (*os.File, error)
	// Allow lets containers reach ports of the host itself: those of its processes and modules.
	Allow(ports []workload.Port) error
	// Check repairs what others have taken away of it.
	Check() (repaired bool, err error)
	Close()
}

// fetcher is a backend with work before the launch that may take minutes and holds no place among the
// launches meanwhile.
type fetcher interface {
	fetch(ctx context.Context, job *launchJob, progress func(string)) error
}

// ociBackend runs containers.
type ociBackend struct {
	directory string // of the supervisor
	owners    trust.Users
	images    Images // nil = none can be run
	network   Network
	ids       *sandbox.Allocator
	idsErr    error
}

func newOCIBackend(options *Options, images Images) *ociBackend {
	b := &ociBackend{directory: options.Directory, owners: options.Owners, images: images, network: options.Network}
	b.ids, b.idsErr = sandbox.OpenAllocator(filepath.Join(options.Directory, "ids"))
	return b
}

// fileContainer in an instance's directory says what release has to undo.
const fileContainer = "container"

// unmountPatience bounds how long taking a root away may take.
const unmountPatience = 30 * time.Second

// fetch makes the image be here.
func (b *ociBackend) fetch(ctx context.Context, j *launchJob, progress func(string)) error {
	if b.images == nil {
		return denial{errors.New("this runnerd cannot run containers: it does not run as root")}
	}
	config, err := b.images.Ensure(ctx, j.spec.Image, j.spec.ImageDigest, sayProgress(progress))
	var refused *image.Refusal
	if errors.As(err, &refused) {
		return denial{refused}
	}
	if err != nil {
		return err
	}
	j.image = config
	return nil
}

// sayProgress makes the progress of a pull a reason, once a second, and at once where it begins or ends to wait.
func sayProgress(progress func(string)) func(image.Progress) {
	var said time.Time
	queued := false
	return func(p image.Progress) {
		if now := time.Now(); now.Sub(said) >= time.Second || p.Queued != queued {
			said, queued = now, p.Queued
			progress(p.String())
		}
	}
}

func (b *ociBackend) prepare(ctx context.Context, j *launchJob) (*os.File, error) {
	if b.idsErr != nil {
		return nil, denial{b.idsErr}
	}
	if entrypoint, arguments := programOf(j); len(entrypoint)+len(arguments) == 0 {
		return nil, denial{errors.New("the image names no program to run, and neither does the workload: give it a command")}
	}
	base, err := b.base(j)
	if err != nil {
		return nil, err
	}
	runtime, err := b.runtime(j)
	if err != nil {
		return nil, err
	}
	if j.spare == nil { // what an earlier start left may have a seat that only its record names
		if err := b.release(j.config.Directory); err != nil {
			return nil, err
		}
	}
	r := seatRecord(j.id, j.spare)
	r.Set("runtime", runtime)
	r.SetInt("stop", int64(sandbox.SignalNumber(j.image.StopSignal)))
	if err := record.Keep(filepath.Join(j.config.Directory, fileContainer), r); err != nil {
		return nil, err
	}
	// The root and the network have nothing to do with each other.
	var lease podnet.Lease
	joined := make(chan error, 1)
	go func() {
		var err error
		lease, err = b.join(ctx, j)
		joined <- err
	}()
	rootfs, err := b.images.Mount(ctx, j.id.String(), j.spec.ImageDigest,
		image.IDRange{Base: base, Count: sandbox.IDCount}, j.spec.DiskMiB)
	if err := errors.Join(err, <-joined); err != nil {
		return nil, err
	}
	mounts, err := b.volumes(j, base)
	if err != nil {
		return nil, err
	}
	j.describe(rootfs, base, lease, mounts)
	j.config.Runtime = runtime
	return nil, nil
}

// base is the first id of an instance.
func (b *ociBackend) base(j *launchJob) (uint32, error) {
	if j.spare != nil {
		return j.spare.base, nil
	}
	return b.ids.Take(j.id.String())
}

// join gives a container its network.
func (b *ociBackend) join(ctx context.Context, j *launchJob) (podnet.Lease, error) {
	settings := j.permit.Containers.Network
	if settings.None || b.network == nil {
		return podnet.Lease{}, nil
	}
	var lease podnet.Lease
	var err error
	if j.spare != nil {
		lease, err = j.spare.lease, b.network.Publish(j.spare.seat, j.id.String(), j.spec.Ports)
	} else {
		lease, err = b.network.Prepare(ctx, j.id.String(),
			podnet.Request{Settings: settings, Cell: j.cell, Ports: j.spec.Ports})
	}
	var refused *podnet.Refusal
	if errors.As(err, &refused) {
		return lease, denial{refused}
	}
	if err != nil {
		return lease, fmt.Errorf("prepare the network: %w", err)
	}
	j.address, j.addressIPv6 = lease.IPv4, lease.IPv6
	return lease, nil
}

// runtime is the external runtime of the policy, checked like every binary of the host that is run.
func (b *ociBackend) runtime(j *launchJob) (string, error) {
	path := j.permit.Containers.Runtime
	if path == "" {
		return "", nil
	}
	file, resolved, err := b.owners.OpenFile(path)
	if err != nil {
		return "", denial{fmt.Errorf("the runtime %s may not run: %w", path, err)}
	}
	file.Close()
	return resolved, nil
}

func (b *ociBackend) release(directory string) error {
	path := filepath.Join(directory, fileContainer)
	r, err := record.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	name := filepath.Base(directory)
	if err == nil && r.Get("id") != "" {
		name = r.Get("id")
	}
	if _, ok := parseInstanceID(name); !ok {
		return fmt.Errorf("%s is no record of a container", path)
	}
	if runtime := r.Get("runtime"); runtime != "" {
		shim.DeleteExternal(runtime, directory, name)
	}
	seat := r.Get("seat")
	if !isSeat(seat) {
		seat = ""
	}
	var failures []error
	if b.network != nil {
		failures = append(failures, b.network.Release(name))
		if seat != "" {
			failures = append(failures, b.network.Release(seat))
		}
	}
	if b.images != nil {
		ctx, cancel := context.WithTimeout(context.Background(), unmountPatience)
		defer cancel()
		failures = append(failures, b.images.Unmount(ctx, name))
	}
	if err := errors.Join(failures...); err != nil {
		return err // the record stays: the next release tries again
	}
	if seat != "" && b.ids != nil {
		if err := b.ids.Return(seat); err != nil {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forget gives the ids of an instance back that does not exist any more, unless files of it are left.
func (b *ociBackend) forget(id InstanceID, directory string) error {
	if b.ids == nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(directory, fileContainer)); err == nil {
		return errors.New("its root file system could not be taken away")
	}
	return b.ids.Return(id.String())
}

// exec leaves finding the program and entering to the init of the sandbox.
func (b *ociBackend) exec(j *launchJob, arguments []string) (*shim.Config, *os.File, error) {
	r, err := record.Load(filepath.Join(j.config.Directory, fileContainer))
	if err != nil {
		return nil, nil, err
	}
	j.config.Runtime, j.config.Name = r.Get("runtime"), j.id.String()
	j.config.Arguments, j.config.Sandbox = arguments, &sandbox.Config{}
	text, err := record.Load(filepath.Join(j.config.Directory, fileVariables))
	if err == nil {
		j.config.Environment = text["variable"]
	}
	return &j.config, nil, nil
}
