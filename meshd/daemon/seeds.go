package daemon

import (
	"context"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/control"
)

// Pauses between attempts to join by a seed of the command line (F4: 1..60 s).
const (
	seedRetryMin = time.Second
	seedRetryMax = time.Minute
)

// joinSeeds joins the first seed that answers, for as long as the cell is in no cluster but its own. A
// refusal (locked, a configuration of its own) is final: trying again cannot change it. A seed that is this
// cell itself, as in a list that all machines share, is left out from then on. Until it has joined, the cell
// says so to everybody who asks: an operator who named a seed must not take a cluster of one for success.
func (d *Daemon) joinSeeds(ctx context.Context, seeds []control.Target) {
	for attempt := 0; len(seeds) > 0; attempt++ {
		seed := seeds[attempt%len(seeds)]
		joined := false
		if !d.Inspect(func(c *cell.Cell) { joined = c.Joined() }) || joined {
			d.tellJoining("", false, false)
			return
		}
		if attempt == 0 {
			d.tellJoining("joining "+seed.Host, false, false)
		}
		response := d.joinSeed(ctx, seed)
		if response.Status == uds.OK {
			d.log.printf("joined the cluster of %s", seed.Host)
			d.tellJoining("", false, false)
			return
		}
		d.log.printf("join %s: %s", seed.Host, response.Text)
		final := response.Errno == uds.ErrorPermission || response.Errno == uds.ErrorExists
		if response.Errno == uds.ErrorInvalid {
			seeds = slices.DeleteFunc(slices.Clone(seeds), func(other control.Target) bool { return other == seed })
			if len(seeds) == 0 {
				d.tellJoining("", false, false) // every seed is this cell: it is the first of its list
			}
			continue
		}
		d.tellJoining("not joined to "+seed.Host+": "+response.Text, true, final)
		if final {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-d.stopped:
			return
		case <-time.After(min(seedRetryMin<<min(attempt/len(seeds), 6), seedRetryMax)):
		}
	}
}

func (d *Daemon) tellJoining(text string, failed, final bool) {
	d.Inspect(func(c *cell.Cell) { c.SetJoining(text, failed, final) })
}

func (d *Daemon) joinSeed(ctx context.Context, seed control.Target) control.Response {
	addresses, err := control.Resolve(ctx, nil, seed)
	if err != nil {
		return control.Response{Status: uds.Error, Errno: uds.ErrorUnreachable, Text: err.Error()}
	}
	return d.handle(ctx, control.Request{Code: uds.CodeConnect, Addresses: addresses, JoinKey: seed.Key})
}
