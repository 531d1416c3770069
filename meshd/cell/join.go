package cell

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/join"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Joining another cluster (decision D1, BOOT-2): a Noise handshake with any member gives the cluster
// key and some members; then this cell drops the cluster it founded, enters the other one empty, and
// catches up. Its id and what it runs stay.
const (
	joinRetry   = 300 * time.Millisecond
	joinTimeout = 10 * time.Second
	// joinBusyWait is the pause after a seed said that too many join at the moment.
	joinBusyWait = time.Second
	// joinUnprovenWait is how long an attempt goes on after a refusal that anybody could have sent.
	joinUnprovenWait = time.Second
	// joinSyncTimeout bounds the first session after the handshake.
	joinSyncTimeout = 60 * time.Second
	// joinMergeMax bounds the keys taken along by a merge.
	joinMergeMax = 10000
)

type carriedKey struct {
	name  string
	value []byte
	// environment is what the specification in value names, plain: the other cluster's key seals it anew (F83).
	environment []byte
}

type joinAttempt struct {
	key        *seal.Key // of a locked door, nil without
	handshake  *join.Joiner
	addresses  []netip.AddrPort
	request    []byte
	next       clock.Instant
	until      clock.Instant
	carried    []carriedKey // --merge: the operator keys of the cluster left behind
	merge      bool
	ticket     uint64 // of the stored cluster, 0 before the handshake ended
	welcome    join.Welcome
	entered    bool
	waits      bool // all is here but the next incarnation, under which the carried keys are written
	refusal    string
	seedSpeaks uint8 // greatest version that the seed and this cell speak
	reply      func(Response)
}

// connect starts to join. Refusals come at once; everything else through reply.
func (c *Cell) connect(request Request, reply func(Response)) {
	switch {
	case c.joining != nil:
		reply(failure(uds.ErrorBusy, "another connect is under way: try again"))
		return
	case c.phase == Leaving:
		reply(failure(uds.ErrorBusy, "this cell is leaving its cluster"))
		return
	case len(request.Addresses) == 0:
		reply(failure(uds.ErrorInvalid, "no address to connect to"))
		return
	}
	c.joining = &joinAttempt{
		key:       request.JoinKey,
		addresses: request.Addresses,
		merge:     request.Merge,
		next:      c.now,
		until:     c.now.Add(joinTimeout),
		reply:     reply,
	}
	c.handshake()
	c.tickJoin()
}

// handshake begins a Noise handshake for the attempt under way.
func (c *Cell) handshake() {
	j := c.joining
	hello := join.Hello{Self: c.config.Self, SecretHash: c.config.SecretHash}
	j.handshake = join.NewJoiner(entropyReader(c.config.Entropy), hello, j.key)
	j.handshake.Loopback = c.config.Loopback
	j.request = j.handshake.Request()
}

func (c *Cell) tickJoin() {
	j := c.joining
	if j == nil {
		return
	}
	if j.until.Reached(c.now) {
		c.joinTimedOut()
		return
	}
	if j.ticket != 0 || !j.next.Reached(c.now) {
		return
	}
	j.next = c.now.Add(joinRetry)
	header := wire.Header{
		Version: c.config.Versions.Max, Type: wire.TypeJoin, PayloadLength: uint16(len(j.request)), Sender: c.config.Self,
	}
	datagram := append(wire.AppendHeader(c.scratch[:0], header), j.request...)
	for _, address := range j.addresses {
		c.config.Network.Send(address, datagram)
	}
}

func (c *Cell) joinDeadline() clock.Instant {
	if c.joining == nil {
		return clock.Never
	}
	if c.joining.ticket != 0 {
		return c.joining.until
	}
	return clock.Earliest(c.joining.next, c.joining.until)
}

func (c *Cell) joinTimedOut() {
	j := c.joining
	text := "no answer from " + j.addresses[0].String() + ": is colloid running there and UDP allowed?"
	switch {
	case j.refusal != "":
		text = j.refusal
	case j.entered:
		text = "joined, but the state has not arrived yet: see `colloid status`"
	}
	c.finishJoin(failure(uds.ErrorTimeout, text))
}

func (c *Cell) finishJoin(response Response) {
	reply := c.joining.reply
	c.joining = nil
	reply(response)
}

