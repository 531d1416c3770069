// Package swim finds out which cells are alive: SWIM probing with a designated prober for every cell,
// suspicion that is refuted by the accused alone, and Lifeguard's distrust of oneself (specification 9
// as changed by F23, F37, F60, F62 to F65, F70 and decision D8).
//
// Nouns. A probe is one PING. A round is one attempt to reach a cell: the first round of a scheduled
// probe is a PING alone, a full round is a PING and PING_REQs through three helpers at once. A cell
// that missed a round is suspected privately; after two further full rounds the accusation is
// published (SUSPECT), and when the suspicion is old enough, the cell is declared DEAD.
//
//	PING lost    +1 timeout  suspicion starts, full rounds back to back
//	             +3 timeouts SUSPECT is claimed; its five ring predecessors probe at once and
//	                         accuse too if they fail
//	start + 2 s  DEAD with three further accusers; start + 5 s otherwise
//
// Only cells that failed to reach the target themselves ever claim anything about it, so the accuser's
// own death does not matter: the ring predecessors carry on, and when they die too, every other cell
// looks for itself a little after its local timer ran out. Only proof of contact both ways (PONG to an
// outstanding nonce, directly or through a helper) or the target's own higher incarnation cancels a
// suspicion. Nobody writes ALIVE for another cell; a cell held DEAD is shown the register and refutes
// it, which it can do only if it hears (F64). A cell that hears nobody claims nothing.
//
// The Detector is a sans-IO state machine owned by one goroutine. It keeps one small record per member
// ever probed, 512 outstanding nonces, 64 relayed probes and 32 cells under full rounds at a time.
package swim
