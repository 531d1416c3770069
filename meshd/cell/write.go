package cell

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Errors of operator writes.
var (
	errPending    = errors.New("another write of this key is being stored: try again")
	errStoreFull  = errors.New("the store of this cell is full")
	errWritesFull = errors.New("too many writes are being stored: try again")
	errMoving     = errors.New("this cell is joining another cluster: try again in a moment")
)

// writesPendingMax bounds operator writes that wait for the disk. More are refused, not queued.
const writesPendingMax = 256

// raisesMax is how often in one run a cell may find itself behind before it concludes that another instance
// uses its id at the same time (F2).
const raisesMax = 3

// statusIncarnationShift leaves room for refutations within one run below the run's incarnation, so
// that a restarted cell outranks every status of its earlier runs (F47).
const statusIncarnationShift = 8

// pendingWrite is an operator's write on its way to the own-write log. It enters the store only once it
// is durable: a value that anybody saw can therefore always be found again in this cell's log, which is
// what its stability vector promises (F45 i, F157).
type pendingWrite struct {
	ticket   uint64
	sequence uint64 // of its dot
	key      string
	record   []byte // AE_STATE form
	done     func(error)
}

type writeState struct {
	ticket  uint64
	pending []pendingWrite
	held    []func() // writes that wait for a snapshot to be made
	raising uint64   // ticket of an incarnation on its way to the disk, 0 = none
	raiseTo uint32
	raises  int  // of the incarnation in this run, because others had seen more of this cell
	felt    int  // incarnations tried by a booting cell that nobody answers
	spent   bool // there is no incarnation left; the next start draws another id
}

func (w *writeState) init() { w.ticket = 0 }

func (c *Cell) nextTicket() uint64 {
	c.writes.ticket++
	return c.writes.ticket
}

// nextDot issues a dot. Sequences of one run never repeat and never wrap (F1, F10).
func (c *Cell) nextDot() wire.Dot {
	c.counter++
	if c.counter >= 1<<wire.CounterBits {
		panic("cell: dot counter exhausted within one incarnation")
	}
	dot := wire.Dot{Actor: c.config.Self, Sequence: c.issued()}
	c.store.RaiseOwnSequence(dot.Sequence) // by whatever way it comes back, this run has used it
	return dot
}

// issued is the sequence of the last dot of this run.
func (c *Cell) issued() uint64 { return uint64(c.incarnation)<<wire.CounterBits | c.counter }

// publish writes a fact this cell alone is responsible for, if it is not in the store already. It is
// logged without waiting: such facts are restated at every start.
func (c *Cell) publish(name string, value []byte) {
	if c.writes.raising != 0 {
		c.schedule.restate = true // no dot may be issued now; everything is restated afterwards
		return
	}
	key := []byte(name)
	if register, found := c.store.Get(key); found {
		if present, live := register.Live(); live && bytes.Equal(present, value) {
			return
		}
		if len(value) == 0 && register.Absent() {
			return
		}
	} else if len(value) == 0 {
		return
	}
	c.writeNow(key, value)
}

// claim writes a status of any cell: its own, or an accusation the detector is sure of. The register is
// a max-register, so a claim that adds nothing is not written (F47).
func (c *Cell) claim(_ clock.Instant, target wire.CellID, status state.CellStatus) {
	if target == c.config.Self {
		c.restateSelf(status)
		return
	}
	if c.phase == Booting || c.writes.raising != 0 || c.isolation.muted(c) {
		return
	}
	name := []byte(state.StatusKey(target))
	value := state.AppendCellStatus(c.valueBuf[:0], status)
	if register, found := c.store.Get(name); found {
		if present, live := register.Live(); live {
			if now, err := state.ParseCellStatus(present); err == nil && now.Life == state.Dead &&
				now.Incarnation == status.Incarnation {
				return // who else says so does not matter any more
			}
			joined := state.JoinStatusValues(nil, present, value)
			if bytes.Equal(joined, present) {
				return
			}
		}
	}
	switch status.Life {
	case state.Suspect:
		c.counters.suspects++
	case state.Dead:
		c.counters.deaths++
		c.log(LevelWarning, "cell "+target.String()+" does not answer: declared dead")
	}
	c.writeNow(name, value)
}

