package stream

import (
	"fmt"
	"os"
	"testing"
	"time"

	"colloid.net/meshd/wire"
)

// reno is a flow of another kind through a narrow place: it adds a datagram to its window per round trip and halves it
// when one is lost.
type reno struct {
	b          *bench
	neck       *link
	roundTrip  time.Duration
	window     float64
	threshold  float64
	out        int
	got        int
	recovering int
}

const crossSize = 1240

func (r *reno) start() { r.window, r.threshold = 10, 1e9; r.fill() }
func (r *reno) fill() {
	for r.out < int(r.window) {
		r.out++
		at, ok := r.neck.pass(r.b.now, crossSize)
		if !ok {
			at = r.b.now.Add(time.Duration(float64(r.neck.queue) / r.neck.rate * 1e9)) // noticed when the next ones arrive
		}
		r.b.after(at.Sub(r.b.now)+r.roundTrip, func() {
			r.out--
			r.recovering--
			switch {
			case !ok && r.recovering <= 0:
				r.window = max(r.window*0.7, 2)
				r.threshold = r.window
				r.recovering = r.out
			case !ok:
			case r.window < r.threshold:
				r.window++
			default:
				r.window += 1 / r.window
			}
			if ok {
				r.got += crossSize
			}
			r.fill()
		})
	}
}

func TestExploreCross(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	for _, rate := range []float64{0.4e6, 4e6} {
		for _, q := range []float64{0.5, 1, 4, 10} {
			queue := int(rate * 0.05 * q)
			b := newBench(t, 1, link{delay: 25 * time.Millisecond})
			var got []*end
			b.add(2, discard(t, &got))
			b.add(1, nil)
			neck := &link{rate: rate, queue: queue}
			*b.link(1, 2) = link{delay: 25 * time.Millisecond, neck: neck}
			x := &reno{b: b, neck: neck, roundTrip: 50 * time.Millisecond}
			x.start()
			b.run(3*time.Second, nil)
			b.open(1, 2, wire.StreamVolume, &end{write: 1 << 40})
			b.run(time.Second, nil)
			out := fmt.Sprintf("%.1f MB/s queue %.1f BDP ours %%:", rate/1e6, q)
			for range 10 {
				from, cross := got[0].got, x.got
				b.run(4*time.Second, nil)
				a, c := float64(got[0].got-from), float64(x.got-cross)
				out += fmt.Sprintf(" %2.0f(%2.0f)", a/(a+c)*100, (a+c)/4/rate*100)
			}
			fmt.Println(out)
		}
	}
}
