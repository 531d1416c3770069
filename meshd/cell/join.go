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

type joinAttempt struct {
	key        *seal.Key // of a locked door, nil without
	began      clock.Instant
	handshake  *join.Joiner
	shaken     clock.Instant // when the handshake under way began
	addresses  []netip.AddrPort
	answered   netip.AddrPort // of these, whence the welcome came
	request    []byte
	next       clock.Instant
	until      clock.Instant
	merge      bool
	ticket     uint64   // of what is being stored, 0 before it is decided that this cell moves
	arrival    *arrival // once that is decided
	stored     bool     // the arrival is durable, the cluster is next
	welcome    join.Welcome
	entered    bool
	alone      bool        // when it began
	guest      wire.CellID // whom this cell let in meanwhile, 0 = nobody
	waits      bool        // for the guest: until then it asks nobody to count on it
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
	case c.config.Lost != "":
		reply(failure(uds.ErrorBusy, "this cell lost a part of its state: see `colloid status`"))
		return
	case len(request.Addresses) == 0:
		reply(failure(uds.ErrorInvalid, "no address to connect to"))
		return
	}
	c.joining = &joinAttempt{
		began:     c.now,
		alone:     c.members.Len() == 0,
		key:       request.JoinKey,
		addresses: request.Addresses,
		merge:     request.Merge,
		next:      c.now,
		until:     c.now.Add(joinTimeout),
		reply:     reply,
	}
	if c.awaitsGuest() {
		c.joining.guest = c.guest.id
		if c.guest.several {
			c.waitForGuest()
		}
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
	j.shaken = c.now
	j.request = j.handshake.Request()
}

