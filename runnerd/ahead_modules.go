package runnerd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
)

// A module that stands by is compiled by a worker of its own: a shim and a sandbox as every worker has, a user id that no
// replica has, the memory limit of a replica, the lowest priority. It runs in a directory below preparations/, which is not
// among the instances: what a runnerd that was killed left there is ended and removed by the next one.

const (
	preparationsName = "preparations"
	filePreparation  = "preparation" // in a preparation's directory: its control group
	// compilePatience bounds a compilation at the lowest priority by the clock; the worker bounds what it costs.
	compilePatience = 10 * time.Minute
	// At first the worker gets what nobody else wants, weightLeast and the lowest priority. On a host that is always busy it
	// would never come to its end: after Timing.AheadLeast it gets weightLater, or what niceLater stands for.
	weightLeast, weightLater = 1, 10 // per cent
	niceLater                = 10
)

// moduleCompiler is the backend of workers that compile only.
type moduleCompiler struct {
	*wasmBackend
	cache string
	user  uint32
}

// standbyUser is the id outside of the worker that compiles what stands by.
func standbyUser(id InstanceID, digest [32]byte) uint32 {
	return wasmUser(InstanceID{KeyHash: id.KeyHash ^ binary.BigEndian.Uint64(digest[:8]), Slot: 1<<16 - 1})
}

// ahead makes the module be here, compiled. here are the instances of this host.
func (b *wasmBackend) ahead(ctx context.Context, j *launchJob, here []InstanceID) error {
	module, err := b.openAhead(ctx, j)
	if err != nil {
		return fmt.Errorf("fetch module %.200s: %w", j.spec.Image, err)
	}
	defer module.Close()
	digest := j.spec.ImageDigest
	if b.caches.find(j.id.KeyHash, digest) != "" {
		return nil
	}
	cache := b.caches.standbyOf(j.id.KeyHash, digest)
	keep := func(path string) bool {
		return path == cache || slices.ContainsFunc(here, func(id InstanceID) bool { return path == cacheOf(b.directory, id) })
	}
	if !b.caches.prune(keep) {
		return nil // what runs here needs all of the room, and compiles when it starts
	}
	this, err := b.caches.begin(cache)
	if err != nil {
		return err
	}
	defer b.caches.end(cache)
	if err := b.compile(ctx, j, module, cache, this); err != nil {
		b.caches.remove(cache)
		return fmt.Errorf("compile module %.200s: %w", j.spec.Image, err)
	}
	if !b.caches.holds(cache, digest) || !b.caches.prune(keep) {
		b.caches.remove(cache) // too large for a cache: each start compiles
	}
	return nil
}

func (b *wasmBackend) openAhead(ctx context.Context, j *launchJob) (*os.File, error) {
	modules, can := b.modules.(interface {
		ModuleAhead(ctx context.Context, reference string, digest [32]byte) (*os.File, error)
	})
	if address, err := url.Parse(j.spec.Image); can && err == nil && address.Scheme != "file" {
		return modules.ModuleAhead(ctx, j.spec.Image, j.spec.ImageDigest)
	}
	return b.openModule(ctx, j, nil)
}

// compile runs a worker that compiles into a cache, until it has ended and nothing of it is left.
func (b *wasmBackend) compile(ctx context.Context, j *launchJob, module *os.File, cache string, this *compilation) error {
	compiler := &moduleCompiler{b, cache, standbyUser(j.id, j.spec.ImageDigest)}
	if err := ownDirectory(cache, compiler.user, canSwitchUser()); err != nil {
		return err
	}
	if err := b.caches.claim(cache, j.spec.ImageDigest); err != nil {
		return err
	}
	job := *j
	job.backend, job.release = compiler, func(string) {}
	var err error
	if job.config.Directory, job.group, err = b.makePreparation(j); err != nil {
		return err
	}
	defer os.RemoveAll(job.config.Directory)
	copied, err := unix.FcntlInt(module.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	job.config.Extra = []*os.File{wasm.ExtraSettings: nil, wasm.ExtraModule: os.NewFile(uintptr(copied), "module")}
	started, err := job.attempt(ctx)
	if err != nil {
		return err
	}
	r := run{
		directory: job.config.Directory, process: started.Workload, shim: started.Shim, groups: job.groups, group: job.group,
		release: job.release,
	}
	code, reason := r.compiled(ctx, this, b.least)
	r.shim.Wait(time.Second, nil) // nobody else collects it
	reapShim(r.shim)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case code != 0:
		return errors.New(reason)
	}
	return nil
}

