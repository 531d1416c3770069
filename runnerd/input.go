package runnerd

import (
	"bytes"
	"io"
	"sync"

	"colloid.net/ipc/attach"
)

// inputQueue is what an operator has sent to a program that has not taken it: at most attach.InputAhead bytes and a frame.
// So signals, which come behind input in the connection, are read also while the program does not read.
type inputQueue struct {
	mutex  sync.Mutex
	change sync.Cond
	blocks [][]byte
	size   int
	ended  bool // nothing follows
	closed bool // nobody takes it any more
}

func newInputQueue() *inputQueue {
	q := &inputQueue{}
	q.change.L = &q.mutex
	return q
}

// blockRoom is up to which size blocks are joined: an operator that sends bytes one by one would else have many times as
// much kept as the limit says.
const blockRoom = 4 << 10

// put keeps a copy of what came. It waits while there is no room: an operator that kept to the limit never does.
func (q *inputQueue) put(block []byte) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for q.size >= attach.InputAhead && !q.closed {
		q.change.Wait()
	}
	if q.closed || q.ended || len(block) == 0 {
		return
	}
	if last := len(q.blocks) - 1; last >= 0 && len(q.blocks[last])+len(block) <= blockRoom {
		q.blocks[last] = append(q.blocks[last], block...)
	} else {
		q.blocks = append(q.blocks, bytes.Clone(block))
	}
	q.size += len(block)
	q.change.Broadcast()
}

func (q *inputQueue) end() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.ended = true
	q.change.Broadcast()
}

func (q *inputQueue) close() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.closed, q.blocks = true, nil
	q.change.Broadcast()
}

// take waits for the next block; nil is the end, and ok false that there is nobody to take it.
func (q *inputQueue) take() (block []byte, ok bool) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	for len(q.blocks) == 0 && !q.ended && !q.closed {
		q.change.Wait()
	}
	if len(q.blocks) == 0 {
		return nil, !q.closed
	}
	block = q.blocks[0]
	q.blocks = q.blocks[1:]
	return block, true
}

// taken makes room for what the program has read.
func (q *inputQueue) taken(n int) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.size -= n
	q.change.Broadcast()
}

// feed passes the input on, and tells the operator how far it may go.
func (q *inputQueue) feed(to io.Writer, frames *attach.Writer, end func()) {
	total, told := uint64(0), uint64(attach.InputAhead)
	_ = frames.Write(attach.KindAccepted, attach.AppendLimit(nil, told))
	for {
		block, ok := q.take()
		switch {
		case !ok:
			return
		case block == nil:
			end()
			return
		}
		_, _ = to.Write(block) // a program that does not read it any more may go on without
		q.taken(len(block))
		total += uint64(len(block))
		if limit := total + attach.InputAhead; limit-told >= attach.InputAhead/4 {
			told = limit
			_ = frames.Write(attach.KindAccepted, attach.AppendLimit(nil, limit))
		}
	}
}
