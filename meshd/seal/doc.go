// Package seal authenticates and encrypts datagrams with the key that all cells of a cluster share
// (F12, F13, decision D1). Nouns: a Key, a Sealer for what one cell sends, an Opener for what it
// receives, and in the Opener one replay window per sender.
//
//	header 16 | payload, encrypted | counter 8 | tag 16
//
// ChaCha20-Poly1305 with a key of the sender's own, HKDF-SHA256(cluster key, sender id); nonce = four
// zero bytes and the counter; associated data = the header. payload_len does not count the trailer.
// The counter is incarnation<<40 | n. The incarnation is durable and grows with every start (F1), so
// no counter is used twice as long as no second machine runs with a copy of this cell's state (F2).
// One Sealer lives as long as the process: a change of key goes through Rekey, which lets the counter
// go on.
//
// What an Opener accepts was sealed by a holder of the cluster key, once per counter. What that does
// not give:
//   - Members are not protected from each other: any of them can seal as any other (F132 signs what
//     matters).
//   - The receiver is not part of what is authenticated. A datagram caught on its way to B can be shown
//     to C instead, once. Replies are tied to their requests by nonces.
//   - After a restart the windows are empty, so a recorded datagram of a sender that has not been heard
//     since may pass once. RefuseBefore bounds that to the sender's present incarnation. Whoever acts on a
//     datagram without a nonce of its own must be idempotent or use a handshake.
//
// Both types belong to one goroutine. Memory is bounded by the number of senders given to NewOpener:
// about 1.4 KiB each, and 16 bytes for each of floorsPerSender times as many that were evicted.
package seal
