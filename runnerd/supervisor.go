package runnerd

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/procfs"
	"colloid.net/workload"
)

// Supervisor runs the instances of one directory. Its methods may be called from any goroutine.
type Supervisor struct {
	options Options
	lock    *os.File
	audit   *audit
	images  *image.Client // its methods may be called from any goroutine but the loop's
	calls   chan func()
	quit    chan struct{}
	stopped chan struct{}
	once    sync.Once
	launch  chan struct{} // one token per launch under way
	// backends never changes: goroutines of launches read it.
	backends map[workload.Runtime]backend

	// All below belongs to the loop's goroutine.
	policy      *policy.Policy
	policyFile  fileIdentity
	offered     *policy.Policy // the last good one, from which meshd hears what this host can take
	policyError string         // why the file was not taken, "" = it was
	instances   map[InstanceID]*instance
	denials     []InstanceID // denied instances in the order they were denied
	gone        []*message.Instance
	alarms      []string // what a person has to know of this run
	unwritten   unwritten
	session     *session
	retry       *time.Timer
	launchSlot  time.Duration
	attachments attachments
	blobs       blobRequests
	grants      *grants
	spares      *spares // nil = no containers
	ahead       preparations
	checking    bool            // the network is being looked at
	allowing    bool            // a change of them is under way
	allowed     []workload.Port // ports of the host that containers may reach
}

// Open locks the directory, reads the policy and adopts what runs. Close it to let the directory go;
// workloads live on.
func Open(options Options) (*Supervisor, error) {
	options.complete()
	directory, err := filepath.Abs(options.Directory)
	if err != nil {
		return nil, err
	}
	options.Directory = directory
	s := &Supervisor{
		options: options, calls: make(chan func(), 64), quit: make(chan struct{}),
		stopped: make(chan struct{}), launch: make(chan struct{}, launchesAtOnce),
		instances: map[InstanceID]*instance{}, ahead: newPreparations(),
	}
	for _, name := range []string{"", instancesDirName, trashDirName} {
		if err := os.MkdirAll(filepath.Join(directory, name), directoryMode); err != nil {
			return nil, fmt.Errorf("runnerd: create state directory: %w", err)
		}
	}
	if s.lock, err = lockDirectory(directory); err != nil {
		return nil, err
	}
	if s.audit, err = openAudit(filepath.Join(directory, "audit.log")); err != nil {
		s.lock.Close()
		return nil, err
	}
	if err := s.openImages(); err != nil {
		s.audit.close()
		s.lock.Close()
		return nil, err
	}
	if err := s.openNetwork(); err != nil {
		s.audit.close()
		s.lock.Close()
		return nil, err
	}
	s.backends = newBackends(&s.options, s.containerImages())
	s.loadPolicy()
	if s.grants, err = openGrants(filepath.Join(directory, "grants"), time.Now()); err != nil {
		options.Log.Print(err)
	}
	s.emptyTrash()
	s.reclaimOrphans()
	s.sweepPreparations()
	s.openSpares()
	s.retainNetworks()
	s.adoptAll()
	go s.loop()
	return s, nil
}

// lockPatience is how long a new runnerd waits for the old one to end.
const lockPatience = 5 * time.Second

func lockDirectory(directory string) (*os.File, error) {
	path := filepath.Join(directory, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("runnerd: lock state directory: %w", err)
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(50 * time.Millisecond) {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return file, nil
		}
		if time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("runnerd: another runnerd uses %s, expected one per directory", directory)
		}
	}
}

// Close ends the supervisor and the session. Instances run on.
func (s *Supervisor) Close() {
	s.once.Do(func() { close(s.quit) })
	<-s.stopped
	s.ahead.work.Wait() // not in the loop: what is prepared may ask it something
}

func (s *Supervisor) loop() {
	defer close(s.stopped)
	tick := time.NewTicker(s.options.Timing.PolicyCheck)
	defer tick.Stop()
	for {
		select {
		case call := <-s.calls:
			call()
		case <-tick.C:
			s.checkPolicy()
			s.keepRecords()
			s.writeAgain()
			s.lookForKills()
			s.checkNetwork()
		case <-s.quit:
			s.end()
			return
		}
		s.allowPorts()
		s.keepSpare()
		s.answerLaunched()
		s.flush()
	}
}

