// Package control serves the local socket through which people and programs command a cell
// (SPEC-REVIEW F135, F136, Part 1 section 5.2; frames in package ipc/uds).
//
// A Server accepts at most 160 clients. So that those who may only look lock nobody out, some places are kept
// for root, some for those who may change, and one user has only part of the rest (uds.RootClients); the same
// holds for clients that stay, because they carry streams. Who a client is comes from the kernel when it
// connects, never from what it sends: user 0 and the daemon's own user may do everything, group colloid-admin
// may change things, group colloid may read. Each change is logged with the user's number.
//
// Two goroutines belong to a client. One reads requests and has them executed, one after the other,
// so replies keep the order of requests; the other writes replies. A client that does not read is
// disconnected when 1 MiB of replies wait behind the one being written, or when a reply takes longer
// than 5 seconds; so is one that takes longer than 5 seconds to send a request it has begun. How
// long a command runs is the cell's affair.
//
// Nothing here knows the cell: a Request is handed to a function, its Response is framed. For
// Connect the address is parsed and looked up here, because the cell must not wait for a resolver.
package control
