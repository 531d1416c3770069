package runnerd

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/image"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/trust"
	"colloid.net/runnerd/wasm"
)

const (
	wasmCacheName   = "wasm-cache"
	wasmKeyName     = "wasm-cache.key"
	volumesName     = "volumes"
	fileInvoke      = "invoke" // the worker's listening socket, in the instance's directory
	wasmCacheMax    = 1 << 30  // bytes of all workloads together
	wasmEngineMiB   = 96       // beside the module's own memory
	wasmUserFirst   = 0x70000000
	wasmUserBits    = 26
	insideCache     = "/cache"
	insideVolumes   = "/volumes/"
	reasonTailBytes = 16 << 10
)

// wasmBackend runs modules, each in a worker process of its own (F142): this binary again, in a sandbox
// without network, of which it sees nothing but its cache and its volumes. The module comes as an open
// descriptor. Without root there is no sandbox: then the worker's own filter of system calls is what
// confines it, and it may have no volumes.
type wasmBackend struct {
	owners    trust.Users
	directory string
	worker    string // the binary that the worker is
	modules   Modules
	caches    *compileCaches
	least     time.Duration // Timing.AheadLeast
}

// Modules fetches modules by their address; the image store does.
type Modules interface {
	Module(ctx context.Context, reference string, digest [32]byte, progress func(image.Progress)) (*os.File, error)
}

func newWasmBackend(options *Options, images Images) *wasmBackend {
	b := &wasmBackend{owners: options.Owners, directory: options.Directory, worker: options.Worker, least: options.Timing.AheadLeast,
		caches: newCompileCaches(filepath.Join(options.Directory, wasmCacheName))}
	b.modules, _ = images.(Modules)
	return b
}

// fetch makes the module be here. It takes no place among the launches: a server that sends it slowly would hold up
// those of all other workloads.
func (b *wasmBackend) fetch(ctx context.Context, j *launchJob, progress func(string)) error {
	if address, err := url.Parse(j.spec.Image); err == nil && address.Scheme != "file" { // prepare opens files
		module, err := b.openModule(ctx, j, sayProgress(progress))
		if err != nil {
			return err
		}
		module.Close()
	}
	b.caches.await(ctx, j.id, j.spec.ImageDigest, progress)
	return ctx.Err()
}

func (b *wasmBackend) prepare(ctx context.Context, j *launchJob) (*os.File, error) {
	module, err := b.openModule(ctx, j, nil)
	if err != nil {
		return nil, err
	}
	j.config.Extra = append(j.config.Extra, module) // wasm.ExtraModule, once the settings stand before it
	settings := &wasm.Settings{
		Workload: j.key, Digest: fmt.Sprintf("%x", j.spec.ImageDigest), Capabilities: j.spec.Capabilities,
		Deterministic: j.spec.Deterministic, MemoryPages: policy.WasmMemoryMiB(j.spec) << 20 >> 16,
		Arguments: j.spec.Arguments, Environment: moduleEnvironment(j.config.Environment),
	}
	if err := b.places(j, settings); err != nil {
		return nil, err
	}
	listener, err := listenWorker(j.config.Directory)
	if err != nil {
		return nil, err
	}
	j.config.Extra = append(j.config.Extra, listener)
	file, err := settings.File()
	if err != nil {
		return nil, err
	}
	j.config.Extra = []*os.File{wasm.ExtraSettings: file, wasm.ExtraModule: module, wasm.ExtraListener: listener}
	return b.program(j)
}

// program completes a job with the worker's program and limits.
func (b *wasmBackend) program(j *launchJob) (*os.File, error) {
	j.config.Arguments = []string{"runnerd", wasm.Argument}
	// With one processor of the runtime, what waits in the kernel for an invocation had it taken away after 20 us and had
	// to wait for it afterwards, as a rule; a second one makes a short call faster by 10 to 30 us.
	j.config.Environment = []string{"GOMAXPROCS=2", "GOGC=50", "GOTRACEBACK=none",
		fmt.Sprintf("GOMEMLIMIT=%dMiB", wasmEngineMiB*3/4)}
	j.limits.MemoryMiB = policy.WasmMemoryMiB(j.spec) + wasmEngineMiB
	worker := b.worker
	if worker == "" {
		worker = "/proc/self/exe"
	}
	binary, err := os.Open(worker)
	if err != nil {
		return nil, fmt.Errorf("open the worker's binary: %w", err)
	}
	return binary, nil
}

