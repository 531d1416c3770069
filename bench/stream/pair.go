package main

import (
	"context"
	"log"
	"os"

	"colloid.net/meshd/netem"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// pair is two cells of this process with a directory of their own; what fails ends the program.
type pair struct {
	*netem.Pair
	directory string
}

func newPair(ends [2]netem.End) *pair {
	directory, err := os.MkdirTemp("", "colloid-bench-stream-")
	must(err)
	p, err := netem.NewPair(ends, directory)
	must(err)
	return &pair{p, directory}
}

func (p *pair) close() {
	if err := p.Close(); err != nil {
		log.Print(err)
	}
	os.RemoveAll(p.directory)
}

// open starts a stream from the first cell to the second.
func (p *pair) open(kind wire.StreamType, endpoint stream.Endpoint) *stream.Stream {
	s, err := p.Open(kind, endpoint)
	must(err)
	return s
}

// send brings so many bytes to the second cell.
func (p *pair) send(bytes int) netem.Transfer {
	t, err := p.SendBytes(context.Background(), int64(bytes))
	must(err)
	return t
}
