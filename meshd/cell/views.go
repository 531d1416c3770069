package cell

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/crdt"
	"colloid.net/meshd/nat"
	"colloid.net/meshd/overlay"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// What a cell handles most, by short names.
type (
	member   = overlay.Member
	register = crdt.Register
)

// views mirror the store decoded, by meaning instead of by key. They are rebuilt from the store alone,
// so two cells with equal stores have equal views (EXEC-2).
type views struct {
	cells     map[wire.CellID]*cellView
	ids       []wire.CellID // of cells, ascending
	alive     int           // of cells, valid if counted, see AliveCount
	counted   bool
	workloads map[string]*workloadView
	byHash    map[uint64]*workloadView
	endpoints map[endpointID]*state.CellEndpoint
	holders   map[volumeSlot]wire.CellID // who had a replica last, as far as this cell has seen
	denials   map[endpointID]*state.CellDenial
	conflicts map[string]struct{}            // operator keys in CONFLICT
	values    map[string]map[string]struct{} // keys with a value in the space of a workload, see kv.go
	rollouts  map[string]*rolloutView        // by workload name
	drained   map[wire.CellID]struct{}       // cells that an operator wants empty
	doorShut  bool
	planDirty bool // membership or specifications changed
	planDue   clock.Instant
	runDirty  bool // something that only reconciliation looks at changed
}

type cellView struct {
	id           wire.CellID
	hasContact   bool
	contact      state.CellContact
	contactNewer bool // it holds something that must be understood and is not (D12)
	hasCapacity  bool
	capacity     state.CellCapacity
	hasStatus    bool
	status       state.CellStatus

	outSince  clock.Instant // first moment it was seen out of H, 0 = it is in
	heldUntil clock.Instant // re-admission (F64)
	holdTimes int           // consecutive re-admissions, doubles the hold
	lastOut   clock.Instant
	twins     twinWatch
}

type endpointID struct {
	cell     wire.CellID
	workload string
}

// workloadView is one workload key. A frozen one is neither started, stopped nor changed (F57).
type workloadView struct {
	key     string
	hash    uint64
	spec    *workload.Spec
	raw     []byte
	digest  uint64
	frozen  bool
	invalid string // why the specification cannot be used

	// What the operator wrote. spec, raw and digest differ from it only while it is held back (rollout.go).
	wanted       *workload.Spec
	wantedRaw    []byte
	wantedDigest uint64
	dots         uint64         // digest of the dots of the operator's write
	verdict      *state.Verdict // on this very write, nil = none
	held         bool           // the last good specification counts instead
}

func (v *views) init() {
	*v = views{
		cells:     make(map[wire.CellID]*cellView),
		workloads: make(map[string]*workloadView),
		byHash:    make(map[uint64]*workloadView),
		endpoints: make(map[endpointID]*state.CellEndpoint),
		holders:   make(map[volumeSlot]wire.CellID),
		denials:   make(map[endpointID]*state.CellDenial),
		conflicts: make(map[string]struct{}),
		values:    make(map[string]map[string]struct{}),
		rollouts:  make(map[string]*rolloutView),
		drained:   make(map[wire.CellID]struct{}),
		planDirty: true,
		runDirty:  true,
	}
}

// viewed reports whether any mirror depends on a key. Figures that change all the time, like load and
// metrics, are read where they are asked for, so that their changes cost nothing here (RES-1).
func viewed(name []byte) bool {
	switch {
	case bytes.HasPrefix(name, []byte(state.PrefixHealth)):
		return bytes.HasSuffix(name, []byte(".status")) || bytes.HasSuffix(name, []byte(".contact")) ||
			bytes.HasSuffix(name, []byte(".capacity"))
	case bytes.HasPrefix(name, []byte(state.PrefixEndpoint)), bytes.HasPrefix(name, []byte(state.PrefixDeny)),
		bytes.HasPrefix(name, []byte(state.PrefixRollout)), bytes.HasPrefix(name, []byte(state.PrefixEnv)):
		return true
	}
	category := state.CategoryOf(name)
	return category == state.Operator || category == state.KV
}

