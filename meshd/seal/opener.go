package seal

import (
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"

	"colloid.net/meshd/wire"
)

// Reasons why Open refuses a datagram, besides those of package wire.
var (
	// ErrUnsealed: the datagram has no trailer, or is of the join handshake, which is never sealed.
	ErrUnsealed = errors.New("seal: datagram is not sealed")
	// ErrForged: the tag fits neither key: another cluster, a damaged datagram or an attack.
	ErrForged = errors.New("seal: datagram is not authentic")
	// ErrReplayed: this counter was seen before, or is too old to tell.
	ErrReplayed = errors.New("seal: datagram was seen before or is too old")
)

// floorsPerSender is how many evicted senders are remembered for each one in the table.
const floorsPerSender = 16

// sender is one row of the table; rows form a list by last use.
type sender struct {
	id           wire.CellID
	older, newer int32 // indices into Opener.senders, -1 = none
	generations  [2]uint32
	ciphers      [2]cipher.AEAD // under the current and the previous key
	preferPrior  bool           // the last datagram came under the previous key
	replay       window
}

// Opener opens the datagrams of other cells.
type Opener struct {
	versions   wire.Versions
	current    Key
	keys       [2]*senderKeys // current, previous (nil = none)
	generation [2]uint32      // of the keys, so that rows know when their ciphers are stale
	sendersMax int
	senders    []sender
	index      map[wire.CellID]int32
	oldest     int32
	newest     int32
	floors     map[wire.CellID]floor // of senders that have no row
	floorsRing []wire.CellID         // in order of eviction
	floorsNext int
	nonce      [nonceSize]byte
	copied     [wire.DatagramMax]byte
}

// NewOpener returns an opener with room for sendersMax senders, at least 1. A sender gets a row with
// its first authentic datagram, so that strangers cannot fill the table. When it is full, the row used
// longest ago goes and only the sender's highest counter is kept: when it comes back, nothing it had
// sent before is accepted again. That record is bounded too (floorsPerSender times sendersMax, the
// oldest goes first); a sender that fell out of both starts afresh, and one old datagram of it could
// then be replayed until its next one arrives. Size the table for the cluster and this never happens.
func NewOpener(k Key, sendersMax int) *Opener {
	if sendersMax < 1 || sendersMax > 1<<20 {
		panic(fmt.Sprintf("seal: table for %d senders", sendersMax))
	}
	return &Opener{
		versions:   wire.Spoken,
		current:    k,
		keys:       [2]*senderKeys{newSenderKeys(k), nil},
		generation: [2]uint32{1, 0},
		sendersMax: sendersMax,
		index:      make(map[wire.CellID]int32),
		oldest:     -1,
		newest:     -1,
		floors:     make(map[wire.CellID]floor),
	}
}

// Speak makes the opener accept the given protocol versions instead of wire.Spoken.
func (o *Opener) Speak(versions wire.Versions) { o.versions = versions }

// Rekey makes k the current key and keeps the present one as the previous, for datagrams under way and
// for cells that have not changed yet. Replay windows go on: a sender's counter does not depend on the
// key. Open with both keys in place costs one copy and, for strangers, two tries. Rekey to the current
// key changes nothing.
func (o *Opener) Rekey(k Key) {
	if k == o.current {
		return
	}
	o.current = k
	o.keys[1], o.generation[1] = o.keys[0], o.generation[0]
	o.keys[0] = newSenderKeys(k)
	o.generation[0]++
}

// RefuseBefore refuses all datagrams of a sender before its given incarnation. The cell calls it with
// what its
// stored state knows, because the windows themselves do not survive a restart. Floors of senders not
// in the table count against the bound named at NewOpener.
func (o *Opener) RefuseBefore(id wire.CellID, incarnation uint32) {
	if incarnation == 0 || incarnation > incarnationMax {
		return
	}
	counter := uint64(incarnation)<<wire.CounterBits - 1
	if at, ok := o.index[id]; ok {
		row := &o.senders[at]
		row.replay.floor = max(row.replay.floor, counter)
		return
	}
	o.rememberFloor(id, counter)
}

// Newest returns the incarnation of the newest datagram of a sender that was opened, 0 if none is remembered.
func (o *Opener) Newest(id wire.CellID) uint32 {
	if at, ok := o.index[id]; ok {
		row := &o.senders[at]
		return uint32(max(row.replay.top, row.replay.floor) >> wire.CounterBits)
	}
	return uint32(o.floors[id].counter >> wire.CounterBits)
}

