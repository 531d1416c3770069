package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
)

// Damage that a crash cannot have done is somebody's doing or the disk's, and what it took may be the only
// copy there is. So nothing is written over it: the file is put aside under another name, what is whole of it
// is used, and Loaded.Lost keeps the cell from taking the rest for all there is.

// damagedMax bounds the files put aside of one name.
const damagedMax = 9

// lost notes that acknowledged state may be gone.
func (l *loader) lost(text string) {
	if text == "" {
		return
	}
	if l.loaded.Lost != "" {
		text = l.loaded.Lost + "; " + text
	}
	if len(text) <= lostTextMax {
		l.loaded.Lost = text
	}
}

// harmless notes damage that costs nothing that matters.
func (l *loader) harmless(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	l.loaded.Damaged = append(l.loaded.Damaged, text)
	l.loaded.Notes = append(l.loaded.Notes, text)
}

// saveLost makes the loss durable before anything hides it.
func (l *loader) saveLost() error {
	now := l.writer.inventory
	now.lost = l.loaded.Lost
	if now.lost == l.writer.inventory.lost {
		return nil
	}
	return l.writer.saveInventory(now)
}

// putAside keeps the content of a file under another name, which it returns. data is nil where the file
// cannot be read as one; then it is renamed.
func (l *loader) putAside(name string, data []byte) (aside string, err error) {
	for n := 1; n <= damagedMax; n++ {
		if aside = name + suffixDamaged; n > 1 {
			aside += "." + strconv.Itoa(n)
		}
		present, err := l.disk.Read(aside, SnapshotMax+envelopeSize+8)
		if err == nil && data != nil && bytes.Equal(present, data) {
			return aside, nil // an earlier start came as far as here
		}
		if !missing(err) {
			continue
		}
		if data != nil {
			if err = l.writer.install(aside, data); !IsNoSpace(err) {
				return aside, err
			}
		}
		if err = l.disk.Rename(name, aside); err != nil {
			return "", fmt.Errorf("storage: %s: %w", name, err)
		}
		return aside, l.disk.Sync()
	}
	return "", fmt.Errorf("storage: %s: %w and cannot be put aside: move the files named %s%s* away",
		name, ErrDamaged, name, suffixDamaged)
}

// logContent is what could be read of a log.
type logContent struct {
	present bool
	damaged string // what is wrong with it, other than a torn end
	entries [][]byte
	records [][]byte // of the entries above what the snapshot contains
	last    uint64   // number of the last entry
	whole   int64    // bytes up to a torn end; of use only if not damaged
	torn    int
	data    []byte
}

// parseLog takes a log apart. durable is the number up to which entries are known to have been complete.
func (l *loader) parseLog(data []byte, name string, durable uint64) (logContent, error) {
	content := logContent{present: true, data: data}
	_, rest, err := openEnvelope(data, name, kindLog)
	if newer(err) {
		return content, err
	}
	if err != nil { // a log is put in its place as a whole, header and all
		content.damaged = "its beginning is not that of a log"
		rest = data
	}
	for {
		sequence, _, after, ok := nextEntry(rest)
		if !ok || sequence <= content.last {
			break
		}
		l.takeEntry(&content, sequence, rest[:len(rest)-len(after)])
		rest = after
	}
	content.whole, content.torn = int64(len(data)-len(rest)), len(rest)
	later := laterEntries(rest, content.last)
	switch {
	case content.damaged != "":
	case len(rest) > 0 && max(content.last, l.covers, l.writer.previousLogLast) < durable:
		content.damaged = fmt.Sprintf("entries up to %d were complete, the one after %d is not", durable, content.last)
	case len(rest) > 0 && !l.tornEnd(rest, len(later) > 0):
		content.damaged = fmt.Sprintf("the entry after %d is wrong, and more follows", content.last)
	}
	if content.damaged != "" {
		for _, entry := range later {
			l.takeEntry(&content, binary.BigEndian.Uint64(entry[8:]), entry)
		}
	}
	return content, nil
}

func (l *loader) takeEntry(content *logContent, sequence uint64, entry []byte) {
	content.entries = append(content.entries, entry)
	if sequence > l.covers {
		content.records = append(content.records, entry[entryHeaderSize:])
	}
	content.last = sequence
}

// tornEnd reports whether a crash can have left the bytes after the last good entry. A killed process leaves
// the beginning of what it was writing. A power cut leaves any of its pages, whose sum is that of one batch.
func (l *loader) tornEnd(rest []byte, followed bool) bool {
	if l.writer.bootID == "" || l.writer.bootID != l.expected.bootID {
		return len(rest) <= appendBytesMax+appendsMax*entryHeaderSize
	}
	if len(rest) < entryHeaderSize {
		return !followed
	}
	length := int64(binary.BigEndian.Uint32(rest))
	return !followed && length > 0 && length <= RecordMax && length > int64(len(rest)-entryHeaderSize)
}

// laterEntries finds the whole entries behind damage, wherever they begin.
func laterEntries(data []byte, last uint64) (entries [][]byte) {
	for len(data) >= entryHeaderSize {
		// Most offsets fail here already: a length has few bits, and numbers go on from the last.
		sequence := binary.BigEndian.Uint64(data[8:])
		if data[0] != 0 || sequence <= last || sequence-last > 1<<24 {
			data = data[1:]
			continue
		}
		_, _, after, ok := nextEntry(data)
		if !ok {
			data = data[1:]
			continue
		}
		entries = append(entries, data[:len(data)-len(after)])
		last, data = sequence, after
	}
	return entries
}
