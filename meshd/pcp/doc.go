// Package pcp asks a router for an open port by the Port Control Protocol (RFC 6887), of which it speaks the
// one request that matters here: MAP for one UDP port.
//
// Nouns: a Mapping is a port of the router that leads to a port of this host for a lifetime. A Client asks
// one router on behalf of one port; its nonce is what the router recognizes the owner of a mapping by, so it
// must be the same when the mapping is renewed or removed, and nobody else's.
//
// A router is a stranger. An answer counts if it comes from the address that was asked, repeats the nonce,
// protocol and port of the question, and has exactly the form of the answer to it; nothing is allocated by
// what it says, its lifetime is cut to what was asked for, and at most AnswersMax datagrams are looked at for
// each question. A Client is used by one goroutine.
package pcp
