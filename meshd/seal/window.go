package seal

const (
	// WindowSize is how far behind the newest counter a datagram may arrive. It is wide because all
	// peers of a sender share its counter, so that each sees large gaps (F13).
	WindowSize  = 8192
	windowWords = WindowSize / 64
)

// window remembers which of the last WindowSize counters of one sender were seen. Bit c%WindowSize
// stands for counter c, for c in (top-WindowSize, top]. Counters up to floor are refused always.
type window struct {
	top   uint64
	floor uint64
	bits  [windowWords]uint64
}

// fresh reports whether counter has neither been seen nor fallen out of the window. Counter 0 never is.
func (w *window) fresh(counter uint64) bool {
	if counter <= w.floor {
		return false
	}
	if counter > w.top {
		return true
	}
	if w.top-counter >= WindowSize {
		return false
	}
	return w.bits[counter%WindowSize/64]&(1<<(counter%64)) == 0
}

// mark records a fresh counter as seen.
func (w *window) mark(counter uint64) {
	if counter > w.top {
		if counter-w.top >= WindowSize {
			w.bits = [windowWords]uint64{}
		} else {
			w.clear(w.top+1, counter)
		}
		w.top = counter
	}
	w.bits[counter%WindowSize/64] |= 1 << (counter % 64)
}

// clear forgets the counters first..last, fewer than WindowSize of them.
func (w *window) clear(first, last uint64) {
	// Counting down, because last may be the greatest number there is.
	for left := last - first + 1; left > 0; {
		step := min(64-first%64, left) // up to the end of the word
		mask := ^uint64(0) >> (64 - step) << (first % 64)
		w.bits[first%WindowSize/64] &^= mask
		first += step
		left -= step
	}
}
