// Package reactor is the only part of meshd that waits: one operating-system thread that owns the
// UDP socket, one timer and the wake-up descriptors, and calls a Handler with what happened.
//
// The nouns. A Reactor belongs to one socket; its Run occupies one locked thread until Close. A
// Handler is the state machine behind it; all its methods are called on that thread, one at a time,
// so it needs no lock. A driver is how the kernel is asked: io_uring (specification 5.3, SPEC-REVIEW
// F124, F126, F127) or, where that is forbidden or too old, epoll with recvmmsg and sendmmsg (F111,
// F125). Both promise the same and pass the same tests.
//
// Ownership. Whatever the kernel reads or writes while Go code runs lies in memory from mmap, never
// on the Go heap or a stack (F127 c). A datagram handed to the Handler is the kernel's buffer itself:
// the Handler may change it in place, and it is gone when the call returns. Send copies.
//
// Time is CLOCK_BOOTTIME (F11): it goes on while the host sleeps. At most one timer is armed, for
// the Handler's deadline (F130); an idle reactor does nothing at all.
//
// Further sockets can be opened beside the one (OpenSocket), for what a search behind a router needs: they
// share an epoll set, which either driver watches as one descriptor.
//
// Bounds: receive buffers grow on demand up to Options.ReceiveBuffers of 2048 bytes; the send queue
// holds Options.SendQueue datagrams and is flushed when full; 16 watched descriptors; 272 further sockets; a
// table of 4096 peers remembers on which local address each was last heard (F34). What does not fit is
// dropped and counted, as a network would.
package reactor