func (s *Supervisor) end() {
	if s.session != nil {
		s.session.link.Close()
	}
	for _, i := range s.instances {
		i.stopTimers()
	}
	if s.retry != nil {
		s.retry.Stop()
	}
	s.cancelPreparations()
	if s.spares != nil {
		s.spares.close()
	}
	if s.options.Network != nil {
		s.options.Network.Close()
	}
	s.images.Close()
	s.audit.close()
	s.lock.Close()
}

// post runs a function on the loop's goroutine, later. It reports false when the supervisor ended.
func (s *Supervisor) post(call func()) bool {
	select {
	case s.calls <- call:
		return true
	case <-s.quit:
		return false
	}
}

// do is post that waits until the function has run.
func (s *Supervisor) do(call func()) bool {
	done := make(chan struct{})
	if !s.post(func() { defer close(done); call() }) {
		return false
	}
	select {
	case <-done:
		return true
	case <-s.stopped:
		return false
	}
}

// report runs a function for an instance unless that has moved on since epoch.
func (s *Supervisor) report(id InstanceID, epoch int, call func(*instance)) {
	s.post(func() {
		if i := s.instances[id]; i != nil && i.epoch == epoch {
			call(i)
		}
	})
}

// enter moves an instance to another phase and writes that down, for a later runnerd.
func (s *Supervisor) enter(i *instance, next phase, reason string) {
	i.stopTimers()
	i.phase, i.reason, i.dirty = next, reason, true
	if next != phaseRunning {
		i.ready = readinessUnknown
	}
	if next == phaseDenied {
		return
	}
	s.write(i)
}

// forget removes an instance and its directory and tells meshd that it is gone.
func (s *Supervisor) forget(i *instance) {
	i.stopTimers()
	delete(s.instances, i.id)
	s.dispose(i.id, i.directory)
	s.announceGone(&message.Instance{
		Id: i.id.message(), Key: i.key, State: message.InstanceState_INSTANCE_GONE,
		ExitCode: int32(i.exitCode), Restarts: i.restarts, Reason: shorten(i.reason),
	})
}

// dispose removes what there is of an instance that does not exist any more. Where something could not be
// undone on the host, the directory stays, and the next runnerd tries again.
func (s *Supervisor) dispose(id InstanceID, directory string) {
	if directory == "" {
		return
	}
	for _, b := range s.backends {
		if f, keeps := b.(forgetter); keeps {
			if err := f.forget(id, directory); err != nil {
				s.options.Log.Printf("cannot clean up behind %s: %v", id, err)
				return
			}
		}
	}
	s.removeDirectory(directory)
}

// announceGone queues a GONE. Beyond the bound a whole listing says the same: what is not named in it
// does not exist.
func (s *Supervisor) announceGone(m *message.Instance) {
	if len(s.gone) >= goneMax {
		s.gone = nil
		s.relist()
		return
	}
	s.gone = append(s.gone, m)
}

// removeDirectory takes the name away at once and the content in the background.
func (s *Supervisor) removeDirectory(directory string) {
	if directory == "" {
		return
	}
	name := fmt.Sprintf("%s-%d", filepath.Base(directory), procfs.BootTime())
	trash := filepath.Join(s.options.Directory, trashDirName, name)
	if err := os.Rename(directory, trash); err != nil {
		if !os.IsNotExist(err) {
			s.options.Log.Printf("cannot remove %s: %v", directory, err)
		}
		return
	}
	go os.RemoveAll(trash)
}

func (s *Supervisor) emptyTrash() {
	trash := filepath.Join(s.options.Directory, trashDirName)
	entries, err := os.ReadDir(trash)
	if err != nil || len(entries) == 0 {
		return
	}
	go func() {
		for _, entry := range entries {
			_ = os.RemoveAll(filepath.Join(trash, entry.Name()))
		}
	}()
}