// moduleEnvironment leaves out what means something to host processes only.
func moduleEnvironment(environment []string) []string {
	var list []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "PATH=") && !strings.HasPrefix(variable, "PORT") {
			list = append(list, variable)
		}
	}
	return list
}

// openModule opens the module and checks the digest of what it opened. What is wrong with a file stays
// wrong; fetching is tried again.
func (b *wasmBackend) openModule(ctx context.Context, j *launchJob, progress func(image.Progress)) (*os.File, error) {
	address, err := url.Parse(j.spec.Image)
	if err != nil {
		return nil, denial{fmt.Errorf("module %s is no URL", quoteKey(j.spec.Image))}
	}
	if address.Scheme != "file" {
		if b.modules == nil {
			return nil, denial{fmt.Errorf("this runnerd cannot fetch %s: use a file URL", quoteKey(j.spec.Image))}
		}
		return b.modules.Module(ctx, j.spec.Image, j.spec.ImageDigest, progress)
	}
	file, path, err := b.owners.OpenFile(address.Path)
	if err != nil {
		return nil, denial{fmt.Errorf("%s may not run: %w", address.Path, err)}
	}
	if err := checkModule(file, path, j.spec.ImageDigest); err != nil {
		file.Close()
		return nil, denial{err}
	}
	return file, nil
}

func checkModule(file *os.File, path string, wanted [32]byte) error {
	hash := sha256.New()
	n, err := io.Copy(hash, io.NewSectionReader(file, 0, wasm.ModuleSizeMax+1))
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", path, err)
	case n > wasm.ModuleSizeMax:
		return fmt.Errorf("%s has more than %d bytes", path, wasm.ModuleSizeMax)
	case [32]byte(hash.Sum(nil)) != wanted:
		return fmt.Errorf("%s has sha256 %x, the workload wants %x", path, hash.Sum(nil), wanted)
	}
	return nil
}

// wasmUser is the id outside of a replica's worker: the same at each start, so that it owns its volumes
// again. The range lies above those that distributions give to people and containers.
func wasmUser(id InstanceID) uint32 {
	hash := (id.KeyHash ^ uint64(id.Slot)) * 0x9E3779B97F4A7C15
	return wasmUserFirst + uint32(hash>>(64-wasmUserBits))
}

// places makes the directories of the worker and, with root, its sandbox.
func (b *wasmBackend) places(j *launchJob, settings *wasm.Settings) error {
	uid, confined := wasmUser(j.id), canSwitchUser()
	key, err := b.cacheKey(j)
	if err != nil {
		return err
	}
	own := cacheOf(b.directory, j.id)
	b.caches.prune(func(path string) bool { return path == own })
	if err := ownDirectory(own, uid, confined); err != nil {
		return err
	}
	// The mark of the worker before must not speak for the next one.
	if err := os.RemoveAll(filepath.Join(own, wasm.LoadedMark)); err != nil {
		return err
	}
	b.caches.fill(own, j.id.KeyHash, j.spec.ImageDigest, cacheOwner{uid, confined})
	settings.CacheDirectory, settings.CacheKey = own, key
	if !confined {
		if len(j.spec.Volumes) > 0 {
			return denial{errors.New("modules have no volumes where runnerd runs without root")}
		}
		return nil
	}
	world := workerWorld(uid, own)
	settings.CacheDirectory = insideCache
	for n, volume := range j.spec.Volumes {
		place := filepath.Join(b.directory, volumesName, j.key, strconv.Itoa(int(j.id.Slot)), volume.Name)
		if err := ownDirectory(place, uid, true); err != nil {
			return err
		}
		inside := insideVolumes + strconv.Itoa(n)
		world.Mounts = append(world.Mounts, sandbox.Mount{Source: place, Target: inside})
		settings.Volumes = append(settings.Volumes, wasm.Volume{Directory: inside, Mount: volume.MountPath})
	}
	j.config.Sandbox = world
	return nil
}

// workerWorld is the sandbox of a worker of which it sees nothing but its cache.
func workerWorld(uid uint32, cache string) *sandbox.Config {
	return &sandbox.Config{
		UIDBase: uid, GIDBase: uid, Count: 1, Hostname: "wasm", Capabilities: []string{}, RlimitNOFILE: 256,
		Mounts: []sandbox.Mount{{Source: cache, Target: insideCache}},
	}
}

