package runnerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/policy"
	"colloid.net/workload"
)

// Standing by: a Start that is to prepare only makes this host ready for one that may come, when another host dies or
// when an update has room. Images are pulled and unpacked, modules fetched and compiled, one of each kind at a time, behind
// everything that is needed now. The answer is a Prepared.
//
// A preparation belongs to who asked for it. When the session ends, what waits is dropped, and what is under way goes on for
// nobody: the next session asks for what it wants, and finds what has been done.

const (
	// aheadWaitingMax bounds the preparations of one kind that wait.
	aheadWaitingMax = 64
	// preparedMax bounds the answers that wait for room in the ring. A meshd that has more than this many questions open
	// does not read them.
	preparedMax = 1024
	// standbyFor is how long an image is taken to stand by after it was asked for: meshd asks again every 6 hours.
	standbyFor = 7 * time.Hour
	// standbyRenewed is how long it is taken to when meshd is another one, which asks for what it wants.
	standbyRenewed = 15 * time.Minute
	// standbyMax bounds how many are known to: as many as a meshd prepares.
	standbyMax = 1024
	// launchPatience bounds how long a preparation lets launches go first.
	launchPatience = 10 * time.Second
)

// aheadBackend is a backend that can do before a start what takes time in one.
type aheadBackend interface {
	// ahead returns when a start has nothing to fetch or compile, or why that cannot be. here are the instances of this host,
	// from which nothing may be taken away.
	ahead(ctx context.Context, j *launchJob, here []InstanceID) error
}

// preparation is one that waits or is under way.
type preparation struct {
	id      InstanceID
	job     *launchJob
	session *session           // that is to have the answer, nil = none
	cancel  context.CancelFunc // nil while it waits
}

// preparations are those of a host. All but work belongs to the loop's goroutine.
type preparations struct {
	byID      map[InstanceID]*preparation
	waiting   map[workload.Runtime][]*preparation
	running   map[workload.Runtime]*preparation
	launching map[InstanceID]*session // instances whose launch is the answer
	answers   []*message.Prepared
	standby   map[InstanceID]standby
	work      sync.WaitGroup
}

// standby is what an instance would need that is prepared here, and may not be taken for something that nobody uses.
type standby struct {
	digest image.Digest
	until  time.Time
}

func newPreparations() preparations {
	return preparations{
		byID: map[InstanceID]*preparation{}, waiting: map[workload.Runtime][]*preparation{},
		running: map[workload.Runtime]*preparation{}, launching: map[InstanceID]*session{},
		standby: map[InstanceID]standby{},
	}
}

// prepareAhead takes a Start that is to prepare only and that the policy allows.
func (s *Supervisor) prepareAhead(from *session, i *instance, permit policy.Permit) {
	what := "prepare " + i.id.String() + " " + quoteKey(i.key)
	if i.spec.Runtime == workload.RuntimeProcess {
		s.audit.write(from.peer, from.sequence, what, "allowed: nothing to do")
		s.prepared(from, i.id, nil)
		return
	}
	s.noteStandby(i)
	if p := s.ahead.byID[i.id]; p != nil {
		p.session = from
		return
	}
	if len(s.ahead.waiting[i.spec.Runtime]) >= aheadWaitingMax {
		err := fmt.Errorf("%d others wait to be prepared here: ask again later", aheadWaitingMax)
		s.audit.write(from.peer, from.sequence, what, "refused: "+err.Error())
		s.prepared(from, i.id, err)
		return
	}
	job, err := s.newJob(i, permit)
	if err != nil {
		s.prepared(from, i.id, err)
		return
	}
	s.audit.write(from.peer, from.sequence, what, "allowed: "+permit.String())
	p := &preparation{id: i.id, job: job, session: from}
	s.ahead.byID[i.id] = p
	s.ahead.waiting[i.spec.Runtime] = append(s.ahead.waiting[i.spec.Runtime], p)
	s.nextPreparation(i.spec.Runtime)
}

// prepareExisting answers for an instance that is here: when it is past its launch.
func (s *Supervisor) prepareExisting(from *session, i *instance) {
	s.ahead.launching[i.id] = from
}

