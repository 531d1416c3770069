package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// loader reads the directory and repairs what a crash has left.
type loader struct {
	disk     disk
	writer   *writer
	loaded   Loaded
	covers   uint64 // of the loaded snapshot
	sequence uint64 // the highest that was ever used
}

func (l *loader) note(format string, arguments ...any) {
	l.loaded.Notes = append(l.loaded.Notes, fmt.Sprintf(format, arguments...))
}

func (l *loader) load(machineID string, random io.Reader) error {
	if size, err := l.disk.Size(nameBallast); err == nil {
		l.writer.ballast = min(size, BallastSize)
	}
	if err := l.identify(machineID, random); err != nil {
		return err
	}
	if err := l.loadCluster(); err != nil {
		return err
	}
	if err := l.loadPeers(); err != nil {
		return err
	}
	if err := l.loadSnapshot(); err != nil {
		return err
	}
	if err := l.loadLogs(); err != nil {
		return err
	}
	l.writer.ensureBallast()
	return nil
}

// read returns the payload of a file, nil if there is none.
func (l *loader) read(name string, kind byte, limit int64) ([]byte, error) {
	data, err := l.disk.Read(name, limit)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("storage: %s: %w", name, err)
	}
	payload, err := parseFile(data, name, kind)
	if err == nil && kind != kindSnapshot {
		l.writer.small[name] = smallFile{kind, payload}
	}
	return payload, err
}

// identify reads or makes cell_id and raises the incarnation. Without a readable incarnation the id
// cannot be kept: its dots might be used twice (F1).
func (l *loader) identify(machineID string, random io.Reader) error {
	incarnation, known, err := l.readIncarnation()
	if err != nil {
		return err
	}
	id, found, err := l.readIdentity()
	if err != nil {
		return err
	}
	switch {
	case found && !known:
		l.note("incarnation is missing or damaged: cell %v gets a new id", id.cell)
		found = false
	case found && id.machineID != machineID:
		l.note("state was copied from another machine: cell %v gets a new id", id.cell)
		found = false
	case found && incarnation == IncarnationMax:
		l.note("incarnations of cell %v are used up: it gets a new id", id.cell)
		found, incarnation = false, 0
	}
	if !found {
		if id, err = newIdentity(random, machineID); err != nil {
			return err
		}
		if incarnation == IncarnationMax {
			incarnation = 0
		}
		// The old id goes first: nothing may bring it together with a lower incarnation.
		if err := l.writer.removeIdentity(); err != nil {
			return err
		}
	}
	if err := l.raise(incarnation + 1); err != nil {
		return err
	}
	if !found {
		if err := l.writer.replace(nameIdentity, kindIdentity, id.marshal()); err != nil {
			return err
		}
	}
	l.loaded.Self, l.loaded.SecretHash, l.loaded.Incarnation = id.cell, id.hash(), incarnation+1
	return nil
}

func (l *loader) raise(incarnation uint32) error {
	err := l.writer.replace(nameIncarnation, kindIncarnation, marshalIncarnation(incarnation))
	if err == nil {
		l.writer.incarnation = incarnation
	}
	return err
}

func (l *loader) readIncarnation() (n uint32, known bool, err error) {
	payload, err := l.read(nameIncarnation, kindIncarnation, smallFileMax)
	if err == nil && payload != nil {
		n, err = parseIncarnation(payload)
	}
	if errors.Is(err, ErrDamaged) {
		return 0, false, nil // identify says what follows from it
	}
	return n, err == nil && payload != nil, err
}

func (l *loader) readIdentity() (id identity, found bool, err error) {
	payload, err := l.read(nameIdentity, kindIdentity, smallFileMax)
	if err == nil && payload != nil {
		id, err = parseIdentity(payload)
	}
	if errors.Is(err, ErrDamaged) {
		l.note("%v: this cell gets a new id", err)
		return identity{}, false, nil
	}
	return id, err == nil && payload != nil, err
}