// tellStatus shows a cell the status register of another, or its own: that is how the accused hears of the
// accusation (F63, F64).
func (c *Cell) tellStatus(_ clock.Instant, to, about wire.CellID) {
	c.store.Frames([]byte(state.StatusKey(about)), wire.SealedPayloadMax, func(record *wire.Record) bool {
		if record.EntryCount == 1 {
			c.send(to, wire.TypeDelta, c.config.Random.Uint32(), wire.AppendDelta(c.payload[:0], record))
		}
		return false
	})
}

// restateSelf answers an accusation, or announces this cell's own state, with a greater incarnation.
func (c *Cell) restateSelf(status state.CellStatus) {
	if status.Incarnation > c.statusIncarnation {
		c.statusIncarnation = status.Incarnation
		c.counters.refutations++
	}
	if c.phase == Booting {
		return // announced when the state is authoritative
	}
	c.announceSelf()
}

// announceSelf publishes this cell's life under its present incarnation.
func (c *Cell) announceSelf() {
	life := state.Alive
	if c.phase == Leaving {
		life = state.Leaving
	}
	if view := c.views.cells[c.config.Self]; view != nil && view.hasStatus {
		mine := state.CellStatus{Life: life, Incarnation: c.statusIncarnation}
		if view.status.Outranks(mine) {
			c.statusIncarnation = view.status.Incarnation + 1
			c.counters.refutations++
		}
	}
	status := state.CellStatus{
		Life: life, Incarnation: c.statusIncarnation, Claimants: []wire.CellID{c.config.Self},
	}
	c.detector.SetSelf(status)
	c.publish(state.StatusKey(c.config.Self), state.AppendCellStatus(nil, status))
}

func (c *Cell) writeNow(name, value []byte) {
	outcome := c.store.Write(name, value, c.nextDot())
	if !outcome.Changed {
		return
	}
	c.ownStable()
	c.config.Storage.AppendWrite(c.nextTicket(), c.renderOwn(name))
	c.changed(name, change{spread: true})
}

// renderOwn returns the register in AE_STATE form for the own-write log. Registers of own facts have one
// entry and few actors; one that outgrew a frame is covered by the next snapshot.
func (c *Cell) renderOwn(name []byte) []byte {
	var rendered []byte
	c.store.Frames(name, wire.SealedPayloadMax, func(record *wire.Record) bool {
		rendered = wire.AppendStateRecord(rendered, record)
		return true
	})
	return rendered
}

// ownStable states that every own write so far is reflected here (F45 i). What still waits for the disk is
// not: a vector that covered it would make the store refuse it as superseded when it comes.
//
// Until the state was compared with somebody's, or while there never was anybody else, nothing is stated: a
// directory restored from an older copy lacks own writes that others hold, and claiming them would make this
// cell tell the others that they are superseded (F1). The same goes, for a day, where own writes are known to
// be lost.
func (c *Cell) ownStable() {
	if !c.boot.compared || c.ownLost != 0 && !c.ownLost.Reached(c.now) {
		return
	}
	sequence := c.issued()
	for i := range c.writes.pending {
		sequence = min(sequence, c.writes.pending[i].sequence-1)
	}
	c.store.OwnStable(sequence)
}

// ownWritesLost notes that earlier writes of this cell may be with others only: it left and joined again, or
// its directory is an older copy. Until tombstoneGrace has passed what the others say about them counts (F45 i).
func (c *Cell) ownWritesLost() { c.ownLost = c.now.Add(tombstoneGrace) }

// livedHere reports whether the cluster that this cell has joined knows an earlier life of it.
func (c *Cell) livedHere() bool {
	_, known := c.store.Get([]byte(state.StatusKey(c.config.Self)))
	return known || c.store.Stable(c.config.Self) > 0
}

// snapshotWithholds reports whether the snapshot just loaded has own writes that its vector does not cover:
// then the run that made it did not vouch for them, and this one does not either.
func (c *Cell) snapshotWithholds() (withholds bool) {
	stable := c.store.Stable(c.config.Self)
	c.store.Walk("", func(r register) bool {
		withholds = wire.ContextLookup(r.Context(), c.config.Self) > stable
		return !withholds
	})
	return withholds
}