// receiveJoin handles the two messages that travel without the cluster key.
func (c *Cell) receiveJoin(from netip.AddrPort, header wire.Header, payload []byte) {
	if !c.admissible(from) {
		return
	}
	if header.Type == wire.TypeJoin {
		c.answerJoin(from, header, payload)
		return
	}
	j := c.joining
	if j == nil || j.ticket != 0 || !slices.Contains(j.addresses, from) {
		return
	}
	if header.Version < c.config.Versions.Min {
		j.refusal = join.RefusedVersion
		return
	}
	welcome, err := j.handshake.Finish(payload)
	if errors.Is(err, join.ErrFinished) {
		c.handshake() // somebody sent so many wrong answers that this attempt is over
	}
	if err == nil {
		j.seedSpeaks = min(header.Version, c.config.Versions.Max)
		c.welcomed(welcome)
	}
}

// answerJoin is the seed's side.
func (c *Cell) answerJoin(from netip.AddrPort, header wire.Header, payload []byte) {
	if c.phase == Booting {
		return // cannot vouch for the members yet; the joiner repeats
	}
	if j := c.joining; j != nil && bytes.Equal(payload, j.request) {
		c.joinedItself()
		return
	}
	door := join.Door{Locked: c.views.doorShut, Key: c.cluster.Key, Outdated: header.Version < c.config.Versions.Min}
	answer, ok := c.seed.Answer(c.now, from, payload, door, func(hello join.Hello) join.Welcome {
		answer := c.welcome(hello, from)
		c.guests.speaks(hello.Self, min(header.Version, c.config.Versions.Max))
		return answer
	})
	if !ok {
		c.counters.joinsDropped++
		return
	}
	reply := wire.Header{
		Version: c.config.Versions.Max, Type: wire.TypeJoinReply, PayloadLength: uint16(len(answer)), Sender: c.config.Self, Nonce: header.Nonce,
	}
	c.config.Network.Send(from, append(wire.AppendHeader(c.scratch[:0], reply), answer...))
}

// joinedItself: one of the addresses leads back here, which is no sign of a cloned disk. A name that stands for
// several cells may be this one's too, so only the last address left ends the attempt.
func (c *Cell) joinedItself() {
	j := c.joining
	const refusal = "that is this cell itself: name another machine of the cluster"
	if len(j.addresses) == 1 && j.ticket == 0 {
		c.finishJoin(failure(uds.ErrorInvalid, refusal))
		return
	}
	j.refusal = refusal
}

// welcomeMembers bounds the contacts handed to a joiner; one that answers is enough (BOOT-2).
const welcomeMembers = 20

func (c *Cell) welcome(hello join.Hello, from netip.AddrPort) join.Welcome {
	if hello.Self == c.config.Self {
		return join.Welcome{Collision: true}
	}
	if view := c.views.cells[hello.Self]; view != nil && view.hasContact &&
		view.contact.SecretHash != hello.SecretHash && view.hasStatus && view.status.Life != state.Gone {
		return join.Welcome{Collision: true}
	}
	c.guests.greet(c.now, hello.Self, from)
	welcome := join.Welcome{Key: c.cluster.Key}
	for _, candidate := range c.config.Addresses[:min(1, len(c.config.Addresses))] {
		welcome.Members = append(welcome.Members, wire.Contact{ID: c.config.Self, Address: candidate.Address})
	}
	var found [welcomeMembers]*member
	for _, m := range c.members.Random(c.config.Random, welcomeMembers-1, found[:0], func(m *member) bool {
		return m.Life != state.Alive || !m.Address.IsValid()
	}) {
		welcome.Members = append(welcome.Members, wire.Contact{ID: m.ID, Address: m.Address})
	}
	c.log(LevelInfo, "cell "+hello.Self.String()+" joins from "+from.String())
	return welcome
}

func (c *Cell) welcomed(welcome join.Welcome) {
	j := c.joining
	switch {
	case welcome.Collision:
		c.config.Storage.DiscardIdentity(c.nextTicket())
		c.finishJoin(failure(uds.ErrorExists, "the cluster already has a cell with the id "+c.config.Self.String()+
			": this disk was cloned; stop colloid and start it again, it then draws a new id"))
		return
	case welcome.Refused == join.RefusedTooMany:
		j.refusal = welcome.Refused
		j.next = max(j.next, c.now.Add(joinBusyWait))
		return
	case welcome.Refused != "" && welcome.Unproven:
		// Perhaps forged: a little time for a better answer.
		j.refusal = welcome.Refused
		j.until = min(j.until, c.now.Add(joinUnprovenWait))
		return
	case welcome.Refused != "":
		c.finishJoin(failure(uds.ErrorPermission, welcome.Refused))
		return
	case welcome.Key == c.cluster.Key:
		c.meet(welcome.Members, j.addresses[0])
		if len(welcome.Members) > 0 {
			c.wantSession(welcome.Members[0].ID) // the two may have given each other up
		}
		c.finishJoin(c.connectReply())
		return
	}
	if keys := c.operatorKeys(); len(keys) > 0 {
		if !j.merge {
			c.finishJoin(failure(uds.ErrorExists, "this cell has configuration of its own ("+keys[0].name+
				"): delete it, or take it along with --merge"))
			return
		}
		j.carried = keys
	}
	j.welcome = welcome
	j.until = c.now.Add(joinSyncTimeout)
	c.saveCluster(Cluster{Key: welcome.Key, Joined: true}, &j.ticket)
}