// nextPreparation begins one that waits, where none is under way. It may have waited for hours, so the policy is asked once
// more.
func (s *Supervisor) nextPreparation(kind workload.Runtime) {
	if s.ahead.running[kind] != nil {
		return
	}
	p := s.takePreparation(kind)
	if p == nil {
		return
	}
	s.ahead.running[kind] = p
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	here := slices.Collect(maps.Keys(s.instances))
	s.ahead.work.Go(func() {
		defer cancel()
		err := s.behindLaunches(ctx)
		if err == nil {
			err = errors.New("nothing can be prepared for this runtime class here")
			if backend, can := p.job.backend.(aheadBackend); can {
				err = backend.ahead(ctx, p.job, here)
			}
		}
		s.post(func() { s.preparationOver(p, err) })
	})
}

// takePreparation gives the first one that waits and is still allowed, nil if there is none.
func (s *Supervisor) takePreparation(kind workload.Runtime) *preparation {
	for len(s.ahead.waiting[kind]) > 0 {
		p := s.ahead.waiting[kind][0]
		s.ahead.waiting[kind] = slices.Clone(s.ahead.waiting[kind][1:])
		_, err := s.check(p.job.spec)
		if err == nil {
			return p
		}
		delete(s.ahead.byID, p.id)
		s.audit.write(peer{}, 0, "prepare "+p.id.String()+" "+quoteKey(p.job.key), "denied: "+err.Error())
		s.prepared(p.session, p.id, err)
	}
	return nil
}

// behindLaunches waits for launches that are under way.
func (s *Supervisor) behindLaunches(ctx context.Context) error {
	tick := time.NewTicker(launchInterval)
	defer tick.Stop()
	for end := time.Now().Add(launchPatience); len(s.launch) > 0 && time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	return ctx.Err()
}

func (s *Supervisor) preparationOver(p *preparation, err error) {
	kind := p.job.spec.Runtime
	s.ahead.running[kind] = nil
	if s.ahead.byID[p.id] == p {
		delete(s.ahead.byID, p.id)
		outcome := "done"
		if err != nil {
			outcome = "failed: " + err.Error()
			s.options.Log.Printf("cannot prepare %s of %s: %v", p.id, quoteKey(p.job.key), err)
		}
		s.audit.write(peer{}, 0, "prepare "+p.id.String()+" "+quoteKey(p.job.key), outcome)
		s.prepared(p.session, p.id, err)
	}
	s.nextPreparation(kind)
}

// endPreparation takes the claim of a preparation away when its instance is started. What is under way is shared with the
// launch, whose outcome is the answer.
func (s *Supervisor) endPreparation(id InstanceID) {
	delete(s.ahead.standby, id) // now it is an instance that uses it
	p := s.ahead.byID[id]
	if p == nil {
		return
	}
	delete(s.ahead.byID, id)
	kind := p.job.spec.Runtime
	s.ahead.waiting[kind] = slices.DeleteFunc(s.ahead.waiting[kind], func(o *preparation) bool { return o == p })
	if p.session != nil {
		s.ahead.launching[id] = p.session
	}
}

// answerLaunched answers for instances whose launch is over.
func (s *Supervisor) answerLaunched() {
	for id, from := range s.ahead.launching {
		i := s.instances[id]
		var err error
		switch {
		case i == nil:
			err = errors.New("it was stopped")
		case i.phase == phaseDenied || from != s.session: // that is said elsewhere, or nobody asks any more
			delete(s.ahead.launching, id)
			continue
		case i.phase == phaseLaunching || i.phase == phaseWaiting && i.awaitsEnvironment():
			continue
		case i.phase == phaseStopping:
			err = errors.New("it is being stopped")
		case i.phase == phaseWaiting && i.failed != "":
			err = errors.New(i.failed)
		}
		delete(s.ahead.launching, id)
		s.prepared(from, id, err)
	}
}

// prepared answers a session that is still there.
func (s *Supervisor) prepared(to *session, id InstanceID, err error) {
	if to == nil || to != s.session {
		return
	}
	answer := &message.Prepared{Id: id.message()}
	if err != nil {
		answer.Error = oneLine(err.Error())
	}
	for n, waits := range s.ahead.answers {
		if waits.Id.KeyHash == id.KeyHash && waits.Id.Slot == uint32(id.Slot) && waits.Id.Digest == id.Digest {
			s.ahead.answers[n] = answer
			return
		}
	}
	if len(s.ahead.answers) < preparedMax {
		s.ahead.answers = append(s.ahead.answers, answer)
	}
}

