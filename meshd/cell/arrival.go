package cell

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// arrival is what a cell on its way into another cluster must not forget: where the members are, and with --merge
// the configuration of the cluster it leaves. It is durable before the old cluster is given up, and stays in the
// directory until a snapshot in the new one holds everything (F4, F157).
type arrival struct {
	cluster  uint64 // that is entered
	from     uint64 // that is left
	sequence uint64 // of the last dot of this cell before
	contacts []wire.Contact
	keys     []carriedKey
	merged   bool   // the keys are in the store
	snapshot uint64 // ticket of a snapshot that has them, 0 = none is under way
}

// carriedKey is a key of the cluster left behind.
type carriedKey struct {
	name  string
	value []byte
	// environment is what the specification in value names, plain: the other cluster's key seals it anew (F83).
	environment []byte
	// waiting: it had not entered the cluster left behind either; it came along from the one before.
	waiting bool
}

// Limits of the encoding; see joinMergeMax.
const (
	arrivalFixed   = 8 + 8 + 8 + 1
	carriedFixed   = 2 + 4 + 4 + 1
	arrivalSizeMax = 64 << 20
)

var errArrival = errors.New("unexpected form")

func appendArrival(dst []byte, a *arrival) []byte {
	dst = binary.BigEndian.AppendUint64(dst, a.cluster)
	dst = binary.BigEndian.AppendUint64(dst, a.from)
	dst = binary.BigEndian.AppendUint64(dst, a.sequence)
	count, at := 0, len(dst)
	dst = append(dst, 0)
	for _, contact := range a.contacts {
		if count < peersMax && contact.Check(wire.Options{Loopback: true}) == nil {
			dst = wire.AppendContact(dst, contact)
			count++
		}
	}
	dst[at] = byte(count)
	for _, key := range a.keys {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(key.name)))
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(key.value)))
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(key.environment)))
		waiting := byte(0)
		if key.waiting {
			waiting = 1
		}
		dst = append(append(append(append(dst, waiting), key.name...), key.value...), key.environment...)
	}
	return dst
}

// parseArrival decodes what appendArrival wrote and nothing else. The result points into raw.
func parseArrival(raw []byte) (*arrival, error) {
	if len(raw) < arrivalFixed {
		return nil, errArrival
	}
	a := &arrival{
		cluster: binary.BigEndian.Uint64(raw), from: binary.BigEndian.Uint64(raw[8:]), sequence: binary.BigEndian.Uint64(raw[16:]),
	}
	contacts, raw := int(raw[24]), raw[25:]
	if contacts > peersMax || contacts*wire.ContactSize > len(raw) {
		return nil, errArrival
	}
	for range contacts {
		contact, err := wire.ParseContact(raw[:wire.ContactSize], wire.Options{Loopback: true})
		if err != nil {
			return nil, err
		}
		a.contacts, raw = append(a.contacts, contact), raw[wire.ContactSize:]
	}
	for len(raw) > 0 {
		if len(raw) < carriedFixed || raw[10] > 1 || len(a.keys) == joinMergeMax {
			return nil, errArrival
		}
		name, value := int(binary.BigEndian.Uint16(raw)), int64(binary.BigEndian.Uint32(raw[2:]))
		environment := int64(binary.BigEndian.Uint32(raw[6:]))
		key := carriedKey{waiting: raw[10] == 1}
		raw = raw[carriedFixed:]
		if name == 0 || name > wire.NameMax || value == 0 || value > wire.ValueMax ||
			int64(name)+value+environment > int64(len(raw)) {
			return nil, errArrival
		}
		key.name, raw = string(raw[:name]), raw[name:]
		key.value, raw = raw[:value:value], raw[value:]
		if environment > 0 {
			key.environment, raw = raw[:environment:environment], raw[environment:]
		}
		a.keys = append(a.keys, key)
	}
	return a, nil
}

// CheckJoining reports whether data is what Storage.SaveJoining was given at some time.
func CheckJoining(data []byte) error {
	_, err := parseArrival(data)
	return err
}

// restoreArrival takes up a join that an earlier run of this cell began. Where it did not come as far as the other
// cluster, only what had been waiting then is still to be written.
func (c *Cell) restoreArrival() {
	if len(c.config.Joining) == 0 {
		return
	}
	a, err := parseArrival(slices.Clone(c.config.Joining))
	c.config.Joining = nil
	switch {
	case err != nil:
		c.log(LevelWarning, "what was taken along from another cluster does not parse: "+err.Error())
		return
	case a.cluster == c.clusterID:
		c.arrival = a
	case a.from == c.clusterID:
		a.keys = slices.DeleteFunc(a.keys, func(key carriedKey) bool { return !key.waiting })
		a.cluster, a.contacts = c.clusterID, nil
		c.arrival = a
		return
	default:
		c.log(LevelWarning, "what was taken along is meant for another cluster and is left out")
		c.config.Storage.SaveJoining(c.nextTicket(), nil)
		return
	}
	for _, contact := range c.config.Peers {
		if !slices.ContainsFunc(a.contacts, func(o wire.Contact) bool { return o.ID == contact.ID }) {
			a.contacts = append(a.contacts, contact)
		}
	}
	c.config.Peers = a.contacts[:min(len(a.contacts), peersMax)]
	c.log(LevelInfo, fmt.Sprintf("on the way into cluster %s, with %d keys taken along", hex64(a.cluster), len(a.keys)))
}