// clusterStored continues a join, or ends a leave, once the directory says so too: a cell never forgets
// which cluster it is in (F4).
func (c *Cell) clusterStored(err error) {
	j := c.joining
	j.ticket = ^uint64(0)
	if err != nil {
		c.noteStorage(err)
		c.finishJoin(failure(uds.ErrorIO, "cannot store the cluster: "+err.Error()))
		return
	}
	j.entered = true
	c.dropPending()
	c.enter(Cluster{Key: j.welcome.Key, Joined: true})
	c.boot = bootState{joined: true}
	c.persist = persistState{}
	c.meet(j.welcome.Members, j.addresses[0])
	c.startBoot()
	c.boot.peers = slices.Clone(j.welcome.Members[:min(len(j.welcome.Members), peersMax)])
	if len(c.boot.peers) > 0 {
		c.boot.peers[0].Address = j.addresses[0] // it answers where it was dialled
	}
	// Whoever let this cell in is remembered before anything else can happen (F4).
	c.config.Storage.SavePeers(c.nextTicket(), c.boot.peers)
	c.saveSnapshot() // what the directory holds is another cluster's
	c.tickBoot()
	c.log(LevelInfo, "joining cluster "+hex64(c.clusterID))
}

// meet notes addresses of cells that are not members in our store yet.
func (c *Cell) meet(members []wire.Contact, dialled netip.AddrPort) {
	for i, contact := range members {
		if contact.ID == c.config.Self || !contact.ID.Valid() {
			continue
		}
		address := contact.Address
		if i == 0 {
			address = dialled // the seed itself answers where it was dialled
		}
		if c.members.Get(contact.ID) == nil {
			c.guests.put(c.now, contact.ID, address, true)
			if i == 0 {
				c.guests.speaks(contact.ID, c.joining.seedSpeaks)
			}
		}
		if c.phase == Booting && len(c.boot.peers) < guestsMax {
			c.boot.peers = append(c.boot.peers, wire.Contact{ID: contact.ID, Address: address})
		} else {
			c.wantSession(contact.ID)
		}
	}
}

func (c *Cell) joinCompleted() {
	if c.writes.raising != 0 {
		c.joining.waits = true // no dot may be issued now
		return
	}
	for _, key := range c.joining.carried {
		c.mergeCarried(key)
	}
	c.finishJoin(c.connectReply())
}

// mergeCarried writes a key of the cluster left behind without any causal knowledge of this one's, so
// that a difference shows as CONFLICT instead of overwriting (SAFE-4).
func (c *Cell) mergeCarried(key carriedKey) {
	if register, found := c.store.Get([]byte(key.name)); found {
		if value, live := register.Live(); live && string(value) == string(key.value) {
			return
		}
	}
	key = c.reseal(key)
	dot := c.nextDot()
	record := wire.Record{
		KeyHash: c.store.Hash([]byte(key.name)), Name: []byte(key.name), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, key.value), Context: wire.AppendDot(nil, dot),
	}
	c.config.Storage.AppendWrite(c.nextTicket(), wire.AppendStateRecord(nil, &record))
	c.store.Merge(&record)
	c.ownStable()
	c.changed(record.Name, change{spread: true})
}

// operatorKeys lists the configuration of the cluster this cell is in, up to joinMergeMax keys.
func (c *Cell) operatorKeys() []carriedKey {
	var keys []carriedKey
	c.store.Walk("", func(r register) bool {
		if state.CategoryOf(r.Name()) != state.Operator {
			return true
		}
		if value, live := r.Live(); live {
			name := string(r.Name())
			keys = append(keys, carriedKey{name, slices.Clone(value), c.carriedEnvironment(name, value)})
		}
		return len(keys) < joinMergeMax
	})
	slices.SortFunc(keys, func(a, b carriedKey) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return keys
}

func (c *Cell) connectReply() Response {
	alive := 1
	c.members.Each(func(m *member) bool {
		if m.Life == state.Alive {
			alive++
		}
		return true
	})
	return document(uds.ConnectReply{Cluster: hex64(c.clusterID), Members: alive})
}
