package runnerd

import (
	"context"
	"os"

	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// backend prepares what a shim executes; there is one per runtime class. Its methods run on goroutines
// of launches and probes, several at a time for different instances.
type backend interface {
	// prepare gives the descriptor to execute, nil where the sandbox finds its program itself, and
	// completes job.config. What it makes on the host is written down in the instance's directory first.
	prepare(ctx context.Context, job *launchJob) (binary *os.File, err error)
	// release undoes what prepare made on the host (mounts, network) once nothing of the instance runs,
	// also in a later runnerd: it depends on the instance's directory alone. It is called for every
	// instance and more than once; without a trace of prepare it does nothing.
	release(directory string) error
	// exec configures a further process inside a running instance.
	exec(job *launchJob, arguments []string) (*shim.Config, *os.File, error)
}

// forgetter is a backend that keeps something of an instance from run to run.
type forgetter interface {
	// forget lets go of it when the instance does not exist any more and its directory is about to be
	// removed. It runs on the loop's goroutine. An error keeps the directory.
	forget(id InstanceID, directory string) error
}

// newBackends are the runtime classes that this runnerd can run at all; the policy says which it may.
func newBackends(options *Options, images Images) map[workload.Runtime]backend {
	return map[workload.Runtime]backend{
		workload.RuntimeProcess: &processBackend{owners: options.Owners},
		workload.RuntimeWasm:    newWasmBackend(options, images),
		workload.RuntimeOCI:     newOCIBackend(options, images),
	}
}

// containerImages is where containers come from, nil where this runnerd can run none: their ids can only
// be given by root.
func (s *Supervisor) containerImages() Images {
	if s.options.Images != nil {
		return s.options.Images
	}
	if !canSwitchUser() || s.images == nil {
		return nil
	}
	return s.images
}

// release undoes what a launch made on the host. The runtime class is not asked: a directory whose
// state cannot be read is cleaned as well.
func (s *Supervisor) release(directory string) {
	for _, b := range s.backends {
		if err := b.release(directory); err != nil {
			s.options.Log.Printf("cannot clean up behind %s: %v", directory, err)
		}
	}
}