// view brings the mirror of one key up to date.
func (c *Cell) view(name []byte) {
	if !viewed(name) {
		return
	}
	key := string(name)
	switch {
	case strings.HasPrefix(key, state.PrefixHealth):
		c.viewHealth(key)
	case strings.HasPrefix(key, state.PrefixEndpoint):
		c.viewEndpoint(key)
	case strings.HasPrefix(key, state.PrefixDeny):
		c.viewDenial(key)
	case state.IsWorkload(name):
		c.viewWorkload(key)
	case key == state.DoorKey:
		c.viewDoor(name)
	case strings.HasPrefix(key, state.PrefixKV):
		c.viewValue(key)
	case strings.HasPrefix(key, state.PrefixRollout):
		c.viewRollout(key)
	case strings.HasPrefix(key, state.PrefixEnv):
		c.views.runDirty = true // an instance may wait for it
	case strings.HasPrefix(key, state.PrefixCell):
		c.viewDrain(key)
	}
	if state.CategoryOf(name) == state.Operator {
		c.viewConflict(key)
	}
}

// viewAll rebuilds every mirror, after a snapshot was loaded.
func (c *Cell) viewAll() {
	var names []string
	c.store.Walk("", func(register register) bool {
		names = append(names, string(register.Name()))
		return true
	})
	slices.Sort(names)
	for _, name := range names {
		c.view([]byte(name))
	}
}

// newest returns the value with the greatest dot: the reading rule of single-writer keys. ok is false
// for absent and deleted keys.
func (c *Cell) newest(name []byte) (value []byte, ok bool) {
	register, found := c.store.Get(name)
	if !found {
		return nil, false
	}
	var best wire.Dot
	for raw := register.Entries(); len(raw) > 0; {
		var dot wire.Dot
		var candidate []byte
		if dot, candidate, raw, ok = wire.NextEntry(raw); !ok {
			break
		}
		if dot.Sequence >= best.Sequence {
			best, value = dot, candidate
		}
	}
	return value, len(value) > 0
}

func (c *Cell) viewConflict(key string) {
	register, found := c.store.Get([]byte(key))
	if found && register.Conflicted() {
		c.views.conflicts[key] = struct{}{}
	} else {
		delete(c.views.conflicts, key)
	}
}

func (c *Cell) viewHealth(key string) {
	id, field, ok := state.HealthKey(key)
	if !ok {
		return
	}
	view := c.views.cells[id]
	if view == nil {
		view = &cellView{id: id}
		c.views.cells[id] = view
		at, _ := slices.BinarySearch(c.views.ids, id)
		c.views.ids = slices.Insert(c.views.ids, at, id)
	}
	c.views.counted = false
	value, live := c.newest([]byte(key))
	switch field {
	case "status":
		c.viewStatus(view, value, live)
	case "contact":
		// Another cell may say that the contact known here is superseded before its successor arrives (F45): until then
		// it is the best that is known, and its cell no stranger.
		if register, found := c.store.Get([]byte(key)); found && view.hasContact && register.EntryCount() == 0 {
			return
		}
		contact, err := state.ParseCellContact(value)
		view.hasContact = live && err == nil
		view.contactNewer = live && errors.Is(err, state.ErrCritical)
		if view.hasContact {
			view.contact = contact
		}
		c.viewIdentity(view)
		c.watchTwins(view, key)
	case "capacity":
		capacity, err := state.ParseCellCapacity(value)
		view.hasCapacity = live && err == nil
		if view.hasCapacity {
			view.capacity = capacity
		}
	default:
		return
	}
	c.viewMember(view)
	c.planChanged()
}

func (c *Cell) viewStatus(view *cellView, value []byte, live bool) {
	status, err := state.ParseCellStatus(value)
	view.hasStatus = live && err == nil
	if !view.hasStatus {
		return
	}
	view.status = status
	c.viewMember(view) // the detector knows only members
	c.detector.StatusChanged(c.now, view.id, status)
	if view.id == c.config.Self && status.Life == state.Gone && c.phase == Active {
		c.expelled()
	}
}

