package reactor

import "sync/atomic"

// Counters tells what a reactor did and what it lost since Open.
type Counters struct {
	Received      uint64 // datagrams handed to the handler
	ReceivedBytes uint64
	Sent          uint64 // datagrams queued, those that failed later included
	SentBytes     uint64

	KernelDrops   uint64 // lost in the kernel because the receive buffer was full (F29)
	Oversize      uint64 // received datagrams longer than wire.DatagramMax, dropped (F126)
	Malformed     uint64 // received without a usable source address, dropped
	ReceiveErrors uint64 // errors of the receiving call, ICMP reports among them
	Rearms        uint64 // times the receiving request had ended and was renewed
	BufferStalls  uint64 // times it ended because all receive buffers were in use

	SendErrors    uint64 // datagrams the kernel refused, all reasons
	SendTooLong   uint64 // of these: longer than the path's or the interface's MTU (F30)
	SendFull      uint64 // of these: the socket's send buffer was full
	SendInvalid   uint64 // never tried: no address, wrong family or longer than wire.DatagramMax
	SendQueueFull uint64 // flushes in the middle of a batch because the send queue was full

	Wakes        uint64 // calls of Handler.Wake
	Ticks        uint64 // calls of Handler.Tick
	Sleeps       uint64 // blocking waits
	SocketBuffer uint64 // bytes of receive buffer that the kernel granted
}

// counters is the live form. One thread writes; others read at any time.
type counters struct {
	received, receivedBytes, sent, sentBytes                              atomic.Uint64
	kernelDrops, oversize, malformed, receiveErrors, rearms, bufferStalls atomic.Uint64
	sendErrors, sendTooLong, sendFull, sendInvalid, sendQueueFull         atomic.Uint64
	wakes, ticks, sleeps, socketBuffer                                    atomic.Uint64
}

func (c *counters) read() Counters {
	return Counters{
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(),
		KernelDrops: c.kernelDrops.Load(), Oversize: c.oversize.Load(), Malformed: c.malformed.Load(),
		ReceiveErrors: c.receiveErrors.Load(), Rearms: c.rearms.Load(), BufferStalls: c.bufferStalls.Load(),
		SendErrors: c.sendErrors.Load(), SendTooLong: c.sendTooLong.Load(), SendFull: c.sendFull.Load(),
		SendInvalid: c.sendInvalid.Load(), SendQueueFull: c.sendQueueFull.Load(),
		Wakes: c.wakes.Load(), Ticks: c.ticks.Load(), Sleeps: c.sleeps.Load(),
		SocketBuffer: c.socketBuffer.Load(),
	}
}
