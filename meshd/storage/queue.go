package storage

import (
	"colloid.net/meshd/wire"
)

// queue is what waits for the writer.
type queue struct {
	appends     []appendJob
	appendBytes int
	incarnation slot[uint32]
	cluster     slot[Cluster]
	peers       slot[[]byte]
	snapshot    slot[snapshotJob]
	discard     slot[struct{}]
	joining     slot[[]byte]
	recovered   slot[struct{}]
}

type appendJob struct {
	ticket   uint64
	sequence uint64
	entry    []byte // encoded
}

type snapshotJob struct {
	data   []byte
	covers uint64 // the last log entry it contains
}

// slot holds the newest value of one file and the tickets that its writing will complete.
type slot[T any] struct {
	value   T
	tickets []uint64
}

func (s *slot[T]) put(value T, ticket uint64) bool {
	if len(s.tickets) == ticketsMax {
		return false
	}
	s.value = value
	s.tickets = append(s.tickets, ticket)
	return true
}

// submit runs change under the lock and wakes the writer, or completes the ticket with the error.
func (d *Directory) submit(ticket uint64, change func(*queue) error) {
	d.mutex.Lock()
	err := ErrClosed
	if !d.closed {
		err = change(&d.queue)
	}
	d.mutex.Unlock()
	if err != nil {
		d.options.Completed(ticket, err)
		return
	}
	d.signal()
}

func full(ok bool) error {
	if ok {
		return nil
	}
	return ErrQueueFull
}

// AppendWrite adds one own write to the log. After an error it may be in the log all the same: a dot
// whose write failed must not be used for another one.
func (d *Directory) AppendWrite(ticket uint64, record []byte) {
	d.submit(ticket, func(q *queue) error {
		if len(record) == 0 || len(record) > RecordMax {
			return ErrTooLarge
		}
		if len(q.appends) == appendsMax || q.appendBytes+len(record) > appendBytesMax {
			return ErrQueueFull
		}
		d.sequence++
		entry := appendEntry(make([]byte, 0, entryHeaderSize+len(record)), d.sequence, record)
		q.appends = append(q.appends, appendJob{ticket, d.sequence, entry})
		q.appendBytes += len(record)
		return nil
	})
}

// SaveSnapshot replaces the snapshot. Log entries appended before the call are taken to be in it.
func (d *Directory) SaveSnapshot(ticket uint64, data []byte) {
	if len(data) > SnapshotMax {
		d.options.Completed(ticket, ErrTooLarge)
		return
	}
	data = append([]byte{}, data...) // copied before the lock is taken
	d.submit(ticket, func(q *queue) error {
		return full(q.snapshot.put(snapshotJob{data, d.sequence}, ticket))
	})
}

// SavePeers replaces the list of contacts; those beyond PeersMax are left out.
func (d *Directory) SavePeers(ticket uint64, peers []wire.Contact) {
	d.submit(ticket, func(q *queue) error { return full(q.peers.put(marshalPeers(peers), ticket)) })
}

// SaveCluster remembers the cluster this cell belongs to.
func (d *Directory) SaveCluster(ticket uint64, cluster Cluster) {
	d.submit(ticket, func(q *queue) error { return full(q.cluster.put(cluster, ticket)) })
}

// SaveIncarnation raises the incarnation. A number below the stored one changes nothing.
func (d *Directory) SaveIncarnation(ticket uint64, incarnation uint32) {
	d.submit(ticket, func(q *queue) error {
		if incarnation > IncarnationMax {
			return ErrTooLarge
		}
		return full(q.incarnation.put(max(incarnation, q.incarnation.value), ticket))
	})
}

// DiscardIdentity makes the next Open draw a new cell id: another instance uses this one (F2).
func (d *Directory) DiscardIdentity(ticket uint64) {
	d.submit(ticket, func(q *queue) error { return full(q.discard.put(struct{}{}, ticket)) })
}

// SaveJoining keeps what a cell on its way into another cluster must not forget; empty data removes it.
func (d *Directory) SaveJoining(ticket uint64, data []byte) {
	if len(data) > SnapshotMax {
		d.options.Completed(ticket, ErrTooLarge)
		return
	}
	data = append([]byte{}, data...)
	d.submit(ticket, func(q *queue) error { return full(q.joining.put(data, ticket)) })
}

// SaveRecovered notes that what Loaded.Lost said is over: the state came from others, or a person did without
// it.
func (d *Directory) SaveRecovered(ticket uint64) {
	d.submit(ticket, func(q *queue) error { return full(q.recovered.put(struct{}{}, ticket)) })
}
