package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	"colloid.net/runnerd/image/registry"
)

// A pull that is slow must not keep those that could be fast from their turn: two registries that send a byte every
// ten seconds would stop all others for an hour. While somebody waits, a pull that brought less than slowRate on
// average over SlowAfter gives its place away and goes to the end of the queue. What it brought stays, and it goes on
// from there. While nobody waits, it may be as slow as it likes.
const (
	// slowRate is in bytes a second. An image that comes slower has brought 112 MiB at most when the hour is over that a
	// pull may take, so most would never be whole.
	slowRate  = 32 << 10
	slowAfter = 30 * time.Second
)

// errSlow ends the turn of a pull.
var errSlow = errors.New("it is slow, and others wait")

// gaveWay reports whether a turn ended for others, so that what it brought stays for the next one.
func gaveWay(err error) bool { return errors.Is(err, errSlow) || errors.Is(err, errYield) }

// turns runs work until it is done, each time when a place is free.
func (c *Client) turns(ctx context.Context, p *pull, work func(context.Context, *pull) error) error {
	whole := registry.Whole(c.options.Timing)
	slow := false
	for spent := time.Duration(0); ; {
		if !p.isWanted() {
			if err := c.workAhead(ctx, p, work); !gaveWay(err) {
				return err // it may have given way as slow after a start had joined it
			}
			continue
		}
		if err := c.takeTurn(ctx, p, slow); err != nil {
			return err
		}
		start := time.Now()
		p.turn = ctx
		err := work(ctx, p)
		<-c.slots
		if slow = errors.Is(err, errSlow); !slow && !errors.Is(err, errYield) {
			return err
		}
		if spent += time.Since(start); spent > whole {
			return fmt.Errorf("it took more than %v, at less than %d KiB/s", whole, slowRate>>10)
		}
	}
}

// takeTurn waits for a free place, behind those who wait already.
func (c *Client) takeTurn(ctx context.Context, p *pull, slow bool) error {
	select {
	case c.slots <- struct{}{}: // nobody waits, else the place would be taken
		return nil
	default:
	}
	c.count(1)
	defer c.count(-1)
	p.report(Progress{Queued: true, Slow: slow})
	select {
	case c.slots <- struct{}{}:
		p.report(Progress{})
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) count(change int) {
	c.mutex.Lock()
	c.queued += change
	c.mutex.Unlock()
}

// awaited reports whether a pull waits for a place.
func (c *Client) awaited() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.queued > 0
}

// pace is how fast the files of a fetcher grow, on average since mark.
type pace struct {
	after   time.Duration
	awaited func() bool // nil: nobody ever waits
	mark    time.Time
	bytes   int64 // at mark
}

// slow looks at how much there is now. It reports true when the fetcher has to give way.
func (p *pace) slow(now time.Time, bytes int64) bool {
	if p.awaited == nil || bytes < p.bytes { // something began again
		p.mark, p.bytes = now, bytes
		return false
	}
	since := now.Sub(p.mark)
	if since < p.after {
		return false
	}
	slow := bytes-p.bytes < int64(since.Seconds()*slowRate)
	p.mark, p.bytes = now, bytes
	return slow && p.awaited()
}
