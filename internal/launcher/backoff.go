package launcher

import "time"

// Pauses between restarts of a child that exits.
const (
	BackoffMin = 100 * time.Millisecond
	BackoffMax = 10 * time.Second
	// BackoffReset is the length of a run after which the next failure counts as the first again.
	BackoffReset = 30 * time.Second
)

// backoff computes the pause before the next start.
type backoff struct {
	min, max, reset time.Duration
	next            time.Duration
}

// after returns the pause that follows a run of the given length.
func (b *backoff) after(ran time.Duration) time.Duration {
	if b.next == 0 || ran >= b.reset {
		b.next = b.min
	}
	pause := b.next
	b.next = min(2*b.next, b.max)
	return pause
}
