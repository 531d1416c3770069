package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
)

// inventory says what the directory held at a moment, so that the next start can tell a file that never was
// from one that somebody took away, and the torn end of a log from damage to what was once complete. It is
// written after what it promises: whatever a crash leaves behind, it promises no more than is there.
type inventory struct {
	snapshot    bool   // there is a snapshot
	log         bool   // there is a log; the versions that keep an inventory never leave a moment without one
	sequence    uint64 // entries up to this number were durable, in a snapshot or a log
	previousLog uint64 // number of the last entry in writes.log.previous, 0: none
	bootID      string // of the run of the kernel that wrote it
	lost        string // see Loaded.Lost
	// moved: what is older than the next snapshot belongs to another cluster, see forgetMoved.
	moved bool
}

const (
	inventorySnapshot = 1
	inventoryLog      = 2
	inventoryMoved    = 4
	bootIDMax         = 64
	lostTextMax       = 1024
	inventoryFixed    = 1 + 8 + 8 + 1 + 2
)

func (i *inventory) marshal() []byte {
	flags := byte(0)
	if i.snapshot {
		flags |= inventorySnapshot
	}
	if i.log {
		flags |= inventoryLog
	}
	if i.moved {
		flags |= inventoryMoved
	}
	data := binary.BigEndian.AppendUint64([]byte{flags}, i.sequence)
	data = binary.BigEndian.AppendUint64(data, i.previousLog)
	data = append(append(data, byte(len(i.bootID))), i.bootID...)
	data = binary.BigEndian.AppendUint16(data, uint16(len(i.lost)))
	return append(data, i.lost...)
}

func parseInventory(payload []byte) (i inventory, err error) {
	damaged := fmt.Errorf("storage: %s: %w: unexpected form", nameInventory, ErrDamaged)
	if len(payload) < inventoryFixed || payload[0]&^(inventorySnapshot|inventoryLog|inventoryMoved) != 0 {
		return i, damaged
	}
	i.snapshot, i.log = payload[0]&inventorySnapshot != 0, payload[0]&inventoryLog != 0
	i.moved = payload[0]&inventoryMoved != 0
	i.sequence, i.previousLog = binary.BigEndian.Uint64(payload[1:]), binary.BigEndian.Uint64(payload[9:])
	length, rest := int(payload[17]), payload[18:]
	if length > bootIDMax || len(rest) < length+2 {
		return inventory{}, damaged
	}
	i.bootID, rest = string(rest[:length]), rest[length:]
	length, rest = int(binary.BigEndian.Uint16(rest)), rest[2:]
	if length > lostTextMax || length != len(rest) {
		return inventory{}, damaged
	}
	i.lost = string(rest)
	return i, nil
}

// takeStock brings the inventory up to date. That it fails costs only knowledge.
func (w *writer) takeStock() {
	now := inventory{
		snapshot: w.snapshot, log: w.logNamed, previousLog: w.previousLogLast, bootID: w.bootID, lost: w.inventory.lost,
		sequence: max(w.logLast, w.previousLogLast), moved: w.moved,
	}
	if w.snapshot {
		now.sequence = max(now.sequence, w.snapshotCovers)
	}
	_ = w.saveInventory(now)
}

func (w *writer) saveInventory(now inventory) error {
	if now == w.inventory {
		return nil
	}
	err := w.replace(nameInventory, kindInventory, now.marshal())
	if err == nil {
		w.inventory = now
	}
	return err
}

func (w *writer) saveRecovered() error {
	now := w.inventory
	now.lost = ""
	return w.saveInventory(now)
}

// loadInventory can do without: then only damage is noticed, not absence.
func (l *loader) loadInventory() error {
	payload, err := l.read(nameInventory, kindInventory, smallFileMax)
	if err == nil && payload != nil {
		l.writer.inventory, err = parseInventory(payload)
	}
	if errors.Is(err, ErrDamaged) {
		l.harmless("%v: it is written again", err)
		return nil
	}
	l.expected = l.writer.inventory
	l.writer.moved = l.expected.moved
	l.lost(l.expected.lost)
	return err
}

// readBootID names the run of the kernel, empty where there is no such thing.
func readBootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	text := strings.TrimSpace(string(data))
	if err != nil || len(text) > bootIDMax {
		return ""
	}
	return text
}
