// Package crdt holds the replicated state of a cell: a map from key names to multi-value registers
// (specification section 7, with the fixes F1, F2, F16, F43 to F52 and F55 of the review).
//
// # Nouns
//
//   - A Store is the whole state of one cell. It has one owner and no locks.
//   - A register holds the entries of one key (dot and value; more than one means concurrent writes)
//     and its context, the greatest sequence seen of every actor that ever wrote the key. Keys of
//     category state.Status are max-registers instead and always hold one entry (F47).
//   - Register is a view of a register inside the store's memory, valid until the next mutation.
//   - The stability vector C says, per actor, up to which sequence all writes are reflected here; it
//     decides what may be forgotten and which returning writes are old news (F45).
//   - A View is a frozen copy of the Merkle digests, made at the start of an anti-entropy session (F52).
//
// # Memory
//
// Registers are byte strings in size-class slabs (arena.go) that hold no Go pointers, found through
// an open-addressing table that is sorted by key hash (index.go). So a typical health key costs about
// 150 bytes, the garbage collector has nothing to walk, and the keys of one Merkle leaf lie side by
// side. Merging into an existing key does not allocate.
//
// # Limits
//
// A record may carry at most 65,535 entries or context actors, and so may a register. Keys and bytes
// are bounded by Options; beyond the bound the store refuses the merge, says so in the Outcome and
// reports Degraded until there is room again (F50). Nothing is ever truncated or resolved silently
// (SAFE-4, F48).
package crdt
