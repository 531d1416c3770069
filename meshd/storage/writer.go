package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// writer changes the files. It belongs to one goroutine.
type writer struct {
	disk        disk
	incarnation uint32
	bootID      string
	ballast     int64 // bytes that the ballast still holds

	log      diskFile // nil: it must be rebuilt before the next append
	logSize  int64    // up to here the log is on disk and whole
	logNamed bool     // there is a file with the name
	logLast  uint64   // sequence of its last entry, 0 if none

	// For the older generation: its log may go when no snapshot that is kept needs it.
	previousLogLast uint64
	snapshot        bool   // state.snapshot exists and is whole
	snapshotCovers  uint64 // what it contains of the log

	inventory inventory // as it is on disk

	cluster Cluster  // the last one that was stored or found, without a key if none
	unsaved *Cluster // one that could not be stored: nothing of it is stored before it is
	moved   bool     // what is older than the next snapshot belongs to another cluster

	small   map[string]smallFile // what the files that are replaced as a whole hold, by name
	written map[string]struct{}  // names written in this round
}

func newWriter(disk disk) writer {
	return writer{disk: disk, small: map[string]smallFile{}, written: map[string]struct{}{}}
}

type smallFile struct {
	kind    byte
	payload []byte
}

// write is the writer's goroutine.
func (d *Directory) write() {
	defer close(d.done)
	var synced time.Time
	watch := time.NewTicker(d.options.WatchInterval)
	defer watch.Stop()
	for {
		select {
		case <-d.wake:
		case <-watch.C:
		}
		if wait := d.options.Window - time.Since(synced); wait > 0 {
			d.gather(wait)
		}
		d.mutex.Lock()
		q, closed := d.queue, d.closed
		d.queue = queue{}
		d.mutex.Unlock()
		if len(q.appends) > 0 {
			synced = time.Now()
		}
		d.perform(&q)
		if closed {
			return
		}
	}
}

// gather waits for more appends to share a sync with; anything else ends it.
func (d *Directory) gather(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for d.onlyAppends() {
		select {
		case <-timer.C:
			return
		case <-d.wake:
		}
	}
}

func (d *Directory) onlyAppends() bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	q := &d.queue
	return !d.closed && len(q.appends) < appendsMax/2 && q.appendBytes < appendBytesMax/2 &&
		len(q.incarnation.tickets)+len(q.cluster.tickets)+len(q.peers.tickets)+
			len(q.snapshot.tickets)+len(q.discard.tickets)+len(q.joining.tickets)+len(q.recovered.tickets) == 0
}

// perform writes one round. What dots depend on comes first, the longest comes last.
func (d *Directory) perform(q *queue) {
	w := &d.writer
	unusable := d.inspect()
	defer d.noteWritten()
	complete := func(tickets []uint64, job func() error) {
		if len(tickets) == 0 {
			return
		}
		err := unusable
		if err == nil {
			err = d.located(job())
			d.noteWritten() // before anybody hears of it
		}
		for _, ticket := range tickets {
			d.options.Completed(ticket, err)
		}
	}
	complete(q.incarnation.tickets, func() error { return w.raiseIncarnation(q.incarnation.value) })
	complete(q.discard.tickets, w.removeIdentity)
	if len(q.joining.value) > 0 {
		complete(q.joining.tickets, func() error { return w.replace(nameJoining, kindJoining, q.joining.value) })
	}
	complete(q.cluster.tickets, func() error { return w.saveCluster(q.cluster.value) })
	if w.unsaved != nil && unusable == nil {
		unusable = d.located(w.saveCluster(*w.unsaved))
	}
	complete(q.peers.tickets, func() error { return w.replace(namePeers, kindPeers, q.peers.value) })
	if len(q.appends) > 0 {
		err := unusable
		if err == nil {
			err = d.located(w.appendAll(q.appends))
			d.noteWritten()
		}
		for _, job := range q.appends {
			d.options.Completed(job.ticket, err)
		}
	}
	complete(q.snapshot.tickets, func() error { return w.saveSnapshot(q.snapshot.value) })
	if len(q.joining.value) == 0 { // what it held may be in this very snapshot
		complete(q.joining.tickets, func() error { return w.remove(nameJoining) })
	}
	complete(q.recovered.tickets, w.saveRecovered)
	if unusable == nil {
		w.ensureBallast()
	}
}

// saveCluster replaces the cluster. What is older is of no use in another one: its snapshot bears the other
// cluster's number, and the hashes of its writes do not fit, so neither comes in, even where damage makes it
// the newest there is. But it is to be removed. That this is still to be done must be known after a crash, so
// it is noted before.
func (w *writer) saveCluster(c Cluster) error {
	moved := w.moved
	if w.moved = w.moved || w.cluster.Key != c.Key && w.cluster.Key != (Cluster{}).Key; w.moved != moved {
		w.takeStock()
	}
	if err := w.replace(nameCluster, kindCluster, marshalCluster(c)); err != nil {
		if !c.Joined || c.Key == w.cluster.Key { // the cell is there already; who could not join stays where it was
			w.unsaved = &c
		}
		w.moved = moved
		return err
	}
	w.unsaved = nil
	w.cluster = c
	return nil
}