// viewIdentity notices another instance that uses this cell's id (F2, F3).
func (c *Cell) viewIdentity(view *cellView) {
	if view.id == c.config.Self && view.hasContact && view.contact.SecretHash != c.config.SecretHash {
		c.sawOwnIdentity()
	}
}

// isOwnAddress reports whether datagrams from an address are this cell's own. It writes to itself while somebody
// still lists an earlier id of this machine, or another name of it, under its address.
func (c *Cell) isOwnAddress(from netip.AddrPort) bool {
	if len(c.config.Addresses) == 0 {
		return false
	}
	loopback := false
	for _, candidate := range c.config.Addresses {
		if candidate.Address == from {
			return true
		}
		loopback = loopback || candidate.Address.Addr().IsLoopback()
	}
	// A socket bound to every address holds the port of the loopback ones too.
	return !loopback && from.Addr().IsLoopback() && from.Port() == c.config.Addresses[0].Address.Port()
}

func (c *Cell) sawOwnIdentity() {
	c.twinSeen = c.now
	c.alarms.raise(alarmIdentity, "critical", "another machine uses the id of this cell, "+c.config.Self.String(),
		"a disk image was cloned: stop one of them, remove its cell_id file, start it again")
}

// viewMember keeps the overlay's member list equal to "has a contact and is not gone" (F41).
func (c *Cell) viewMember(view *cellView) {
	if view.id == c.config.Self {
		return
	}
	c.changes.members = true
	gone := view.hasStatus && view.status.Life == state.Gone
	if !view.hasContact || gone {
		if c.members.Get(view.id) != nil {
			c.members.Remove(view.id)
			c.detector.Forget(view.id)
			c.gossip.Forget(view.id)
			c.sessions.Forget(view.id)
			c.nat.Forget(view.id)
			c.persist.peersDirty = true
		}
		return
	}
	member := c.members.Get(view.id)
	fresh := member == nil
	if fresh {
		if member = c.members.Upsert(view.id); member == nil {
			c.alarms.raise(alarmMembers, "critical", "the cluster has more cells than this version can list",
				"this cell ignores the rest: remove cells, or forget dead ones")
			return
		}
		c.persist.peersDirty = true
		if address, _, ok := c.guests.address(view.id); ok {
			member.Address = address
			c.guests.remove(view.id)
		}
	}
	if member.ID == c.successor && len(member.Homes) == 0 && len(view.contact.Homes) > 0 {
		c.edgeDue = c.now.Add(edgeDelay) // what was sent to it before had no way to arrive
	}
	withdrawn := listed(member.Candidates, member.Address) && !listed(view.contact.Candidates, member.Address)
	member.Flags, member.Candidates = view.contact.Flags, view.contact.Candidates
	member.Reach, member.Homes = view.contact.Reach, view.contact.Homes
	member.Versions = versionsOf(&view.contact)
	member.Life = state.Alive
	if view.hasStatus {
		member.Life, member.StatusIncarnation = view.status.Life, view.status.Incarnation
	}
	c.members.Revised()
	c.chooseAddress(member, view, fresh, withdrawn)
	if fresh && view.hasStatus {
		c.detector.StatusChanged(c.now, view.id, view.status) // it came before the contact
	}
}

func listed(candidates []state.Candidate, address netip.AddrPort) bool {
	return slices.ContainsFunc(candidates, func(o state.Candidate) bool { return o.Address == address })
}

// addressProven is how long an answer from an address keeps candidates of the contact from replacing it.
const addressProven = time.Minute

