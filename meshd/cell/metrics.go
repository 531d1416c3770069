package cell

import (
	"fmt"

	"colloid.net/ipc/uds"
)

// metrics are the counters and gauges of status.
func (c *Cell) metrics() []uds.Metric {
	n := &c.counters
	counter := func(name, help string, value uint64) uds.Metric {
		return uds.Metric{Name: "colloid_" + name, Help: help, Kind: "counter", Value: float64(value)}
	}
	gauge := func(name, help string, value float64) uds.Metric {
		return uds.Metric{Name: "colloid_" + name, Help: help, Kind: "gauge", Value: value}
	}
	metrics := []uds.Metric{
		counter("datagrams_received_total", "datagrams read from the socket", n.received),
		counter("datagrams_sent_total", "datagrams given to the socket", n.sent),
		counter("datagram_bytes_sent_total", "bytes given to the socket", n.sentBytes),
		counter("datagrams_malformed_total", "datagrams that no known message fits", n.malformed),
		counter("datagrams_unsealed_total", "datagrams without a valid seal of this cluster", n.unsealed),
		counter("records_rejected_total", "records refused by the store", n.rejected),
		counter("messages_unhandled_total", "messages of types this version does not handle", n.unhandled),
		counter("datagrams_other_version_total", "datagrams of a protocol version not spoken here", n.otherVersion),
		counter("messages_no_version_total", "messages to cells without a protocol version in common", n.noVersion),
		counter("messages_unroutable_total", "messages to cells without a known address", n.unroutable),
		counter("datagrams_guarded_total", "datagrams withheld from unproven addresses", n.guarded),
		counter("datagrams_too_large_total", "datagrams that a path on the way could not carry", n.tooNarrow),
		counter("datagrams_relayed_total", "datagrams of this cell that went through a relay", n.relayed),
		counter("datagrams_passed_on_total", "datagrams passed on for other cells", n.passedOn),
		counter("relays_refused_total", "datagrams for other cells that were not passed on", n.relayRefused),
		counter("joins_dropped_total", "join requests dropped by rate limits or as malformed", n.joinsDropped),
		counter("accusations_total", "cells that this cell wrote to be suspect", n.suspects),
		counter("deaths_declared_total", "cells that this cell wrote to be dead", n.deaths),
		counter("refutations_total", "accusations of this cell that it contradicted", n.refutations),
		counter("antientropy_sessions_total", "completed anti-entropy sessions", n.sessions),
		counter("actions_total", "starts and stops given to runnerd", n.actions),
		counter("actions_delayed_total", "starts and stops that runnerd could not take at once", n.actionsDelayed),
		gauge("keys", "keys in the replicated store", float64(c.store.Len())),
		gauge("store_bytes", "memory of the replicated store", float64(c.store.MemoryBytes())),
		gauge("members", "other cells known", float64(c.members.Len())),
		gauge("conflicts", "operator keys in CONFLICT", float64(len(c.views.conflicts))),
		gauge("instances", "instances on this cell", float64(len(c.runner.actual))),
	}
	for kind, dropped := range n.unknownTypes {
		if dropped > 0 {
			metrics = append(metrics, counter(fmt.Sprintf("messages_unknown_type_%02x_total", kind),
				"datagrams of a message type that this version does not know", dropped))
		}
	}
	if c.config.Metrics != nil {
		metrics = append(metrics, c.config.Metrics()...)
	}
	return metrics
}
