// Package nat makes a cell behind any router a full member (specification 6 as changed by F31 to F36): it
// finds out how the cell can be reached, keeps home cells, punches holes, and says for every datagram
// whether it goes straight to the other cell or through a relay.
//
// Nouns. The class of a cell (wire.Reach) says what strangers can expect: PUBLIC was proven by dial-backs,
// PUNCHED keeps its mapped address whoever it talks to, RELAYED does not. A home is a PUBLIC cell that a
// cell which is not PUBLIC keeps a mapping open to; its contact lists two. A path is what this cell knows
// about the way to one other cell that needs help, or that it fails to reach itself:
//
//	          PONG from a new address
//	relayed ──────────────────────────► direct ──no answer for 1 s──► doubtful: both ways at once
//	   ▲  traffic starts an attempt        ▲                             │
//	   │                                   └──────────heard─────────────┤
//	   └───────────────no answer for 5 s, or nothing heard for 25 s─────┘
//
// Peers that need no help have no path: they are dialled as ever, at no cost. An attempt asks a
// coordinator, the peer's homes first, which tells each side where it sees the other one once both take part; then both send
// PUNCH_SYN at 0, 50, 100, 200 and 400 ms. What is lost of that is repeated under the same number (docs/networking.md). Where that is in vain because one router uses another port for each
// destination and the other filter looks at ports, a search by several sockets follows (search.go). An address counts once it has echoed a nonce (F155), which the
// caller checks.
//
// A Traversal is a sans-IO state machine of one goroutine. It keeps a small record for each member that
// needs help, at most 128 direct ones of them open, and at most 32 attempts and one search at a time; further ones wait.
package nat