// chooseAddress takes the candidate of the contact that suits this cell best (F33), unless an address that
// works is known already.
func (c *Cell) chooseAddress(member *member, view *cellView, fresh, withdrawn bool) {
	best := nat.Choose(c.nat.Candidates(c.candidates[:0]), view.contact.Candidates, c.admissible)
	switch {
	case !best.IsValid() || best == member.Address:
		return
	case !member.Address.IsValid():
	case c.detector.Suspected(member.ID):
		if member.NeedsHelp() && (member.HasHome(c.config.Self) || c.nat.Direct(c.now, member)) {
			return // it told where it is; no contact knows better
		}
	case withdrawn && !member.NeedsHelp(): // it says itself that it is elsewhere now
	case !fresh && member.Validated != 0 && c.now.Sub(member.Validated) < addressProven:
		return
	case c.guard.Validated(c.now, member.Address) && (member.NeedsHelp() || fresh):
		return
	case !fresh && member.InService() && !listed(view.contact.Candidates, member.Address):
		return // an operator named it, or it came from there
	}
	member.Address = best
	c.members.Revised()
}

func (c *Cell) viewEndpoint(key string) {
	cell, name, ok := state.SplitEndpoint(key)
	if !ok {
		return
	}
	id := endpointID{cell, name}
	value, live := c.newest([]byte(key))
	endpoint, err := state.ParseCellEndpoint(value)
	if !live || err != nil {
		delete(c.views.endpoints, id)
	} else {
		c.views.endpoints[id] = &endpoint
		c.noteHolders(id, &endpoint)
	}
	c.views.runDirty = true
}

func (c *Cell) viewDenial(key string) {
	cell, name, ok := state.SplitDeny(key)
	if !ok {
		return
	}
	id := endpointID{cell, name}
	value, live := c.newest([]byte(key))
	denial, err := state.ParseCellDenial(value)
	if !live || err != nil {
		delete(c.views.denials, id)
	} else {
		c.views.denials[id] = &denial
	}
	c.planChanged()
}

// viewWorkload decodes a specification. A key in CONFLICT or with a value this version cannot use is
// frozen (F57, F58). What placement reserves for a key in CONFLICT is the newest of its values: which of
// them this cell knew first must not matter, or cells with equal state would plan differently (EXEC-2).
func (c *Cell) viewWorkload(key string) {
	register, found := c.store.Get([]byte(key))
	view := c.views.workloads[key]
	if !found || register.Absent() {
		if view != nil {
			delete(c.views.workloads, key)
			delete(c.views.byHash, view.hash)
			c.planChanged()
		}
		return
	}
	if view == nil {
		view = &workloadView{key: key, hash: register.KeyHash()}
		c.views.workloads[key] = view
		c.views.byHash[view.hash] = view
	}
	c.planChanged()
	value, single := register.Live()
	view.invalid = ""
	view.frozen = !single
	if !single {
		_, value, _ = register.Latest()
	}
	view.dots = register.DotDigest()
	view.wanted, view.wantedRaw, view.wantedDigest = nil, nil, 0
	defer c.applyRollout(view)
	spec, err := workload.Decode(value)
	if err == nil {
		err = workload.CheckKey(key, spec)
	}
	if err != nil {
		if single {
			view.frozen, view.invalid = true, err.Error()
		}
		return
	}
	view.wanted, view.wantedRaw, view.wantedDigest = spec, slices.Clone(value), spec.InstanceDigest()
}

// viewDoor: anything but a single, deleted or empty value means shut; a conflict is answered by the
// safer reading (decision D1).
func (c *Cell) viewDoor(name []byte) {
	register, found := c.store.Get(name)
	c.views.doorShut = found && !register.Absent()
}

// cellIDs returns the ids of all cells the store knows, ascending, until a view changes. Nobody may change it.
func (c *Cell) cellIDs() []wire.CellID { return c.views.ids }

// workloadKeys returns the keys of all workloads, ascending.
func (c *Cell) workloadKeys() []string {
	keys := make([]string, 0, len(c.views.workloads))
	for key := range c.views.workloads {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// ownAddress is where this cell's instances answer.
func (c *Cell) ownAddress() netip.Addr {
	if len(c.config.Addresses) == 0 {
		return netip.Addr{}
	}
	return c.config.Addresses[0].Address.Addr()
}