// operatorWrite stores and then applies a write of a person. An empty value deletes. done is called
// exactly once.
func (c *Cell) operatorWrite(name string, value []byte, done func(error)) {
	compose := func(dot wire.Dot) []byte { return c.composeWrite([]byte(name), value, dot) }
	c.durableWrite(name, compose, done)
}

// durableWrite is operatorWrite for a record that compose renders when its turn has come.
func (c *Cell) durableWrite(name string, compose func(wire.Dot) []byte, done func(error)) {
	if c.moving() {
		done(errMoving) // what it takes along is fixed already
		return
	}
	if c.persist.snapshotWanted && len(c.writes.held) < writesPendingMax {
		c.writes.held = append(c.writes.held, func() { c.durableWrite(name, compose, done) })
		return
	}
	if len(c.writes.pending) >= writesPendingMax || c.writes.raising != 0 {
		done(errWritesFull)
		return
	}
	for i := range c.writes.pending {
		if c.writes.pending[i].key == name {
			done(errPending)
			return
		}
	}
	dot := c.nextDot()
	record := compose(dot)
	ticket := c.nextTicket()
	c.writes.pending = append(c.writes.pending, pendingWrite{ticket, dot.Sequence, name, record, done})
	c.config.Storage.AppendWrite(ticket, record)
}

// composeWrite renders a write that supersedes everything this cell holds for the key: one record with the
// entry, and further ones without entries where more actors have written than one record can name (F49).
func (c *Cell) composeWrite(name, value []byte, dot wire.Dot) []byte {
	var context []byte
	if register, found := c.store.Get(name); found {
		context = register.Context()
	}
	return c.composeOver(name, value, dot, context)
}

// composeOver renders a write that supersedes what the context covers, and whatever this cell wrote before.
func (c *Cell) composeOver(name, value []byte, dot wire.Dot, context []byte) []byte {
	var others []wire.Dot
	for raw := context; len(raw) > 0; raw = raw[wire.DotSize:] {
		if seen := wire.DotAt(raw); seen.Actor != dot.Actor {
			others = append(others, seen)
		}
	}
	first := append([]wire.Dot{dot}, others[:min(len(others), wire.FrameContextMax-1)]...)
	others = others[len(first)-1:]
	slices.SortFunc(first, func(a, b wire.Dot) int { return cmp.Compare(a.Actor, b.Actor) })
	record := wire.Record{KeyHash: c.store.Hash(name), Name: name, EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, value), Context: appendDots(nil, first)}
	rendered := wire.AppendStateRecord(nil, &record)
	for len(others) > 0 {
		n := min(len(others), wire.FrameContextMax)
		record.EntryCount, record.Entries = 0, nil
		record.Context = appendDots(nil, others[:n])
		rendered = wire.AppendStateRecord(rendered, &record)
		others = others[n:]
	}
	return rendered
}

func appendDots(dst []byte, dots []wire.Dot) []byte {
	for _, dot := range dots {
		dst = wire.AppendDot(dst, dot)
	}
	return dst
}

// Stored is the completion of one Storage call.
func (c *Cell) Stored(now clock.Instant, ticket uint64, err error) {
	c.now = now
	c.stored(ticket, err)
	c.drain()
}

func (c *Cell) stored(ticket uint64, err error) {
	switch {
	case ticket == c.writes.raising && ticket != 0:
		c.incarnationStored(err)
		return
	case ticket == c.persist.snapshotTicket && ticket != 0:
		c.persist.snapshotTicket = 0
		c.snapshotStored(ticket, err)
	case ticket == c.founding && ticket != 0:
		c.founding, c.unfounded = 0, err != nil
	case c.joining != nil && ticket == c.joining.ticket && ticket != 0:
		c.joinStored(err)
		return
	}
	c.noteStorage(err)
	for i := range c.writes.pending {
		if c.writes.pending[i].ticket == ticket {
			write := c.writes.pending[i]
			c.writes.pending = append(c.writes.pending[:i], c.writes.pending[i+1:]...)
			c.applyWrite(write, err)
			c.releaseHeld()
			return
		}
	}
}

