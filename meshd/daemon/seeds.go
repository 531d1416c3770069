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
// cell itself, as in a list that all machines share, is left out from then on.
func (d *Daemon) joinSeeds(ctx context.Context, seeds []control.Target) {
	for attempt := 0; len(seeds) > 0; attempt++ {
		joined := false
		if !d.Inspect(func(c *cell.Cell) { joined = c.Joined() }) || joined {
			return
		}
		seed := seeds[attempt%len(seeds)]
		response := d.joinSeed(ctx, seed)
		if response.Status == uds.OK {
			d.log.printf("joined the cluster of %s", seed.Host)
			return
		}
		d.log.printf("join %s: %s", seed.Host, response.Text)
		if response.Errno == uds.ErrorPermission || response.Errno == uds.ErrorExists {
			return
		}
		if response.Errno == uds.ErrorInvalid {
			seeds = slices.DeleteFunc(slices.Clone(seeds), func(other control.Target) bool { return other == seed })
			continue
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

func (d *Daemon) joinSeed(ctx context.Context, seed control.Target) control.Response {
	addresses, err := control.Resolve(ctx, nil, seed)
	if err != nil {
		return control.Response{Status: uds.Error, Errno: uds.ErrorUnreachable, Text: err.Error()}
	}
	return d.handle(ctx, control.Request{Code: uds.CodeConnect, Addresses: addresses, JoinKey: seed.Key})
}
