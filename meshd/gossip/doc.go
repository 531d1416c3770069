// Package gossip spreads a changed register to every cell within about a second (specification 8.2 as
// changed by F18, F27, F28 and F42).
//
// A change goes to three cells: the next member on the ring of cell ids and two drawn at random. Ring
// edges alone reach everybody, random edges make it fast; a rule that prefers near, quick or
// well-connected cells reaches almost nobody, because every cell would repeat the same edges (F42).
// Every frame is acknowledged. A ring edge that is not acknowledged is tried again after 250, 500 and
// 1000 ms, rendered afresh from the store each time. With its second retry it is also extended to the
// next successor, twelve cells at most, so that cells dead but not yet known to be so neither cut the ring
// nor hold it up.
// Random edges are not tried again: coverage does not need it (with 5 % loss and 30 % dead cells of 1000
// every run is complete), and it is what keeps a write below five datagrams per cell.
//
// Gossip decides nothing about merging. Its user calls Spread exactly when a merge or a local write
// changed a register; state only grows, so the forwarding ends by itself (F27). Every valid frame is
// acknowledged by its receiver, also one that changed nothing (F28).
//
// Limits: 4096 pending frames, one per (peer, key, frame number); when they are all taken, the one
// with the most attempts is given up, anti-entropy repairs it. 256 frames of one register. Rate limits
// for 1024 actors.
package gossip