// Open verifies a datagram, decrypts its payload in place and returns it; the slice is valid as long as
// the datagram's buffer. The header is filled as far as it was read even with an error, for counting;
// nothing in it is to be believed then. After an error the bytes of the datagram are undefined. An
// error means that nothing happened: no row made, no window moved. It does not allocate for a sender
// that has a row.
func (o *Opener) Open(datagram []byte) (wire.Header, []byte, error) {
	header, payload, hop, err := o.OpenHop(datagram)
	if err == nil && hop != header.Sender {
		return header, nil, ErrUnsealed
	}
	return header, payload, err
}

// OpenHop is Open that also takes what SealHop made. hop is the cell that sealed the datagram: the
// sender in the header, or the relay that passes on the sender's STREAM_OPEN.
func (o *Opener) OpenHop(datagram []byte) (header wire.Header, payload []byte, hop wire.CellID, err error) {
	header, payload, trailer, err := o.versions.ParseHeader(datagram)
	if err != nil {
		return header, nil, 0, err
	}
	hop = header.Sender
	switch len(trailer) {
	case wire.TrailerSize:
	case wire.HopTrailerSize:
		hop = wire.CellID(binary.BigEndian.Uint64(trailer[wire.TrailerSize:]))
		if hop == header.Sender || !hop.Valid() {
			return header, nil, 0, ErrForged
		}
	default: // so it is for the join handshake too, see ParseHeader
		return header, nil, 0, ErrUnsealed
	}
	counter := binary.BigEndian.Uint64(trailer)
	at, known := o.index[hop]
	if counter == 0 || known && !o.senders[at].replay.fresh(counter) || !known && counter <= o.floors[hop].counter {
		return header, nil, hop, ErrReplayed
	}
	if known {
		if !o.openKnown(datagram, len(payload), counter, &o.senders[at]) {
			return header, nil, 0, ErrForged
		}
		o.touch(at)
	} else {
		ciphers, which := o.openStranger(datagram, len(payload), counter, hop)
		if which < 0 {
			return header, nil, 0, ErrForged
		}
		at = o.admit(hop)
		row := &o.senders[at]
		row.ciphers, row.generations, row.preferPrior = ciphers, o.generation, which == 1
	}
	o.senders[at].replay.mark(counter)
	return header, payload, hop, nil
}

// openKnown tries the row's key of last time first, so that an overlap of keys costs nothing but a copy.
func (o *Opener) openKnown(datagram []byte, size int, counter uint64, row *sender) bool {
	first := 0
	if row.preferPrior && o.keys[1] != nil {
		first = 1
	}
	for try := range 2 {
		which := first ^ try
		if o.keys[which] == nil {
			continue
		}
		if row.generations[which] != o.generation[which] {
			o.refresh(row)
		}
		if o.try(row.ciphers[which], datagram, size, counter, try == 0 && o.keys[1] != nil) {
			row.preferPrior = which == 1
			return true
		}
	}
	return false
}

// refresh brings the ciphers of a row in line with the keys after Rekey.
func (o *Opener) refresh(row *sender) {
	for which, keys := range o.keys {
		if keys != nil {
			row.ciphers[which] = newAEAD(keys.of(row.id))
			row.generations[which] = o.generation[which]
		}
	}
}

// openStranger tries the keys for a sender without a row. It returns the ciphers for the row to be
// made and which of them fitted, -1 if none.
func (o *Opener) openStranger(datagram []byte, size int, counter uint64, id wire.CellID) (
	ciphers [2]cipher.AEAD, which int) {
	found := -1
	for i, keys := range o.keys {
		if keys == nil {
			continue
		}
		ciphers[i] = newAEAD(keys.of(id))
		if found < 0 && o.try(ciphers[i], datagram, size, counter, i == 0 && o.keys[1] != nil) {
			found = i
		}
	}
	return ciphers, found
}

// try decrypts a datagram in place. A failure destroys it, so with again set a copy restores it.
func (o *Opener) try(aead cipher.AEAD, datagram []byte, size int, counter uint64, again bool) bool {
	if again {
		copy(o.copied[:], datagram)
	}
	binary.BigEndian.PutUint64(o.nonce[nonceSize-counterSize:], counter)
	end := wire.HeaderSize + size
	copy(datagram[end:], datagram[end+counterSize:]) // the cipher wants the tag right behind the payload
	header := datagram[:wire.HeaderSize]
	_, err := aead.Open(header, o.nonce[:], datagram[wire.HeaderSize:end+tagSize], header)
	if err != nil && again {
		copy(datagram, o.copied[:])
	}
	return err == nil
}
