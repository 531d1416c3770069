package runnerd

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/podnet"
	"colloid.net/runnerd/policy"
	"colloid.net/runnerd/record"
	"colloid.net/runnerd/sandbox"
	"colloid.net/runnerd/shim"
	"colloid.net/workload"
)

// Most of what a start costs is the same for every container: two programs to start, namespaces, a dozen mounts,
// a network. So while containers run on this host, one more sandbox stands ready, empty (shim.Spare). The next
// instance that starts for the first time takes it over; another is made behind its back.
//
// A spare has a seat: a name of its own under which it has ids, a lease and a control group. An instance that took
// it over keeps them under that name, which is in its record, until it ends; nothing goes back to be used again.
// There is one spare at a time, because it costs some megabytes of memory and an address. A second start within
// the tenth of a second or so that making one takes is a cold one, as is that of an instance that has had ids of its
// own before, and that of one with volumes: their files would have to be given to other ids at each start.
//
// A spare ends with its runnerd. The next one removes what is left of its seat.

// seatPrefix begins the names of seats. No instance has such a name.
const seatPrefix = "spare-"

const (
	// sparePatience bounds how long making a spare may take.
	sparePatience = 20 * time.Second
	// spareRetry is the pause after one could not be made.
	spareRetry = time.Minute
	// expectEvery is well below the minute after which the process of images ends.
	expectEvery = 20 * time.Second
)

// spare is a sandbox that waits for its instance.
type spare struct {
	seat     string
	shim     *shim.Spare
	settings policy.Network
	cell     uint64
	base     uint32
	lease    podnet.Lease
	group    string // "" = no control groups
	cgroup   cgroup.Group
	expected time.Time // when the images were told of it
}

// spares makes and keeps the spare of a host. Its methods may be called from any goroutine.
type spares struct {
	backend   *ociBackend
	groups    *cgroup.Manager
	instances string // directory of their directories
	log       *log.Logger

	mutex    sync.Mutex
	ready    *spare
	busy     bool // one is being made or taken away
	wanted   bool
	settings policy.Network
	cell     uint64
	again    time.Time // not before
	closed   bool
	work     sync.WaitGroup
}

// want says which spare there should be, or that there should be none. It returns at once.
func (p *spares) want(wanted bool, settings policy.Network, cell uint64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.wanted, p.settings, p.cell = wanted, settings, cell
	p.settle()
}

// settle begins what brings about what is wanted; the caller holds the mutex.
func (p *spares) settle() {
	if p.busy || p.closed {
		return
	}
	unfit := p.ready != nil && (!p.wanted || !p.fits(p.ready, p.settings, p.cell))
	missing := p.wanted && p.ready == nil && !time.Now().Before(p.again)
	if tired := p.ready != nil && !unfit && time.Since(p.ready.expected) > expectEvery; tired {
		p.ready.expected = time.Now()
		p.busy = true
		again := p.ready
		p.work.Go(func() {
			p.expect(again)
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.busy = false
			p.settle()
		})
		return
	}
	if !unfit && !missing {
		return
	}
	old, settings, cell := p.ready, p.settings, p.cell
	p.ready, p.busy = nil, true
	p.work.Go(func() {
		var made *spare
		var err error
		if old != nil {
			p.drop(old)
		} else if made, err = p.make(settings, cell); err != nil {
			p.log.Printf("cannot prepare a sandbox, starts take a little longer: %v", err)
		}
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.busy, p.ready = false, made
		if err != nil {
			p.again = time.Now().Add(spareRetry)
		}
		if p.closed && made != nil {
			made.shim.Close()
			p.ready = nil
		}
		p.settle()
	})
}

func (p *spares) fits(s *spare, settings policy.Network, cell uint64) bool {
	return s.settings == settings && s.cell == cell && s.shim.Alive()
}

// take gives the spare to an instance, nil if there is none for it.
func (p *spares) take(settings policy.Network, cell uint64) *spare {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	s := p.ready
	if s == nil || !p.fits(s, settings, cell) {
		return nil
	}
	p.ready = nil
	return s
}

// make makes a spare.
func (p *spares) make(settings policy.Network, cell uint64) (s *spare, err error) {
	s = &spare{seat: seatPrefix + nonce(), settings: settings, cell: cell}
	defer func() {
		if err != nil {
			p.drop(s)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), sparePatience)
	defer cancel()
	if s.base, err = p.backend.ids.Take(s.seat); err != nil {
		return nil, err
	}
	if !settings.None && p.backend.network != nil {
		if s.lease, err = p.backend.network.Prepare(ctx, s.seat, podnet.Request{Settings: settings, Cell: cell}); err != nil {
			return nil, err
		}
	}
	if p.groups != nil {
		s.group = s.seat
		if s.cgroup, err = p.groups.Create(s.group, cgroup.Limits{}); err != nil {
			return nil, err
		}
	}
	s.shim, err = shim.Prepare(&shim.Config{
		Directory: p.instances, Cgroup: s.cgroup,
		Sandbox: &sandbox.Config{UIDBase: s.base, GIDBase: s.base, Count: sandbox.IDCount, Init: true,
			NetworkNamespace: s.lease.Namespace},
	})
	if err == nil {
		p.expect(s)
	}
	return s, err
}

