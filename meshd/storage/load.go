package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// loader reads the directory and repairs what a crash has left.
type loader struct {
	disk     disk
	writer   *writer
	loaded   Loaded
	covers   uint64 // of the loaded snapshot
	sequence uint64 // the highest that was ever used
	expected inventory

	checkJoining func(data []byte) error // see Options
}

func (l *loader) note(format string, arguments ...any) {
	l.loaded.Notes = append(l.loaded.Notes, fmt.Sprintf(format, arguments...))
}

func (l *loader) load(machineID string, random io.Reader) error {
	if size, err := l.disk.Size(nameBallast); err == nil {
		l.writer.ballast = min(size, BallastSize)
	}
	if err := l.loadInventory(); err != nil {
		return err
	}
	if err := l.loadCluster(); err != nil {
		return err
	}
	if err := l.identify(machineID, random); err != nil {
		return err
	}
	if err := l.loadJoining(); err != nil {
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
	if err := l.saveLost(); err != nil {
		return err
	}
	l.writer.takeStock()
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
	case !found && l.loaded.Cluster.Key != [32]byte{}:
		l.harmless("%s is missing or damaged: this cell gets a new id", nameIdentity)
		l.loaded.Renewed = true
	case found && !known:
		l.harmless("%s is missing or damaged: cell %v gets a new id", nameIncarnation, id.cell)
		found, l.loaded.Renewed = false, true
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
		l.note("%v", err)
		return identity{}, false, nil // identify says what follows from it
	}
	return id, err == nil && payload != nil, err
}

// loadCluster fails on damage: a cell that forgot its cluster might found another one (F4). The same goes for
// a directory that holds what only a cell in a cluster has.
func (l *loader) loadCluster() error {
	const way = "restore it from a backup, or move the state directory away to start as a new cell"
	payload, err := l.read(nameCluster, kindCluster, smallFileMax)
	if err != nil {
		return l.hint(err, way)
	}
	if payload == nil {
		if present := l.evidence(); present != "" {
			return fmt.Errorf("storage: %s: %w: it is missing, but there is %s: %s", nameCluster, ErrDamaged, present, way)
		}
		return nil
	}
	l.loaded.Cluster, err = parseCluster(payload)
	l.writer.cluster = l.loaded.Cluster
	return l.hint(err, way)
}

// evidence names a file that only a cell that has been in a cluster has, "" if there is none. The log is made
// before, but nothing is written to it.
func (l *loader) evidence() string {
	for _, name := range [...]string{nameSnapshot, nameSnapshotPrevious, nameLogPrevious, nameLog, namePeers} {
		size, err := l.disk.Size(name)
		if err == nil && size > 0 && (name != nameLog || size > int64(len(logHeader))) {
			return name
		}
	}
	return ""
}

