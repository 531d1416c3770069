// Package ring carries records between meshd and a helper through shared memory.
//
// A Link is one connection: a sealed memory file with two single-producer single-consumer rings
// (one per direction) and one eventfd per direction. The helper creates all three and passes them
// over a connected Unix socket in one message (Create); meshd checks and maps them (Accept). Over the
// same socket the helper may pass descriptors afterwards, each with the tag that meshd chose for it
// (SendDescriptor, ReceiveDescriptor, Descriptors); the helper takes none. The socket's end of file
// means that the peer is gone.
//
// The memory is hostile (F133): the other process may write anything to it at any time. Hence each
// side keeps its own position in private memory and only publishes it; a position of the peer is
// believed only within the bounds of what can be true; a slot is copied to private memory once and
// read only there; a fault in the mapping becomes an error, never a crash. Any breach breaks the
// link for good: the owner closes it.
//
// Layout of the file, little-endian, for direction d = 0 (helper to meshd) and 1 (meshd to helper):
//
//	d*regionSize + 0    u32 tail: records published, counted in slots, free running (producer)
//	d*regionSize + 128  u32 head: slots consumed, free running (consumer)
//	d*regionSize + 256  u32 waiting: 1 = the consumer found nothing and wants the eventfd written
//	d*regionSize + 4096 SlotCount slots of SlotSize bytes:
//	                    u16 length of the chunk, u16 flags (1 = the record goes on in the next slot)
//
// A record longer than one slot fills each slot but its last one and is published as a whole, so a
// reader that sees its beginning sees its end. Ownership: one goroutine at a time sends, one at a
// time receives; Close may come from any.
package ring
