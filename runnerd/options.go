package runnerd

import (
	"log"
	"os"
	"time"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/trust"
)

// Options of a Supervisor.
type Options struct {
	Directory  string          // state: instances, audit log
	PolicyFile string          // absent = nothing may run
	Owners     trust.Users     // who may own the policy and the binaries; nil = trust.Own()
	Groups     *cgroup.Manager // nil = no control groups
	// Credentials is the file with users and passwords of registries; absent = none.
	Credentials string
	// Network gives containers a network; nil = they have nothing but lo.
	Network Network
	// Images replaces the image store of Directory, for tests.
	Images        Images
	Software      string      // for Hello
	Log           *log.Logger // for people; nil = standard error
	Timing        Timing      // zero = the constants below
	Worker        string      // the binary of Wasm workers, "" = this one; it must be static
	ImagesCommand []string    // starts the children for images; nil = this program
}

// Timing lets tests shorten what production never changes. Zero fields mean the defaults.
type Timing struct {
	BackoffFirst time.Duration // 1 s
	BackoffMax   time.Duration // 5 min
	BackoffReset time.Duration // 10 min of running forget the back-off
	PolicyCheck  time.Duration // 5 s
	Liveness     time.Duration // 60 s of a failing health check end an instance
	AheadLeast   time.Duration // 30 s at the lowest priority, then what is prepared gets a little more
}

const (
	backoffFirst = time.Second
	backoffMax   = 5 * time.Minute
	backoffReset = 10 * time.Minute
	policyCheck  = 5 * time.Second
	liveness     = time.Minute
	aheadLeast   = 30 * time.Second

	// The back-off grows by 5/2, so that a crash loop makes 7 starts in its first five minutes (F76
	// allows 8; doubling would make 9).
	backoffNumerator   = 5
	backoffDenominator = 2

	// graceDefault is the time between SIGTERM and SIGKILL where nobody says, graceMax the longest.
	graceDefault = 10 * time.Second
	graceMax     = time.Hour

	// shimPatience is how long a shim may take to clean up behind its workload before it is killed.
	shimPatience = 10 * time.Second

	launchesAtOnce   = 2
	launchInterval   = 100 * time.Millisecond
	launchBurst      = 32
	deniedMax        = 256
	goneMax          = 1024
	reasonMax        = 400 // bytes of a reason sentence
	sendRetry        = 20 * time.Millisecond
	binarySizeMax    = 1 << 30
	protocolVersion  = 1
	defaultPath      = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	directoryMode    = 0o711 // workloads may pass, not look
	scratchMode      = 0o700
	instancesDirName = "instances"
	trashDirName     = "trash"
)

func (o *Options) complete() {
	if o.Owners == nil {
		o.Owners = trust.Own()
	}
	if o.Log == nil {
		o.Log = log.New(os.Stderr, "runnerd: ", log.LstdFlags|log.LUTC)
	}
	o.Timing.complete()
}

func (t *Timing) complete() {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&t.BackoffFirst, backoffFirst)
	set(&t.BackoffMax, backoffMax)
	set(&t.BackoffReset, backoffReset)
	set(&t.PolicyCheck, policyCheck)
	set(&t.Liveness, liveness)
	set(&t.AheadLeast, aheadLeast)
}
