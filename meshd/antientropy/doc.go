// Package antientropy makes the stores of two cells equal, whatever gossip lost (sections 8.2 and 8.7
// as completed by F25, F44, F45, F52 and F53 of the review).
//
// # A session
//
// The initiator compares and asks, the responder answers; state flows both ways.
//
//	initiator                                          responder
//	AE_BEGIN root, count, vector          ->
//	                                      <-           AE_BEGIN root, count, vector (same nonce)
//	roots equal and vectors complete: both are done with these two datagrams
//	AE_MERKLE_REQ ranges of 7, 5, 4 levels ->
//	                                      <-           AE_MERKLE_RESP per range (same nonce)
//	AE_MERKLE_REQ ranges of 0 levels: "send me these leaves"
//	                                      ->
//	                                      <-           0x06 (same nonce)
//	AE_STATE of the differing leaves      <->          AE_STATE, each acknowledged by 0x06
//	AE_END when nothing is left unasked or unacknowledged
//	                                      ->
//	                                      <-           AE_END (same nonce) as soon as the same holds there
//
// A range below which one side has nothing is not compared but asked for as a whole, so that an empty
// store asks once for everything. Both sides compare digests frozen at AE_BEGIN.
//
// # Why the stability vector may rise at the end
//
// A record that brings an entry superseded at its receiver is answered by a record without entries
// (F45 iii), and is itself acknowledged only when that answer was (never, if no session runs here).
// So "all my frames are acknowledged" means that the peer has my differences and I have all its
// objections. AE_END says so; the responder raises C when it has the initiator's AE_END and the same
// is true of its own frames, the initiator when it has the responder's. A session that breaks off
// changes no vector. (Two cells cannot agree over a lossy link that both are done: the responder may
// have finished while the initiator gives up for want of the last AE_END. Each advance is justified by
// itself.)
//
// # Limits
//
// One outgoing and two incoming sessions, one per peer; a BEGIN beyond that waits in a line of 128 for up
// to 2 s. If two cells begin with each other at once, the one with the greater id gives way. 64
// unacknowledged frames and 64 unacknowledged answers per session. 100 messages per second, 2000 when
// one side has less than half of the keys of the other or is bootstrapping. A frame is tried 24 times,
// AE_BEGIN 8 times; a session ends after 20 s of silence or after 10 minutes.
package antientropy