// loadJoining: without it the cell is in the cluster that the file of this name says, or was on its way.
func (l *loader) loadJoining() error {
	payload, err := l.read(nameJoining, kindJoining, SnapshotMax+envelopeSize)
	if err == nil && payload != nil && l.checkJoining != nil && l.checkJoining(payload) != nil {
		err = ErrDamaged
		delete(l.writer.small, nameJoining)
	}
	if errors.Is(err, ErrDamaged) {
		aside, asideErr := l.putAsideFile(nameJoining)
		if asideErr != nil {
			return asideErr
		}
		l.lost(fmt.Sprintf("%s is damaged and kept as %s: the configuration taken along by connect --merge", nameJoining, aside))
		return l.saveLost()
	}
	l.loaded.Joining = payload
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

// loadSnapshot takes the newest that is whole and makes it state.snapshot. Where only the newest is damaged
// the one before and the logs hold every own write.
func (l *loader) loadSnapshot() error {
	found, err := l.trySnapshot(nameSnapshot)
	damaged := errors.Is(err, ErrDamaged)
	if err != nil && !damaged {
		return err
	}
	if found {
		return nil
	}
	firstErr := err
	found, err = l.trySnapshot(nameSnapshotPrevious)
	previousDamaged := errors.Is(err, ErrDamaged)
	if err != nil && !previousDamaged {
		return err
	}
	names := []string{}
	if damaged {
		names = append(names, nameSnapshot)
	}
	if previousDamaged {
		names = append(names, nameSnapshotPrevious)
	}
	if !found {
		if err := l.noSnapshot(names); err != nil {
			return err
		}
	}
	for _, name := range names {
		aside, err := l.putAsideFile(name)
		if err != nil {
			return err
		}
		l.note("%s is damaged and kept as %s", name, aside)
		if found {
			l.harmless("%v: it is kept as %s, the one before is used", firstErr, aside)
		}
	}
	if !found {
		return nil
	}
	if err := l.disk.Rename(nameSnapshotPrevious, nameSnapshot); err != nil {
		return fmt.Errorf("storage: %s: %w", nameSnapshot, err)
	}
	return l.disk.Sync()
}

// noSnapshot: no snapshot can be used. That is a loss unless there never was one.
func (l *loader) noSnapshot(damaged []string) error {
	switch {
	case len(damaged) > 0:
		l.lost(strings.Join(damaged, " and ") + " damaged, kept as *" + suffixDamaged)
	case l.expected.snapshot:
		l.lost(nameSnapshot + " missing")
	}
	return l.saveLost()
}

// putAsideFile renames a file.
func (l *loader) putAsideFile(name string) (aside string, err error) {
	return l.putAside(name, nil)
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
	l.sequence = max(l.sequence, l.expected.sequence)
	previous, err := l.readLog(nameLogPrevious, l.expected.previousLog)
	if err != nil {
		return err
	}
	l.writer.previousLogLast = previous.last
	log, err := l.readLog(nameLog, l.expected.sequence)
	if err != nil {
		return err
	}
	l.loaded.Writes = append(previous.records, log.records...)
	l.writer.logLast, l.writer.logSize, l.writer.logNamed = log.last, log.whole, log.present
	if log.damaged != "" {
		return l.renewLog(log)
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

// readLog reads one log and puts it aside if it is damaged. durable is the number up to which entries are
// known to have been complete in it, or in a snapshot.
func (l *loader) readLog(name string, durable uint64) (logContent, error) {
	data, err := l.disk.Read(name, logReadMax)
	var content logContent
	switch {
	case missing(err):
		// Before there was an inventory, the log was without a name for a moment; then the previous one has
		// all.
		if name == nameLog && l.expected.log || name == nameLogPrevious && l.expected.previousLog > l.covers {
			l.lost(name + " missing")
		}
		return content, l.saveLost()
	case errors.Is(err, ErrDamaged): // it is too long to be one
		content.damaged = plain(err).Error()
	case err != nil:
		return content, fmt.Errorf("storage: %s: %w", name, err)
	default:
		if content, err = l.parseLog(data, name, durable); err != nil {
			return content, err
		}
		if content.damaged == "" && name == nameLog && max(content.last, l.covers, l.writer.previousLogLast) < durable {
			content.damaged = fmt.Sprintf("entries up to %d were in it", durable)
		}
	}
	if content.damaged != "" {
		return content, l.setAside(name, &content)
	}
	if content.torn > 0 {
		l.note("%s: %d bytes at the end were never completely written and are cut off", name, content.torn)
	}
	l.sequence = max(l.sequence, content.last)
	return content, nil
}

// setAside keeps a damaged log under another name.
func (l *loader) setAside(name string, content *logContent) error {
	l.sequence = max(l.sequence, content.last)
	text := fmt.Sprintf("%s damaged (%s), kept as %s", name, content.damaged, name+suffixDamaged)
	if name == nameLogPrevious && l.expected.log && l.expected.previousLog <= l.covers {
		l.harmless("%s: the snapshot holds what was in it", text)
	} else {
		l.lost(text)
	}
	if err := l.saveLost(); err != nil {
		return err
	}
	if _, err := l.putAside(name, content.data); err != nil {
		return err
	}
	if name == nameLogPrevious { // what is whole of it is in the next snapshot
		if err := l.disk.Remove(name); err != nil && !missing(err) {
			return fmt.Errorf("storage: %s: %w", name, err)
		}
		content.last = 0
		return l.disk.Sync()
	}
	return nil
}

// renewLog writes a log from the entries of a damaged one that are whole.
func (l *loader) renewLog(content logContent) error {
	data := append([]byte{}, logHeader...)
	for _, entry := range content.entries {
		data = append(data, entry...)
	}
	l.writer.logSize = 0
	_, sizeErr := l.disk.Size(nameLog)
	l.writer.logNamed = sizeErr == nil
	err := l.writer.installLog(data)
	if IsNoSpace(err) {
		l.note("%v: own writes are refused until there is space", err)
		l.writer.logLast = 0
		return nil
	}
	return err
}