// loadCluster fails on damage: a cell that forgot its cluster might found another one (F4).
func (l *loader) loadCluster() error {
	payload, err := l.read(nameCluster, kindCluster, smallFileMax)
	if err != nil || payload == nil {
		return l.hint(err, "restore it from a backup, or move the state directory away to start as a new cell")
	}
	l.loaded.Cluster, err = parseCluster(payload)
	l.writer.cluster = l.loaded.Cluster
	return err
}

func (l *loader) hint(err error, way string) error {
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%w: %s", err, way)
	}
	return err
}

// loadPeers can do without: other seeds are configured or heard of.
func (l *loader) loadPeers() error {
	payload, err := l.read(namePeers, kindPeers, smallFileMax)
	if err == nil {
		l.loaded.Peers, err = parsePeers(payload)
	}
	if errors.Is(err, ErrDamaged) {
		l.note("%v: known peers are forgotten", err)
		return nil
	}
	return err
}

// loadSnapshot takes the newest that is whole and makes it state.snapshot.
func (l *loader) loadSnapshot() error {
	found, err := l.trySnapshot(nameSnapshot)
	if errors.Is(err, ErrDamaged) {
		l.note("%v: it is put aside as %s, the one before is used", err, nameSnapshotDamaged)
		if err := l.disk.Rename(nameSnapshot, nameSnapshotDamaged); err != nil {
			return fmt.Errorf("storage: %s: %w", nameSnapshot, err)
		}
	} else if err != nil {
		return err
	}
	if found {
		return nil
	}
	found, err = l.trySnapshot(nameSnapshotPrevious)
	if errors.Is(err, ErrDamaged) {
		l.note("%v: the state has to come from other cells", err)
		return nil
	}
	if err != nil || !found {
		return err
	}
	if err := l.disk.Rename(nameSnapshotPrevious, nameSnapshot); err != nil {
		return fmt.Errorf("storage: %s: %w", nameSnapshot, err)
	}
	return l.disk.Sync()
}

func (l *loader) trySnapshot(name string) (found bool, err error) {
	payload, err := l.read(name, kindSnapshot, SnapshotMax+envelopeSize+8)
	if err != nil || payload == nil {
		return false, err
	}
	if len(payload) < 8 {
		return false, fmt.Errorf("storage: %s: %w: %d bytes", name, ErrDamaged, len(payload))
	}
	l.covers = binary.BigEndian.Uint64(payload)
	l.loaded.Snapshot = payload[8:]
	l.sequence = max(l.sequence, l.covers)
	l.writer.snapshot, l.writer.snapshotCovers = true, l.covers
	return true, nil
}

// loadLogs collects the writes that the snapshot does not contain and opens the log for more.
func (l *loader) loadLogs() error {
	last, _, err := l.readLog(nameLogPrevious)
	if err != nil {
		return err
	}
	l.writer.previousLogLast = last
	l.writer.logLast, l.writer.logSize, err = l.readLog(nameLog)
	if err != nil {
		return err
	}
	// Rewritten from the part that is whole, it has no torn end that a new entry could follow, and
	// no page that the kernel once failed to write and took for clean.
	err = l.writer.rebuildLog()
	if !IsNoSpace(err) {
		return err
	}
	if l.writer.logSize == 0 {
		l.note("%v: own writes are refused until there is space", err)
		return nil
	}
	return l.writer.reuseLog()
}

// readLog returns the number of the last entry and the size of the readable part.
func (l *loader) readLog(name string) (last uint64, size int64, err error) {
	data, err := l.disk.Read(name, logReadMax)
	if missing(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("storage: %s: %w", name, err)
	}
	_, rest, err := openEnvelope(data, name, kindLog)
	if newer(err) {
		return 0, 0, err
	}
	if err != nil {
		l.note("%v: it is ignored", err)
		return 0, 0, nil
	}
	for {
		sequence, record, after, ok := nextEntry(rest)
		if !ok || sequence <= last {
			break
		}
		if sequence > l.covers {
			l.loaded.Writes = append(l.loaded.Writes, record)
		}
		last, rest = sequence, after
	}
	if len(rest) > 0 {
		l.note("%s: %d bytes at the end were never completely written and are cut off", name, len(rest))
	}
	l.sequence = max(l.sequence, last)
	return last, int64(len(data) - len(rest)), nil
}
