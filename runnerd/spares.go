package runnerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
// A spare is a convenience and never in the way: a start that finds no address, no ids or no memory takes away the
// one that stands ready and tries again (yield). Where none can be made, starts are cold, which is said once.
//
// Whoever takes a spare finds its seat in the record of the instance already (take), so whatever becomes of the start,
// what undoes it gives the seat back as well. A spare ends with its runnerd. The next one removes what is left of its seat.

// seatPrefix begins the names of seats. No instance has such a name.
const seatPrefix = "spare-"

const (
	// sparePatience bounds how long making a spare may take.
	sparePatience = 20 * time.Second
	// After one could not be made, or was given up because a start needed what it had, the next try is spareRetryMin
	// later, then twice as long each time up to spareRetryMax.
	spareRetryMin = 5 * time.Second
	spareRetryMax = 10 * time.Minute
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
	pause    time.Duration
	said     bool     // that none can be made, since the last one that was
	left     []string // seats that could not be taken away; at most one, since the next is made only without any
	closed   bool
	work     sync.WaitGroup
	idle     *sync.Cond // of mutex: busy has ended
	alive    func(*shim.Spare) bool
}

func newSpares(b *ociBackend, groups *cgroup.Manager, log *log.Logger, instances string) *spares {
	p := &spares{backend: b, groups: groups, log: log, instances: instances, alive: (*shim.Spare).Alive}
	p.idle = sync.NewCond(&p.mutex)
	return p
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
			p.idle.Broadcast()
			p.settle()
		})
		return
	}
	if !unfit && !missing {
		return
	}
	old, settings, cell := p.ready, p.settings, p.cell
	if old != nil && !p.alive(old.shim) {
		p.later() // else one that dies at once would be made without end
	}
	p.ready, p.busy = nil, true
	p.work.Go(func() {
		if old != nil {
			p.drop(old)
			p.settled(nil, nil)
			return
		}
		p.settled(p.make(settings, cell))
	})
}

// settled notes what came of the work on a spare, made or not.
func (p *spares) settled(made *spare, err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.busy, p.ready = false, made
	p.idle.Broadcast()
	switch {
	case err != nil:
		p.later()
		if !p.said {
			p.log.Printf("cannot prepare a sandbox, so starts take a little longer; tried again later: %v", err)
		}
		p.said = true
	case made != nil && p.said:
		p.log.Print("a sandbox is prepared again")
		p.said = false
	}
	if made != nil {
		p.pause = 0
	}
	if p.closed && made != nil {
		made.shim.Close()
		p.ready = nil
	}
	p.settle()
}

// later puts the next try off; the caller holds the mutex.
func (p *spares) later() {
	p.pause = min(max(2*p.pause, spareRetryMin), spareRetryMax)
	p.again = time.Now().Add(p.pause)
}

// yield gives up the spare, also one that is just being made, for a start that lacks what the spare has. It
// reports whether there was one, so that trying again may help.
func (p *spares) yield() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.later()
	waited := false
	for ; p.busy; waited = true {
		p.idle.Wait()
	}
	old := p.ready
	if old == nil || p.closed {
		return waited
	}
	p.ready, p.busy = nil, true
	p.mutex.Unlock()
	p.drop(old)
	p.mutex.Lock()
	p.busy = false
	p.idle.Broadcast()
	p.settle()
	return true
}

func (p *spares) fits(s *spare, settings policy.Network, cell uint64) bool {
	return s.settings == settings && s.cell == cell && p.alive(s.shim)
}

// take gives the spare to an instance, nil if there is none for it. The record in the instance's directory says so
// first: what release undoes, there and in a later runnerd, is what the record names.
func (p *spares) take(id InstanceID, directory string, settings policy.Network, cell uint64) *spare {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	s := p.ready
	if s == nil || !p.fits(s, settings, cell) {
		return nil
	}
	path := filepath.Join(directory, fileContainer)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // something is left of an earlier start, and its record must stay until that has gone
	}
	if err := record.Keep(path, seatRecord(id, s)); err != nil {
		p.log.Printf("%s starts without the prepared sandbox, since that cannot be written down: %v", id, err)
		_ = os.Remove(path)
		return nil
	}
	p.ready = nil
	return s
}

// seatRecord says what release has to undo for an instance, spare nil = without one.
func seatRecord(id InstanceID, s *spare) record.Record {
	r := record.Record{}
	r.Set("id", id.String())
	if s != nil {
		r.Set("seat", s.seat)
	}
	return r
}

// make makes a spare, or leaves nothing of it.
func (p *spares) make(settings policy.Network, cell uint64) (*spare, error) {
	if err := p.clearLeft(); err != nil {
		return nil, err
	}
	s := &spare{seat: seatPrefix + nonce(), settings: settings, cell: cell}
	if err := p.furnish(s); err != nil {
		p.drop(s)
		return nil, err
	}
	p.expect(s)
	return s, nil
}

// furnish gives a spare all that it needs, and its shim last.
func (p *spares) furnish(s *spare) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), sparePatience)
	defer cancel()
	if s.base, err = p.backend.ids.Take(s.seat); err != nil {
		return err
	}
	if !s.settings.None && p.backend.network != nil {
		request := podnet.Request{Settings: s.settings, Cell: s.cell}
		if s.lease, err = p.backend.network.Prepare(ctx, s.seat, request); err != nil {
			return err
		}
	}
	if p.groups != nil {
		s.group = s.seat
		if s.cgroup, err = p.groups.Create(s.group, cgroup.Limits{}); err != nil {
			return err
		}
	}
	s.shim, err = shim.Prepare(&shim.Config{
		Directory: p.instances, Cgroup: s.cgroup,
		Sandbox: &sandbox.Config{UIDBase: s.base, GIDBase: s.base, Count: sandbox.IDCount, Init: true,
			NetworkNamespace: s.lease.Namespace},
	})
	return err
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

// drop takes a spare away that nobody has taken over, also one that was only begun. What stays is tried again before
// the next one is made.
func (p *spares) drop(s *spare) {
	if s.shim != nil {
		s.shim.Close()
	}
	if err := p.clear(s.seat); err != nil {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.left = append(p.left, s.seat)
	}
}

// clearLeft takes away what drop could not.
func (p *spares) clearLeft() error {
	p.mutex.Lock()
	left := p.left
	p.left = nil
	p.mutex.Unlock()
	for n, seat := range left {
		if err := p.clear(seat); err != nil {
			p.mutex.Lock()
			p.left = append(p.left, left[n:]...)
			p.mutex.Unlock()
			return fmt.Errorf("the sandbox %s cannot be taken away: %w", seat, err)
		}
	}
	return nil
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