// compiled waits for the end of a worker that compiles only, and ends it when it is in the way.
func (r *run) compiled(ctx context.Context, this *compilation, least time.Duration) (code int, reason string) {
	// Where the kernel shares processors among sessions, priorities mean nothing to processes of others.
	writeAutogroup(r.process.PID, shim.NiceMax)
	patience, cancel := context.WithTimeout(ctx, compilePatience)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.process.Wait(-1, patience.Done())
	}()
	later := time.NewTimer(least)
	defer later.Stop()
	for hurry, over := this.hurry, false; !over; {
		select {
		case <-ended:
			over = true
		case <-later.C:
			raiseSession(r.process.PID, niceLater)
			r.groupPath().Weigh(weightLater)
		case <-hurry:
			hurry = nil
			later.Stop()
			r.groupPath().Weigh(100)
			if !raiseSession(r.process.PID, 0) { // then the start that waits is faster with a worker of its own
				cancel()
			}
		}
	}
	if r.process.Alive() {
		r.kill()
		code, _ = r.settle()
		return code, fmt.Sprintf("given up, for a start that needs it or after %v", compilePatience)
	}
	return r.settle()
}

func writeAutogroup(leader, nice int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", leader), []byte(strconv.Itoa(nice)), 0)
}

// raiseSession takes back some of the low priority of a session, which takes root.
func raiseSession(leader, nice int) bool {
	writeAutogroup(leader, nice)
	return unix.Setpriority(unix.PRIO_PGRP, leader, nice) == nil
}

// makePreparation makes the directory of a worker that compiles only, and writes down its control group.
func (b *wasmBackend) makePreparation(j *launchJob) (directory, group string, err error) {
	name := nonce()
	directory = filepath.Join(b.directory, preparationsName, name)
	if err := os.MkdirAll(filepath.Join(directory, shim.DirScratch), directoryMode); err != nil {
		return "", "", err
	}
	r := record.Record{}
	if j.groups != nil {
		group = "preparation-" + name
		r.Set("group", group)
	}
	if err := record.Keep(filepath.Join(directory, filePreparation), r); err != nil {
		_ = os.RemoveAll(directory)
		return "", "", err
	}
	return directory, group, nil
}

func (b *moduleCompiler) prepare(_ context.Context, j *launchJob) (*os.File, error) {
	key, err := b.cacheKey(j)
	if err != nil {
		return nil, err
	}
	settings := &wasm.Settings{
		Workload: j.key, Digest: fmt.Sprintf("%x", j.spec.ImageDigest), Capabilities: j.spec.Capabilities,
		Deterministic: j.spec.Deterministic, MemoryPages: policy.WasmMemoryMiB(j.spec) << 20 >> 16,
		CacheDirectory: b.cache, CacheKey: key, CompileOnly: true,
	}
	if canSwitchUser() {
		j.config.Sandbox = workerWorld(b.user, b.cache)
		settings.CacheDirectory = insideCache
	}
	file, err := settings.File()
	if err != nil {
		return nil, err
	}
	j.config.Extra[wasm.ExtraSettings] = file
	j.config.Nice = shim.NiceMax
	j.limits = cgroup.Limits{CPUMillicores: j.spec.CPUMillicores, PIDs: j.spec.PidsMax, WeightPercent: weightLeast}
	return b.program(j)
}

// sweepPreparations ends and removes what a runnerd left that was killed.
func (s *Supervisor) sweepPreparations() {
	root := filepath.Join(s.options.Directory, preparationsName)
	for _, found := range shim.FindAll(root) {
		_ = found.Workload.Signal(unix.SIGKILL) // there is nothing that it should end in peace
		stopOrphan(found)
	}
	entries, _ := os.ReadDir(root)
	for _, entry := range entries {
		directory := filepath.Join(root, entry.Name())
		r, err := record.Load(filepath.Join(directory, filePreparation))
		group := r.Get("group")
		if err == nil && s.options.Groups != nil && group != "" && filepath.Base(group) == group {
			killGroup(s.options.Groups.Path(group))
			if err := s.options.Groups.Remove(group); err != nil {
				s.options.Log.Printf("cannot clean up behind %s: %v", directory, err)
				continue
			}
		}
		_ = os.RemoveAll(directory)
	}
}