// moduleLoaded tells whether a worker has compiled its module, which takes a second or more for a large one: until
// then it takes no invocations. One that cannot leave its mark, on a full disk, counts when it would have given up.
func moduleLoaded(cache string, worker procfs.Process) func() bool {
	return func() bool {
		_, err := os.Lstat(filepath.Join(cache, wasm.LoadedMark))
		return err == nil || worker.Age() > wasm.LoadPatience
	}
}

// ownDirectory makes a directory that belongs to the worker alone.
func ownDirectory(path string, uid uint32, chown bool) error {
	if err := os.MkdirAll(filepath.Dir(path), directoryMode); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !chown {
		return nil
	}
	return os.Lchown(path, int(uid), int(uid))
}

// cacheKey is the key of the codes over a workload's cache: other workloads have others, and so has
// another module.
func (b *wasmBackend) cacheKey(j *launchJob) ([]byte, error) {
	path := filepath.Join(b.directory, wasmKeyName)
	master, err := os.ReadFile(path)
	if err != nil || len(master) != sha256.Size {
		master = make([]byte, sha256.Size)
		_, _ = rand.Read(master) // never fails
		if err := os.WriteFile(path, master, 0o600); err != nil {
			return nil, fmt.Errorf("key of the compile cache: %w", err)
		}
	}
	code := hmac.New(sha256.New, master)
	fmt.Fprintf(code, "%s\x00%x", j.key, j.spec.ImageDigest)
	return code.Sum(nil), nil
}

// workerAddress reaches the socket through a descriptor of its directory: paths of sockets are short.
func workerAddress(directory string) (address *unix.SockaddrUnix, parent int, err error) {
	parent, err = unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", directory, err)
	}
	return &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", parent, fileInvoke)}, parent, nil
}

func workerSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket of the worker: %w", err)
	}
	return os.NewFile(uintptr(fd), fileInvoke), nil
}

// listenWorker makes the socket on which the worker will take connections; only runnerd reaches it. The
// worker inherits it, so connections survive a restart of runnerd and can be made again after it.
func listenWorker(directory string) (*os.File, error) {
	address, parent, err := workerAddress(directory)
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	socket, err := workerSocket()
	if err != nil {
		return nil, err
	}
	_ = unix.Unlinkat(parent, fileInvoke, 0)
	if err = unix.Bind(int(socket.Fd()), address); err == nil {
		if err = unix.Fchmodat(parent, fileInvoke, 0o600, 0); err == nil {
			err = unix.Listen(int(socket.Fd()), 4)
		}
	}
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("socket of the worker: %w", err)
	}
	_ = unix.SetNonblock(int(socket.Fd()), true) // Fd made it blocking
	return socket, nil
}

// connectWorker makes a new connection to a running worker.
func connectWorker(directory string) (*os.File, error) {
	address, parent, err := workerAddress(directory)
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	socket, err := workerSocket()
	if err != nil {
		return nil, err
	}
	// Not blocking: a worker that does not accept has a full backlog, which is an answer too.
	if err := unix.Connect(int(socket.Fd()), address); err != nil {
		socket.Close()
		return nil, fmt.Errorf("the worker takes no connection: %w", err)
	}
	_ = unix.SetNonblock(int(socket.Fd()), true)
	return socket, nil
}

func (b *wasmBackend) release(string) error { return nil }

func (b *wasmBackend) exec(*launchJob, []string) (*shim.Config, *os.File, error) {
	return nil, nil, errors.New("a module has no programs to execute")
}

// wasmReason finds what a worker said last about why it ends. The module may have written such a line
// itself: it is shown to people and decides nothing.
func wasmReason(directory, otherwise string) string {
	file, err := os.OpenFile(filepath.Join(directory, shim.FileLog), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return otherwise
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return otherwise
	}
	tail, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-reasonTailBytes), reasonTailBytes))
	if err != nil {
		return otherwise
	}
	return cmp.Or(parseReason(string(tail)), otherwise)
}

// parseReason gives the last line that is a reason, "" if there is none.
func parseReason(tail string) string {
	lines := strings.Split(tail, "\n")
	for n := len(lines) - 1; n >= 0; n-- {
		if reason, found := strings.CutPrefix(lines[n], wasm.ReasonPrefix); found && reason != "" {
			return reason
		}
	}
	return ""
}
