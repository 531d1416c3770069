package swim

import "time"

// All times of failure detection. What they add up to, without loss and with round trips far below
// probeTimeoutMin: a crash is first probed within 2 s (ring slot), on average within 0.8 s; DEAD follows
// that probe by 0.5 s + 2 s with three further accusers, by 0.5 s + 5 s without. So 4.5 s and 7.5 s are
// the worst cases (TestTimingKeepsThePromise).
const (
	// probeInterval is the pace of scheduled probes: one PING and one PONG per second and cell is
	// the whole idle traffic (F60).
	probeInterval = time.Second
	// slotInterval is how often the designated prober of a cell, its ring predecessor, comes by:
	// every other tick belongs to the ring (F62 a).
	slotInterval = 2 * probeInterval
	// probeTimeoutMin is enough for any path on a continent with queueing; shorter ones punish loss of
	// the scheduler's attention more than they gain.
	probeTimeoutMin = 500 * time.Millisecond
	// probeTimeoutRoundTrips: three round trips leave room for variance (F70).
	probeTimeoutRoundTrips = 3
	// probeTimeoutMax keeps a wild RTT sample from blinding the detector; a satellite needs 0.6 s.
	probeTimeoutMax = 2 * time.Second
	// stretchedTimeoutMax caps a timeout stretched by the health multiplier.
	stretchedTimeoutMax = 4 * time.Second
	// suspicionTimeout is how long a cell may be silent after its first missed PONG: it spans a garbage
	// collection, a VM snapshot or a spanning-tree hiccup (specification 9.2).
	suspicionTimeout = 5 * time.Second
	// suspicionFloor holds once suspicionAccusers further cells could not reach the target either: a
	// path problem of one observer is then ruled out (F62 d).
	suspicionFloor = 2 * time.Second
	// extension is granted once when the suspect is heard but not reached: it may be deaf for a
	// moment only (F62 c).
	extension = suspicionTimeout
	// nonceLifetime keeps an unanswered PING open for late PONGs: longer than any timeout, so that the
	// first round trip over a slow path is learnt instead of being missed again and again (F70).
	nonceLifetime = 8 * time.Second
	// answerMin is how long a question must have waited before its silence says something about this cell
	// (F66).
	answerMin = time.Second
	// pauseMin is the gap between two ticks that proves this process did not run (F11).
	pauseMin = 2 * time.Second
	// lateMin is a tick's lateness that costs trust in oneself (Lifeguard).
	lateMin = 500 * time.Millisecond
	// tellInterval limits how often one cell is shown its own register.
	tellInterval = 500 * time.Millisecond
	// observationLifetime is how long a source address may be reported to its owner in a PING (F23).
	observationLifetime = 60 * time.Second
	// pinholeLifetime is how long a punched mapping is expected to stay open (PUNCH_TTL).
	pinholeLifetime = 25 * time.Second
	// freshContact: a two-way contact this recent answers an accusation that is only now arriving.
	freshContact = probeInterval
	// evidenceLifetime is how recent a contact with anybody must be for this cell to trust its own
	// ears when it declares another one DEAD: three scheduled probes.
	evidenceLifetime = 3 * probeInterval
	// isolationMin of silence from everybody makes a cell isolated (F64, SUSPECT_TIMEOUT).
	isolationMin = suspicionTimeout
	// deadInterval is how often one DEAD member is probed: without it the two halves of a healed
	// partition, each holding the other DEAD, would never speak again. In probe ticks: 5.
	deadInterval = 5 * probeInterval
	// onlookerDelayMin and onlookerDelayPerMember spread the checks of cells that only heard of a
	// suspicion: after those who have own evidence had their say, and at most 100/s cluster-wide.
	onlookerDelayMin       = time.Second
	onlookerDelayPerMember = 10 * time.Millisecond
	onlookerDelayMax       = 10 * time.Second
	// deathsWindow: the third DEAD of a cell within it needs two accusers (F64, dampening).
	deathsWindow = 10 * time.Minute
)

const (
	// indirectProbeCount helpers are asked in a full round (INDIRECT_PROBE_COUNT).
	indirectProbeCount = 3
	// suspicionAccusers is the number of further accusers that shortens the suspicion (F62 d); they
	// exist only in clusters of five or more.
	suspicionAccusers = 3
	// predecessorsMax is how many ring predecessors of an accused cell look at once: enough for
	// suspicionAccusers although one or two of them miss it or are the accuser itself.
	predecessorsMax = 5
	// accusationRounds is how many full rounds must fail before an accusation is published: every
	// further one divides the false ones by 1600 at 5 % loss.
	accusationRounds = 2
	// quietRounds scheduled probes must pass after a pause before this cell declares anybody DEAD (F65).
	quietRounds = 2
	// healthMax is the greatest factor on timeouts (Lifeguard).
	healthMax = 8
	// roundsMax bounds the cells under full rounds at a time; others wait for a turn.
	roundsMax = 32
	// outstandingMax bounds the nonces that may still be answered; the oldest is overwritten.
	outstandingMax = 512
	// relaysMax bounds the probes made for others at a time; further requests are ignored, which is
	// no evidence against anybody.
	relaysMax = 64
	// rotationSkipsMax bounds the search of one tick for a member in service.
	rotationSkipsMax = 32
)