// dropPreparations forgets what a session that has ended asked for.
func (s *Supervisor) dropPreparations(ended *session) {
	for kind, queue := range s.ahead.waiting {
		s.ahead.waiting[kind] = slices.DeleteFunc(queue, func(p *preparation) bool {
			drop := p.session == ended
			if drop {
				delete(s.ahead.byID, p.id)
			}
			return drop
		})
	}
	for _, p := range s.ahead.byID {
		if p.session == ended {
			p.session = nil
		}
	}
	maps.DeleteFunc(s.ahead.launching, func(_ InstanceID, from *session) bool { return from == ended })
	if s.session == ended || s.session == nil {
		s.ahead.answers = nil
		end := time.Now().Add(standbyRenewed)
		for id, o := range s.ahead.standby {
			if o.until.After(end) {
				s.ahead.standby[id] = standby{o.digest, end}
			}
		}
	}
}

// cancelPreparations ends what is under way. Who calls it waits for work.
func (s *Supervisor) cancelPreparations() {
	for _, p := range s.ahead.running {
		if p != nil {
			p.cancel()
		}
	}
}

// noteStandby remembers what is prepared for an instance.
func (s *Supervisor) noteStandby(i *instance) {
	now := time.Now()
	maps.DeleteFunc(s.ahead.standby, func(_ InstanceID, o standby) bool { return now.After(o.until) })
	if _, known := s.ahead.standby[i.id]; known || len(s.ahead.standby) < standbyMax {
		s.ahead.standby[i.id] = standby{i.spec.ImageDigest, now.Add(standbyFor)}
	}
}

func (s *Supervisor) standsBy(digest image.Digest) bool {
	for _, o := range s.ahead.standby {
		if o.digest == digest && time.Now().Before(o.until) {
			return true
		}
	}
	return false
}

// withdrawPreparation takes back what meshd asked for. What is under way ends, because the next one waits behind it; a
// launch that shares a pull goes on with that.
func (s *Supervisor) withdrawPreparation(id InstanceID) {
	delete(s.ahead.standby, id)
	if p := s.ahead.byID[id]; p != nil {
		delete(s.ahead.byID, id)
		kind := p.job.spec.Runtime
		s.ahead.waiting[kind] = slices.DeleteFunc(s.ahead.waiting[kind], func(o *preparation) bool { return o == p })
	}
	s.cancelPreparation(id)
}

// cancelPreparation ends what is under way for an instance that nobody wants any more, and that has no launch of its
// workload waiting for it: that is as fast with what is being done.
func (s *Supervisor) cancelPreparation(id InstanceID) {
	for other, i := range s.instances {
		if other != id && other.KeyHash == id.KeyHash && i.phase == phaseLaunching {
			return
		}
	}
	for _, p := range s.ahead.running {
		if p != nil && p.id == id {
			p.cancel()
		}
	}
}

// preparedRemoved tells meshd that an operator has removed what was prepared.
func (s *Supervisor) preparedRemoved(digest image.Digest) {
	for id, o := range s.ahead.standby {
		if o.digest == digest {
			delete(s.ahead.standby, id)
			if s.ahead.byID[id] == nil { // else the answer to come says how it is
				s.prepared(s.session, id, errors.New("it was removed here by an operator"))
			}
		}
	}
}

// ahead makes the image be here, unpacked.
func (b *ociBackend) ahead(ctx context.Context, j *launchJob, _ []InstanceID) (err error) {
	if b.images == nil {
		return errors.New("this runnerd cannot run containers: it does not run as root")
	}
	images, can := b.images.(interface {
		EnsureAhead(ctx context.Context, reference string, digest [32]byte) error
	})
	if can {
		err = images.EnsureAhead(ctx, j.spec.Image, j.spec.ImageDigest)
	} else {
		_, err = b.images.Ensure(ctx, j.spec.Image, j.spec.ImageDigest, nil)
	}
	if err != nil {
		err = fmt.Errorf("pull %.200s@sha256:%.6x...: %w", j.spec.Image, j.spec.ImageDigest, err)
	}
	return err
}

// oneLine makes an answer of an error, whatever somebody else put into that.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, shorten(text))
}