func (c *Cell) tickJoin() {
	j := c.joining
	if j == nil || c.moving() { // who has decided waits for the disk: it may say the other cluster already (F4)
		return
	}
	if j.until.Reached(c.now) {
		c.joinTimedOut()
		return
	}
	if j.ticket != 0 || !j.next.Reached(c.now) {
		return
	}
	if j.waits && c.awaitsGuest() {
		j.next = c.now.Add(joinRetry)
		return
	}
	j.waits = false
	if c.now.Sub(j.shaken) >= joinHandshakeLife {
		c.handshake()
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
	switch {
	case c.joining == nil, c.moving():
		return clock.Never
	case c.joining.entered:
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
	if c.now.Sub(j.shaken) > joinHandshakeLife {
		return // the one who sent it does not count on this cell any more
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
		j.seedSpeaks, j.answered = min(header.Version, c.config.Versions.Max), from
		c.welcomed(welcome)
	}
}

// answerJoin is the seed's side.
func (c *Cell) answerJoin(from netip.AddrPort, header wire.Header, payload []byte) {
	if j := c.joining; j != nil && j.ticket == 0 && bytes.Equal(payload, j.request) {
		c.joinedItself(from)
		return
	}
	if c.phase != Active || c.moving() || c.founding != 0 || c.unfounded {
		return // cannot vouch for a cluster yet, or not any more; the joiner repeats
	}
	door := join.Door{Locked: c.views.doorShut, Key: c.cluster.Key, Outdated: header.Version < c.config.Versions.Min}
	answer, ok := c.seed.Answer(c.now, from, payload, door, func(hello join.Hello) (join.Welcome, bool) {
		if !c.mayWelcome(hello, from) {
			return join.Welcome{}, false
		}
		answer := c.welcome(hello, from)
		c.guests.speaks(hello.Self, min(header.Version, c.config.Versions.Max))
		return answer, true
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
func (c *Cell) joinedItself(from netip.AddrPort) {
	j := c.joining
	refusal, errno := "that is this cell itself: name another machine of the cluster", uds.ErrorInvalid
	if !c.isOwnAddress(from) {
		refusal = from.String() + " sends back what it is sent: no colloid answers there, unless it is this cell " +
			"itself behind a router; name another machine of the cluster"
		errno = uds.ErrorUnreachable
	}
	if len(j.addresses) == 1 && j.ticket == 0 {
		c.finishJoin(failure(errno, refusal))
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
	c.noteGuest(hello.Self)
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
		c.meet(welcome.Members, j.answered)
		if len(welcome.Members) > 0 {
			c.wantSession(welcome.Members[0].ID) // the two may have given each other up
		}
		c.finishJoin(c.connectReply())
		return
	}
	if c.staysFor(welcome) {
		return
	}
	if len(c.writes.pending)+len(c.writes.held) > 0 {
		c.handshake() // once they are stored
		return
	}
	keys := c.operatorKeys()
	if refusal := c.carryRefusal(keys); refusal != "" {
		c.finishJoin(failure(uds.ErrorExists, refusal))
		return
	}
	c.move(welcome, keys)
}

// carryRefusal says why this cell cannot leave its configuration, or take it along; "" if it can.
func (c *Cell) carryRefusal(keys []carriedKey) string {
	if key := c.conflictedKey(); key != "" {
		return key + " has two versions here: `colloid resolve " + key + "` first"
	}
	switch {
	case len(keys) > 0 && !c.joining.merge:
		return "this cell has configuration of its own (" + keys[0].name + "): delete it, or take it along with --merge"
	case len(keys) > joinMergeMax:
		return "this cell has more configuration than it can take along: delete some"
	}
	return ""
}

// move gives up this cluster for another. From here on nobody is let in and nothing is written, and what the cell
// takes along is durable first.
func (c *Cell) move(welcome join.Welcome, keys []carriedKey) {
	j := c.joining
	contacts := slices.Clone(welcome.Members[:min(len(welcome.Members), peersMax)])
	if len(contacts) > 0 {
		contacts[0].Address = j.answered // it answers where it was dialled
	}
	moving := &arrival{
		cluster: seal.ClusterID(welcome.Key), from: c.clusterID, sequence: c.issued(), contacts: contacts, keys: keys,
	}
	data := appendArrival(nil, moving)
	if len(data) > arrivalSizeMax {
		c.finishJoin(failure(uds.ErrorExists, "this cell has more configuration than it can take along: delete some"))
		return
	}
	j.welcome, j.arrival = welcome, moving
	j.ticket = c.nextTicket()
	c.config.Storage.SaveJoining(j.ticket, data)
}

// joinStored goes on when what was to be stored for the join is, or is not.
func (c *Cell) joinStored(err error) {
	j := c.joining
	if j.stored {
		c.clusterStored(err)
		return
	}
	if err != nil {
		c.joinUnstored(err)
		return
	}
	j.stored = true
	c.saveCluster(Cluster{Key: j.welcome.Key, Joined: true}, &j.ticket)
}

// joinUnstored ends a join that the disk prevents; this cell stays where it is.
func (c *Cell) joinUnstored(err error) {
	c.noteStorage(err)
	var data []byte
	if c.arrival != nil {
		data = appendArrival(nil, c.arrival)
	}
	c.config.Storage.SaveJoining(c.nextTicket(), data)
	c.finishJoin(failure(uds.ErrorIO, "cannot store the cluster: "+err.Error()))
}

// clusterStored continues a join once the directory says so too: a cell never forgets which cluster it is in (F4).
func (c *Cell) clusterStored(err error) {
	j := c.joining
	if err != nil {
		c.joinUnstored(err)
		return
	}
	j.ticket, j.entered = ^uint64(0), true
	j.until = c.now.Add(joinSyncTimeout)
	c.arrival, c.guest, c.founding, c.unfounded = j.arrival, lastGuest{}, 0, false
	c.dropPending()
	c.enter(Cluster{Key: j.welcome.Key, Joined: true})
	c.boot = bootState{joined: true}
	c.persist = persistState{}
	c.meet(j.welcome.Members, j.answered)
	c.startBoot()
	c.boot.peers = slices.Clone(j.arrival.contacts)
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
