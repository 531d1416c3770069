package message

// AlarmPrefix begins a degradation in a Hello that is more than that: meshd shows it as a critical alarm,
// without the prefix.
const AlarmPrefix = "alarm: "

// HintMark stands between an alarm and what its reader can do, if something is said about that.
const HintMark = " | "

// Bits of Hello.Forbids.
const (
	ForbidsOCI     = 1
	ForbidsWasm    = 2
	ForbidsProcess = 4
)
