package sim

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"time"

	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/wire"
)

// image is what a state directory holds.
type image struct {
	self        wire.CellID
	secretHash  uint64
	incarnation uint32
	cluster     cell.Cluster
	peers       []wire.Contact
	snapshot    []byte
	writes      []logged
	appended    uint64 // number of the last log entry
	joining     []byte
	lost        string // what the storage noticed to be damaged
	renewed     bool   // it draws a new id at the next start, for the files of this one are damaged
}

// logged is an entry of the own-write log. A snapshot covers the entries whose writing was asked for
// before it, and they are gone then.
type logged struct {
	number uint64
	record []byte
}

func (i *image) records() [][]byte {
	records := make([][]byte, 0, len(i.writes))
	for _, entry := range i.writes {
		records = append(records, bytes.Clone(entry.record))
	}
	return records
}

func (i *image) clone() *image {
	copied := *i
	copied.peers, copied.snapshot, copied.writes = slices.Clone(i.peers), bytes.Clone(i.snapshot), slices.Clone(i.writes)
	return &copied
}

// disk is a state directory: what was synced survives a crash, what was under way may not.
type disk struct {
	image
	world *World
	node  *Node

	// Latency of one sync, and what fails.
	latency    time.Duration
	full       bool
	idle       time.Duration // when the syncs under way will be done: they are done one after the other
	identities int           // that this machine has had
	run        int           // voids completions of an earlier process
	// Flaws of a broken storage, for tests that show that a checker notices.
	keepsIncarnation, forgetsWrites bool
}

func newDisk(w *World, n *Node) *disk {
	d := &disk{world: w, node: n, latency: 2 * time.Millisecond}
	d.wipe()
	return d
}

// wipe is a new, empty disk: a new identity.
func (d *disk) wipe() {
	d.image = image{}
	d.identify()
}

// identify draws a new identity, as the storage does for a directory without one or of another machine (F2).
func (d *disk) identify() {
	d.self = wire.CellID(d.world.random.Uint64()>>1 + 1)
	d.secretHash = d.world.random.Uint64()
	d.incarnation = 0
	d.identities++
}

// restore replaces the content of the disk, as copying an older state directory does.
func (d *disk) restore(from *image) { d.image = *from.clone() }

// load is what opening the directory gives a new process (F1: the incarnation is raised first).
func (d *disk) load() cell.Config {
	if d.renewed {
		d.identify()
	}
	if !d.keepsIncarnation {
		d.incarnation++
	}
	renewed := d.renewed
	d.renewed = false
	return cell.Config{
		Joining: bytes.Clone(d.joining), Lost: d.lost, Renewed: renewed,
		Self: d.self, Incarnation: d.incarnation, SecretHash: d.secretHash, Cluster: d.cluster,
		Peers: slices.Clone(d.peers), Snapshot: bytes.Clone(d.snapshot), Writes: d.records(),
	}
}

func (d *disk) crash() {
	d.run++
	d.idle = 0
}

var errFull = errors.Join(errors.New("write"), syscall.ENOSPC)

// later performs a sync: apply takes effect and the cell hears of it after the latency, unless the
// process died in between.
func (d *disk) later(ticket uint64, apply func()) {
	run := d.run
	delay := d.latency/2 + time.Duration(d.world.random.Int64N(int64(d.latency)))
	d.idle = max(d.idle, d.world.now) + delay
	d.world.After(d.idle-d.world.now, func() {
		if d.run != run {
			return
		}
		var err error
		if d.full {
			err = errFull
		} else {
			apply()
		}
		d.node.input(func(now clock.Instant) { d.node.cell.Stored(now, ticket, err) })
	})
}

// AppendWrite implements cell.Storage.
func (d *disk) AppendWrite(ticket uint64, record []byte) {
	copied := bytes.Clone(record)
	d.appended++
	number := d.appended
	d.world.written(d.node, copied)
	if d.forgetsWrites {
		d.later(ticket, func() { d.world.syncedWrite(d.node, copied) })
		return
	}
	d.later(ticket, func() {
		d.writes = append(d.writes, logged{number, copied})
		d.world.syncedWrite(d.node, copied)
	})
}

// SaveSnapshot implements cell.Storage.
func (d *disk) SaveSnapshot(ticket uint64, data []byte) {
	copied := bytes.Clone(data)
	covers := d.appended
	d.later(ticket, func() {
		d.snapshot = copied
		d.writes = slices.DeleteFunc(d.writes, func(entry logged) bool { return entry.number <= covers })
	})
}

// SavePeers implements cell.Storage.
func (d *disk) SavePeers(ticket uint64, peers []wire.Contact) {
	copied := slices.Clone(peers)
	d.later(ticket, func() { d.peers = copied })
}

// SaveCluster implements cell.Storage. As in a directory, what was stored in the cluster before stays until there is a
// snapshot in this one.
func (d *disk) SaveCluster(ticket uint64, cluster cell.Cluster) {
	d.later(ticket, func() { d.cluster = cluster })
}

// SaveIncarnation implements cell.Storage.
func (d *disk) SaveIncarnation(ticket uint64, incarnation uint32) {
	d.later(ticket, func() { d.incarnation = incarnation })
}

// SaveJoining implements cell.Storage.
func (d *disk) SaveJoining(ticket uint64, data []byte) {
	copied := bytes.Clone(data)
	d.later(ticket, func() { d.joining = copied })
}

// SaveRecovered implements cell.Storage.
func (d *disk) SaveRecovered(ticket uint64) {
	d.later(ticket, func() { d.lost = "" })
}

// lose is damage to the snapshot and the log that the storage notices.
func (d *disk) lose() { d.snapshot, d.writes, d.lost = nil, nil, "writes.log damaged" }

// DiscardIdentity implements cell.Storage.
func (d *disk) DiscardIdentity(ticket uint64) {
	d.later(ticket, d.identify)
}