// replace writes a small file as a whole. On a full disk it spends ballast until that succeeds.
func (w *writer) replace(name string, kind byte, payload []byte) error {
	data := appendEnvelope(nil, kind, payload)
	err := w.install(name, data)
	for IsNoSpace(err) && w.spendBallast() {
		err = w.install(name, data)
	}
	if err == nil {
		w.small[name] = smallFile{kind, payload}
	}
	return err
}

// install makes data the content of a file: afterwards, and after any crash meanwhile, the file is
// the old one or the new one.
func (w *writer) install(name string, data []byte) error {
	temporary := name + suffixTemporary
	w.written[name] = struct{}{}
	err := w.create(temporary, data)
	if err == nil {
		err = w.disk.Rename(temporary, name)
	}
	if err != nil {
		_ = w.disk.Remove(temporary) // it is overwritten next time if it stays
		return fmt.Errorf("storage: %s: %w", name, err)
	}
	if err := w.disk.Sync(); err != nil {
		return fmt.Errorf("storage: directory after %s: %w", name, err)
	}
	return nil
}

func (w *writer) create(name string, data []byte) error {
	f, err := w.disk.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (w *writer) raiseIncarnation(incarnation uint32) error {
	if incarnation <= w.incarnation {
		return nil
	}
	if err := w.replace(nameIncarnation, kindIncarnation, marshalIncarnation(incarnation)); err != nil {
		return err
	}
	w.incarnation = incarnation
	return nil
}

func (w *writer) removeIdentity() error { return w.remove(nameIdentity) }

// remove deletes a small file.
func (w *writer) remove(name string) error {
	delete(w.small, name)
	w.written[name] = struct{}{}
	if err := w.disk.Remove(name); err != nil && !missing(err) {
		return fmt.Errorf("storage: %s: %w", name, err)
	}
	return w.disk.Sync()
}

// ballastStep is given up at a time: enough for any small file, and the rest stays reserved.
const ballastStep = 64 << 10

// spendBallast frees a part of the ballast and reports whether there was any.
func (w *writer) spendBallast() bool {
	if w.ballast == 0 {
		return false
	}
	rest := max(w.ballast-ballastStep, 0)
	f, err := w.disk.Append(nameBallast)
	if err == nil {
		err = errors.Join(f.Truncate(rest), f.Close())
	}
	if err != nil {
		rest = 0
		err = w.disk.Remove(nameBallast)
	}
	w.ballast = rest
	return err == nil
}

// ensureBallast tries to reserve what the ballast lacks; that it cannot is no error.
func (w *writer) ensureBallast() {
	if w.ballast == BallastSize {
		return
	}
	f, err := w.disk.Append(nameBallast)
	if missing(err) {
		f, err = w.disk.Create(nameBallast)
		w.ballast = 0
	}
	if err != nil {
		return
	}
	if err := f.Allocate(BallastSize); err == nil {
		w.ballast = BallastSize
	} else if f.Truncate(w.ballast) != nil { // a failed attempt may have taken a part
		w.ballast = 0
	}
	_ = f.Close()
}

// saveSnapshot writes the new snapshot, keeps the old one as the previous, and starts a new log. A
// crash between the two renames leaves no state.snapshot; the previous one then takes its place.
func (w *writer) saveSnapshot(job snapshotJob) error {
	covers := binary.BigEndian.AppendUint64(nil, job.covers)
	temporary := nameSnapshot + suffixTemporary
	if err := w.create(temporary, appendEnvelope(nil, kindSnapshot, covers, job.data)); err != nil {
		_ = w.disk.Remove(temporary)
		return fmt.Errorf("storage: %s: %w", nameSnapshot, err)
	}
	previousCovers := uint64(0)
	w.written[nameSnapshot] = struct{}{}
	if w.snapshot {
		if err := w.disk.Rename(nameSnapshot, nameSnapshotPrevious); err != nil {
			return fmt.Errorf("storage: %s: %w", nameSnapshotPrevious, err)
		}
		w.snapshot, previousCovers = false, w.snapshotCovers
	}
	if err := w.disk.Rename(temporary, nameSnapshot); err != nil {
		return fmt.Errorf("storage: %s: %w", nameSnapshot, err)
	}
	w.snapshot, w.snapshotCovers = true, job.covers
	if err := w.disk.Sync(); err != nil {
		return fmt.Errorf("storage: directory after %s: %w", nameSnapshot, err)
	}
	var err error
	if w.moved && w.logLast <= job.covers && w.previousLogLast <= job.covers {
		err = w.forgetMoved()
	} else if w.logLast > 0 && w.previousLogLast <= previousCovers {
		w.rotateLog()
	}
	w.takeStock()
	return err
}

// forgetMoved removes the older generation once the first snapshot in another cluster holds everything: who
// has left a cluster must not find its configuration here, and who reads this disk later must not either.
func (w *writer) forgetMoved() error {
	if w.logLast > 0 {
		w.rotateLog()
	}
	if w.logLast > 0 {
		return nil // the log could not be emptied: the next snapshot tries again
	}
	for _, name := range []string{nameSnapshotPrevious, nameLogPrevious} {
		if err := w.disk.Remove(name); err != nil && !missing(err) {
			return fmt.Errorf("storage: %s: %w", name, err)
		}
	}
	w.previousLogLast, w.moved = 0, false
	return w.disk.Sync()
}

func (w *writer) close() error {
	if w.log == nil {
		return nil
	}
	w.takeStock()
	err := w.log.Close()
	w.log = nil
	return err
}
