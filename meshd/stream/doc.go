// Package stream carries ordered bytes in both directions between two cells, directly or through others
// (specification 16, SPEC-REVIEW F149 to F155, decision D10).
//
// The nouns. A Mux holds all streams of one cell and the table of those that it relays. A Stream is one end
// of one; its other end is in another cell, or in the same, then nothing is sent or sealed. An Endpoint is
// what uses a Stream: it is told when there is something to read, room to write, or the end. A service is
// who takes streams that others open, by kind: Options.Incoming hands it a Stream in state Incoming and it
// calls Accept or Reject.
//
// How to use it. Mux.Open(target, kind, name, grant, endpoint) begins a stream; Write may be called at once.
// Write takes as much as there is room for, and Writable follows a short one. Peek and Discard read without
// copying, Read copies; both move the window, so a reader that waits makes the writer wait, and nothing is
// queued without bound. CloseWrite ends one direction, Reset both at once; Closed comes once and last.
// Everything belongs to the cell's goroutine, calls of an Endpoint included. A cell offers
// Cell.Serve(kind, service), Cell.Streams() and Cell.Hosts(workload).
//
// What a service must know. The kind, the name of the workload and the grant stand in STREAM_OPEN, which
// relays read; everything else belongs into the stream. A recorded STREAM_OPEN can be shown again to a cell
// that was restarted; whoever does so cannot say anything in the stream. So a service acts when it has
// read its first record, not when it accepts. Kinds are in package wire; the frames in which clients of the
// command socket carry a stream are in package uds, streams.go; records inside a stream belong to its
// service.
//
// States are in state.go; sequence numbers, SACK and retransmission in out.go and in.go; congestion control
// in congestion.go; the end-to-end encryption in keys.go; relaying in relay.go.
//
// Bounds: 256 streams of a cell, 64 of them opened by one other cell, 200 new ones a second; 2048 datagrams
// under way per stream, 290 KB written ahead of them, 2048 received and not read; 64 MiB of buffers together,
// where writers wait and what arrives is dropped; 256 relayed streams, 8 of one source, 8 hops, 32 MiB/s
// each. Nothing is allocated per datagram.
package stream