// expect keeps the process awake that mounts roots, with what it can make ahead. It would end when it has no
// work, and start with the next container.
func (p *spares) expect(s *spare) {
	if images, can := p.backend.images.(expecter); can {
		ctx, cancel := context.WithTimeout(context.Background(), sparePatience)
		defer cancel()
		_ = images.Expect(ctx, image.IDRange{Base: s.base, Count: sandbox.IDCount})
		s.expected = time.Now()
	}
}

// expecter are images that can prepare for a mount.
type expecter interface {
	Expect(ctx context.Context, ids image.IDRange) error
}

// drop takes a spare away that nobody has taken over.
func (p *spares) drop(s *spare) {
	if s.shim != nil {
		s.shim.Close()
	}
	if err := p.clear(s.seat); err != nil {
		p.log.Printf("cannot take the sandbox %s away, the next runnerd tries again: %v", s.seat, err)
	}
}

// clear removes what there is under the name of a seat whose processes have ended.
func (p *spares) clear(seat string) error {
	var failures []error
	if p.groups != nil {
		killGroup(p.groups.Path(seat))
		failures = append(failures, p.groups.Remove(seat))
	}
	if p.backend.network != nil {
		failures = append(failures, p.backend.network.Release(seat))
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return p.backend.ids.Return(seat)
}

// close ends the spare and waits for what is under way. The next runnerd removes the rest of its seat.
func (p *spares) close() {
	p.mutex.Lock()
	p.closed = true
	if p.ready != nil {
		p.ready.shim.Close()
		p.ready = nil
	}
	p.mutex.Unlock()
	p.work.Wait()
}

// seats are the seats that instances have, by what their records say.
func (p *spares) seats() map[string]bool {
	known := map[string]bool{}
	entries, _ := os.ReadDir(p.instances)
	for _, entry := range entries {
		r, err := record.Load(filepath.Join(p.instances, entry.Name(), fileContainer))
		if seat := r.Get("seat"); err == nil && isSeat(seat) {
			known[seat] = true
		}
	}
	return known
}

func isSeat(name string) bool {
	return strings.HasPrefix(name, seatPrefix) && filepath.Base(name) == name
}

// sweep removes the seats of an earlier runnerd that no instance has. Ids are the first thing that a seat has and
// the last that it loses, so they tell which there are. Control groups would not: several runnerds may share a parent.
func (p *spares) sweep() error {
	known := p.seats()
	var failures []error
	for _, name := range p.backend.ids.Names() {
		if isSeat(name) && !known[name] {
			if err := p.clear(name); err != nil {
				failures = append(failures, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return errors.Join(failures...)
}

// openSpares begins to keep a spare where containers can be run, and removes those of an earlier runnerd.
func (s *Supervisor) openSpares() {
	b, ok := s.backends[workload.RuntimeOCI].(*ociBackend)
	if !ok || b.images == nil || b.ids == nil {
		return
	}
	s.spares = &spares{backend: b, groups: s.options.Groups, log: s.options.Log,
		instances: filepath.Join(s.options.Directory, instancesDirName)}
	if err := s.spares.sweep(); err != nil {
		s.options.Log.Printf("cannot remove the sandboxes of an earlier runnerd: %v", err)
	}
}

// keepSpare says whether a spare is of use: while a container of runnerd's own runs.
func (s *Supervisor) keepSpare() {
	if s.spares == nil {
		return
	}
	containers := s.policy.Containers
	for _, i := range s.instances {
		if i.phase == phaseRunning && i.spec.Runtime == workload.RuntimeOCI && !containers.Denied && containers.Runtime == "" {
			s.spares.want(true, containers.Network, i.cell)
			return
		}
	}
	s.spares.want(false, policy.Network{}, 0)
}

// useSpare gives an instance that is about to start the spare, if it is one that can have it.
func (s *Supervisor) useSpare(i *instance, j *launchJob) {
	if s.spares == nil || i.spec.Runtime != workload.RuntimeOCI || j.permit.Containers.Runtime != "" ||
		len(i.spec.Volumes) > 0 || s.spares.backend.ids.Has(i.id.String()) {
		return
	}
	taken := s.spares.take(j.permit.Containers.Network, i.cell)
	if taken == nil {
		return
	}
	j.spare = taken
	if taken.group != "" {
		i.group, j.group = taken.group, taken.group
		if err := i.save(); err != nil {
			s.options.Log.Printf("cannot write down the state of %s: %v", i.id, err)
		}
	}
}