// arrive writes what was taken along once this cell may write, and ends the command.
func (c *Cell) arrive() {
	if c.writes.raising != 0 {
		return // no dot may be issued now; it is called again
	}
	if a := c.arrival; a != nil && !a.merged {
		a.keys = slices.DeleteFunc(a.keys, func(key carriedKey) bool { return c.mergeCarried(key, a.sequence) })
		if a.merged, c.persist.stateDirty = len(a.keys) == 0, true; !a.merged {
			c.alarms.raise(alarmArrival, "critical", fmt.Sprintf("%d keys taken along into this cluster are not in it, for its "+
				"store is full; the first is %s", len(a.keys), a.keys[0].name), "delete what is not needed, then start colloid "+
				"again on this machine: the keys are kept in its directory")
		}
	}
	if c.joining != nil && c.joining.entered {
		c.finishJoin(c.connectReply())
	}
}

// snapshotStored has the directory forget what a snapshot makes good: what was taken along, and that something was lost.
// One that could not be stored is made again.
func (c *Cell) snapshotStored(ticket uint64, err error) {
	if err != nil {
		c.persist.stateDirty = true
		return
	}
	if c.arrival != nil && c.arrival.snapshot == ticket {
		c.dropArrival()
	}
	if c.lossOver {
		c.lossOver = false
		c.config.Storage.SaveRecovered(c.nextTicket())
	}
}

func (c *Cell) dropArrival() {
	if c.arrival != nil {
		c.arrival = nil
		c.alarms.clear(alarmArrival)
		if !c.moving() { // else the directory has what is taken along next
			c.config.Storage.SaveJoining(c.nextTicket(), nil)
		}
	}
}

// mergeCarried writes a key of the cluster left behind without any causal knowledge of this one's, so
// that a difference shows as CONFLICT instead of overwriting (SAFE-4). since is the last dot of this cell before
// it came: a later one says that an earlier run has done this already. It reports false where the store is full.
func (c *Cell) mergeCarried(key carriedKey, since uint64) bool {
	if register, found := c.store.Get([]byte(key.name)); found {
		if wire.ContextLookup(register.Context(), c.config.Self) > since {
			return true
		}
		if value, live := register.Live(); live && string(value) == string(key.value) {
			return true
		}
	}
	key = c.reseal(key)
	dot := c.nextDot()
	record := wire.Record{
		KeyHash: c.store.Hash([]byte(key.name)), Name: []byte(key.name), EntryCount: 1,
		Entries: wire.AppendEntry(nil, dot, key.value), Context: wire.AppendDot(nil, dot),
	}
	if c.store.Merge(&record).Rejected {
		c.counters.rejected++
		return false
	}
	c.config.Storage.AppendWrite(c.nextTicket(), wire.AppendStateRecord(nil, &record))
	c.ownStable()
	c.changed(record.Name, change{spread: true})
	return true
}

// operatorKeys lists the configuration of this cell: that of its cluster, and what came along and is not in it yet.
func (c *Cell) operatorKeys() []carriedKey {
	var keys []carriedKey
	c.store.Walk("", func(r register) bool {
		if state.CategoryOf(r.Name()) != state.Operator {
			return true
		}
		if value, live := r.Live(); live {
			name := string(r.Name())
			keys = append(keys, carriedKey{name, slices.Clone(value), c.carriedEnvironment(name, value), false})
		}
		return len(keys) <= joinMergeMax
	})
	if c.arrival != nil && !c.arrival.merged {
		for _, key := range c.arrival.keys {
			if !slices.ContainsFunc(keys, func(o carriedKey) bool { return o.name == key.name }) {
				key.waiting = true
				keys = append(keys, key)
			}
		}
	}
	slices.SortFunc(keys, func(a, b carriedKey) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return keys
}

// conflictedKey names configuration of which there are two versions, so that none can be taken along.
func (c *Cell) conflictedKey() (first string) {
	for key := range c.views.conflicts {
		if state.CategoryOf([]byte(key)) == state.Operator && (first == "" || key < first) {
			first = key
		}
	}
	return first
}
