package main

import (
	"log"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/netem"
	"colloid.net/meshd/sim"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

const roundTrip = 50 * time.Millisecond

// simulated makes two cells with the round trip between them.
func simulated(seed uint64, loss float64, sink stream.Endpoint) (w *sim.World, a, b *sim.Node) {
	w = sim.New(sim.Options{Seed: seed, Cells: 2})
	must(w.Form(time.Minute))
	must(w.Run(2 * time.Second))
	w.SetNetwork(sim.NetworkOptions{DelayMin: roundTrip / 2, DelayMax: roundTrip / 2, Loss: loss})
	a, b = w.Node(0), w.Node(1)
	b.Cell().Serve(wire.StreamVolume, func(s *stream.Stream) { s.Accept(sink) })
	b.Cell().Serve(wire.StreamExec, func(s *stream.Stream) { s.Accept(netem.Echo{}) })
	return w, a, b
}

func dial(a, b *sim.Node, kind wire.StreamType, endpoint stream.Endpoint) (s *stream.Stream) {
	a.Input(func(clock.Instant) {
		var err error
		s, err = a.Cell().Streams().Open(b.ID(), kind, []byte("spread.bench"), nil, endpoint)
		must(err)
	})
	return s
}

func measureSimulator() {
	for name, loss := range map[string]float64{"stream_50ms_mb_s": 0, "stream_50ms_1pct_mb_s": 0.01} {
		var rates []float64
		for run := range *runs {
			counter := netem.NewSink()
			w, a, b := simulated(uint64(run+1), loss, counter)
			const bytes = 96 << 20
			dial(a, b, wire.StreamVolume, netem.NewSource(bytes))
			begin := w.Now()
			if _, ok := w.Until(5*time.Minute, func() bool { return counter.Got() == bytes }); !ok {
				log.Fatalf("%s: %d of %d bytes", name, counter.Got(), bytes)
			}
			rates = append(rates, bytes/(w.Now()-begin).Seconds()/1e6)
		}
		bench(name, median(rates))
	}
	var extra []float64
	for run := range *runs {
		extra = append(extra, keystrokes(uint64(run+1)))
	}
	bench("exec_echo_over_rtt_ms", median(extra))
}

// typist notes when its echo comes.
type typist struct {
	netem.Echo
	heard bool
}

func (e *typist) Readable(s *stream.Stream) {
	for p := s.Peek(); p != nil; p = s.Peek() {
		e.heard = true
		s.Discard(len(p))
	}
}

// keystrokes returns by how many ms more than the round trip the slowest of 50 came back.
func keystrokes(seed uint64) float64 {
	w, a, b := simulated(seed, 0, netem.NewSink())
	person := &typist{}
	s := dial(a, b, wire.StreamExec, person)
	must(w.Run(time.Second))
	dial(a, b, wire.StreamVolume, netem.NewSource(1<<40))
	must(w.Run(2 * time.Second))
	worst := time.Duration(0)
	for range 50 {
		person.heard = false
		a.Input(func(clock.Instant) { s.Write([]byte("x")) })
		took, ok := w.Until(time.Second, func() bool { return person.heard })
		if !ok {
			log.Fatal("a keystroke was lost")
		}
		worst = max(worst, took)
		must(w.Run(23 * time.Millisecond))
	}
	return float64(worst-roundTrip) / float64(time.Millisecond)
}