// dropPending refuses all writes that wait for the disk: the cluster they were meant for is left behind.
func (c *Cell) dropPending() {
	c.persist.snapshotWanted = false
	for _, write := range c.writes.held {
		write()
	}
	c.writes.held = nil
	for i := range c.writes.pending {
		c.writes.pending[i].done(errLeft)
	}
	c.writes.pending = nil
}

// releaseHeld makes the snapshot that waited for the last pending write, then lets new ones go on.
func (c *Cell) releaseHeld() {
	if !c.persist.snapshotWanted || len(c.writes.pending) > 0 {
		return
	}
	c.saveSnapshot()
	held := c.writes.held
	c.writes.held = nil
	for _, write := range held {
		write()
	}
}

func (c *Cell) applyWrite(write pendingWrite, err error) {
	if err != nil {
		write.done(err)
		return
	}
	changed := false
	for rest := write.record; len(rest) > 0; {
		var record wire.Record
		if rest, err = wire.NextStateRecord(rest, &record); err != nil {
			panic("cell: own write does not parse: " + err.Error())
		}
		outcome := c.store.Merge(&record)
		if outcome.Rejected {
			c.counters.rejected++
			write.done(errStoreFull)
			return
		}
		changed = changed || outcome.Changed
	}
	c.ownStable()
	if changed {
		c.changed([]byte(write.key), change{spread: true})
	}
	write.done(nil)
}

// noteStorage shows a failing disk in status until it works again (F157).
func (c *Cell) noteStorage(err error) {
	c.storageError = ""
	if err == nil {
		c.alarms.clear(alarmStorage)
		return
	}
	c.storageError = err.Error()
	if shown := c.alarms.raised[AlarmDirectory]; shown.Text != "" && strings.Contains(c.storageError, shown.Text) {
		c.alarms.clear(alarmStorage)
		return // one cause, one alarm
	}
	c.alarms.raise(alarmStorage, "critical", "cannot write to the state directory: "+err.Error(),
		"free space or repair the disk; gossip continues, new configuration is refused")
}

// noteOwnDotAhead remembers that somebody holds a write of ours that we never issued in this run.
func (c *Cell) noteOwnDotAhead(record *wire.Record) {
	c.changes.ownAhead = max(c.changes.ownAhead, wire.ContextLookup(record.Context, c.config.Self))
}

// ownDotAhead: our disk went back in time. Raise the incarnation above what was seen before writing
// anything else (F1).
func (c *Cell) ownDotAhead() {
	seen := wire.Dot{Actor: c.config.Self, Sequence: c.changes.ownAhead}
	c.changes.ownAhead = 0
	target := seen.Incarnation() + 1
	if target <= c.incarnation || target <= c.writes.raiseTo && c.writes.raising != 0 {
		return
	}
	if target >= 1<<24-1 {
		c.alarms.raise(alarmSpent, "critical", "the dots of this cell are used up",
			"start colloid again: the cell then gets a new id (F10)")
		if !c.writes.spent {
			c.writes.spent = true
			c.config.Storage.DiscardIdentity(c.nextTicket())
		}
		return
	}
	if c.writes.raises++; c.writes.raises > raisesMax {
		c.sawOwnIdentity() // a restored disk is behind once, not again and again
	}
	c.ownWritesLost()
	c.alarms.raise(alarmOwnDot, "warning", "the cluster remembers writes that this cell's disk does not",
		"the state directory was restored from an older copy; its writes go on under a new incarnation")
	c.raise(target)
}

// raise makes an incarnation durable; it is used from then on.
func (c *Cell) raise(target uint32) {
	c.writes.raiseTo = target
	c.writes.raising = c.nextTicket()
	c.config.Storage.SaveIncarnation(c.writes.raising, target)
}

func (c *Cell) incarnationStored(err error) {
	c.writes.raising = 0
	c.noteStorage(err)
	if err != nil {
		return
	}
	c.incarnation, c.counter = c.writes.raiseTo, 0
	c.store.RaiseOwnSequence(uint64(c.incarnation) << wire.CounterBits)
	c.statusIncarnation = max(c.statusIncarnation, c.incarnation<<statusIncarnationShift)
	c.sealer = seal.NewSealer(c.cluster.Key, c.config.Self, c.incarnation)
	if c.phase != Booting {
		c.restate()
	}
	if c.phase != Booting {
		c.arrive()
	}
}
