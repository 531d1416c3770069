// Command core measures the parts that have no sockets, and the two ways to read one: the store, the
// anti-entropy of large stores, placement, the simulator's speed, the cost of a received datagram. It
// prints one line per figure, "BENCH name value", each the median of several runs, and judges nothing.
package main

import (
	"flag"
	"fmt"
	"log"
	"slices"
)

var runs = flag.Int("runs", 3, "runs per figure; the median is printed")

var only = flag.String("only", "", "one part: store, antientropy, gossip, placement, simulator or receive")

func main() {
	flag.Parse()
	log.SetFlags(0)
	for _, part := range []struct {
		name    string
		measure func()
	}{
		{"store", measureStore}, {"antientropy", measureAntiEntropy}, {"gossip", measureGossip},
		{"placement", measurePlacement}, {"simulator", measureSimulator}, {"receive", measureReceive},
	} {
		if *only == "" || *only == part.name {
			part.measure()
		}
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// medianOf repeats one measurement.
func medianOf(f func() float64) float64 {
	values := make([]float64, *runs)
	for i := range values {
		values[i] = f()
	}
	return median(values)
}

func bench(name string, value float64) { fmt.Printf("BENCH %s %.3f\n", name, value) }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
