package cell

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"colloid.net/meshd/overlay"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/stream"
	"colloid.net/meshd/wire"
)

// labelStreams keeps the salt of the streams' end-to-end encryption apart from other uses of the key.
const labelStreams = "colloid v1 streams"

// relayCandidates is how many relays a source tries for one target besides the direct way.
const relayCandidates = 6

// streamState is what a cell has to do with streams.
type streamState struct {
	mux      *stream.Mux
	services [256]func(s *stream.Stream) // by kind; they outlive a change of cluster
	datagram stream.Datagram
	sealed   []byte // the datagram being handled as it came, while this cell relays
	routes   []*member
}

// Serve names who takes the streams of one kind that are opened to this cell, before Start or at any time.
// The service must call Accept or Reject, at once or within 5 seconds, and must not act on a stream before
// it has read something from it.
func (c *Cell) Serve(kind wire.StreamType, service func(s *stream.Stream)) {
	c.streams.services[kind] = service
}

// Streams gives access to the streams of this cell. Whoever opens one uses Mux.Open; calls belong to the
// cell's goroutine. It is another one after the cell changed its cluster; all streams of the old one have
// been closed then.
func (c *Cell) Streams() *stream.Mux { return c.streams.mux }

// Hosts returns the cells that say they run instances of a workload, in order of their ids. Nothing is sent
// for it (STREAM-1).
func (c *Cell) Hosts(key string) []wire.CellID {
	name := state.WorkloadName(key)
	var hosts []wire.CellID
	for id := range c.views.endpoints {
		if id.workload == name {
			hosts = append(hosts, id.cell)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// enterStreams makes the streams of a new cluster, after those of the old one have ended.
func (c *Cell) enterStreams() {
	if c.streams.mux != nil {
		c.streams.mux.Shutdown(stream.ReasonStopping)
	}
	if c.streams.sealed == nil {
		c.streams.sealed = make([]byte, 0, wire.DatagramMax)
	}
	c.streams.mux = stream.New(stream.Options{
		Self:     c.config.Self,
		Secret:   seal.Derive(c.cluster.Key, labelStreams),
		Random:   c.config.Random,
		Entropy:  c.config.Entropy,
		Send:     c.send,
		SendOpen: c.sendStreamOpen,
		Forward:  c.forward,
		Route:    c.streamRoute,
		NextHop:  c.nextHop,
		Member: func(id wire.CellID) bool {
			m := c.members.Get(id)
			return m != nil && m.InService()
		},
		Home: func(target, cell wire.CellID) bool {
			m := c.members.Get(target)
			return m != nil && m.HasHome(cell)
		},
		Incoming: c.incomingStream,
		Relays:   c.config.Relays,
		AES:      c.config.AES,
	})
}

// heardLife notices by the incarnation under which a cell seals that it was restarted, and has it asked for the streams
// of its earlier life.
func (c *Cell) heardLife(id wire.CellID) {
	m := c.members.Get(id)
	if m == nil {
		return
	}
	if life := c.opener.Newest(id); life > m.Sealing {
		if m.Sealing != 0 {
			c.streams.mux.Suspect(c.now, id)
		}
		m.Sealing = life
	}
}

func (c *Cell) incomingStream(s *stream.Stream) {
	service := c.streams.services[s.Kind()]
	switch {
	case service == nil:
		s.Reject(stream.ReasonKind)
	case c.phase == Booting && !s.Local():
		s.Reject(stream.ReasonBusy)
	default:
		service(s)
	}
}

// receiveStream takes the messages of streams. They may come through relays, so the address they come from
// is believed in nothing: not where a cell is, not that it lives (F155). from is the zero AddrPort for what
// came behind the head of a relay.
func (c *Cell) receiveStream(from netip.AddrPort, header wire.Header, payload []byte, hop wire.CellID) {
	c.streams.datagram = stream.Datagram{
		Header: header, Payload: payload, Hop: hop, Validated: c.guard.Validated(c.now, from),
		Sealed: c.streams.sealed,
	}
	if m := c.members.Get(hop); m != nil && (m.Address == from || !from.IsValid()) {
		c.streams.datagram.Validated = true // the store or a PONG named it, or answers go the way to m
	}
	c.streams.mux.Receive(c.now, &c.streams.datagram)
	if !from.IsValid() {
		return
	}
	// A hop that has moved is asked at its new address; only its PONG counts.
	if hop = c.streams.mux.HopOf(&c.streams.datagram); hop != 0 {
		if m := c.members.Get(hop); m != nil && m.Address.IsValid() && m.Address != from {
			c.checkAddress(hop, from)
		}
	}
}

// keepSealed copies what may have to be passed on before it is decrypted in place.
func (c *Cell) keepSealed(kind wire.Type, datagram []byte) {
	c.streams.sealed = c.streams.sealed[:0]
	if kind.Relayable() && c.streams.mux.Relaying() {
		c.streams.sealed = append(c.streams.sealed, datagram...)
	}
}

// sendStreamOpen passes on the STREAM_OPEN of another cell under its name and this cell's seal.
func (c *Cell) sendStreamOpen(to, originator wire.CellID, nonce uint32, payload []byte) {
	if wire.RelayHeadSize+wire.HeaderSize+len(payload)+wire.HopTrailerSize > wire.DatagramMax {
		c.counters.malformed++
		return
	}
	version, ok := c.versionFor(to)
	if !ok {
		c.counters.noVersion++
		return
	}
	header := wire.Header{
		Version: version, Type: wire.TypeStreamOpen, PayloadLength: uint16(len(payload)), Sender: originator, Nonce: nonce,
	}
	datagram := append(wire.AppendHeader(c.scratch[:0], header), payload...)
	c.forward(to, c.sealer.SealHop(datagram))
}

// forward sends a sealed datagram on as it is, on the way there is to the next hop: relays keep nothing and
// change nothing.
func (c *Cell) forward(to wire.CellID, sealed []byte) {
	m := c.members.Get(to)
	if m == nil || !m.Address.IsValid() {
		c.counters.unroutable++
		return
	}
	hops, count := c.route(m)
	for _, hop := range hops[:count] {
		if hop.Relay == 0 {
			c.transmit(hop.Address, sealed)
			continue
		}
		c.counters.relayed++
		c.relayCopy = append(wire.AppendRelay(c.relayCopy[:0], wire.RelayFirst, to), sealed...)
		c.transmit(hop.Address, c.relayCopy)
	}
	if count == 0 {
		c.counters.unroutable++
	}
}

// heardLately is how long ago a cell must have been heard to be expected to relay.
const heardLately = 60 * time.Second

// answers reports whether a member can be expected to take datagrams.
func (c *Cell) answers(m *member) bool {
	return m.InService() && m.Address.IsValid() && !c.detector.Suspected(m.ID)
}

// carries reports whether a member can be a hop of a stream: it answers, and is reached straight, so that
// streams do not use up what relays of single datagrams carry.
func (c *Cell) carries(m *member) bool { return c.answers(m) && c.nat.Direct(c.now, m) }

// streamRoute lists the ways to a target: to itself where it is reached straight, else through its homes and
// this cell's own, then to itself on whatever way there is, then by the cells nearest to it in the overlay
// that this cell has heard from lately.
func (c *Cell) streamRoute(target wire.CellID, attempt int) wire.CellID {
	routes := c.streams.routes[:0]
	direct := c.members.Get(target)
	if direct != nil && direct.Address.IsValid() {
		if !c.nat.Direct(c.now, direct) {
			c.nat.Route(c.now, direct) // traffic makes it try to become so
			routes = c.streamHomes(routes, direct.ID, direct.Homes)
			routes = c.streamHomes(routes, direct.ID, c.nat.Homes())
		}
		routes = append(routes, direct)
	}
	if attempt >= len(routes) {
		first := len(routes)
		c.members.Each(func(m *member) bool {
			if m.ID != target && c.carries(m) && m.Heard != 0 && c.now.Sub(m.Heard) < heardLately &&
				!slices.Contains(routes[:first], m) {
				routes = append(routes, m)
			}
			return true
		})
		slices.SortFunc(routes[first:], func(a, b *member) int { return cmp.Compare(a.ID^target, b.ID^target) })
		routes = routes[:min(len(routes), first+relayCandidates)]
	}
	c.streams.routes = routes[:0]
	if len(routes) == 0 {
		return 0
	}
	return routes[attempt%len(routes)].ID
}

// streamHomes appends those of some homes that can be a hop.
func (c *Cell) streamHomes(routes []*member, target wire.CellID, homes []wire.CellID) []*member {
	for _, id := range homes {
		if m := c.members.Get(id); m != nil && id != target && c.carries(m) && !slices.Contains(routes, m) {
			routes = append(routes, m)
		}
	}
	return routes
}

// nextHop chooses where a stream that this cell relays goes: to the target if it answers, through a home of
// it if it is not reached otherwise, else to the member nearest to it, which the rule of F150 wants nearer
// than this cell.
func (c *Cell) nextHop(target, source, previous wire.CellID) wire.CellID {
	if m := c.members.Get(target); m != nil && c.answers(m) {
		if !c.nat.Direct(c.now, m) && !m.HasHome(c.config.Self) {
			for _, id := range m.Homes {
				if home := c.members.Get(id); home != nil && id != source && id != previous && c.carries(home) {
					return id
				}
			}
		}
		return target
	}
	best := wire.CellID(0)
	c.members.Each(func(m *member) bool {
		if m.ID != target && m.ID != source && m.ID != previous && c.carries(m) &&
			m.ID^target < c.config.Self^target && (best == 0 || m.ID^target < best^target) {
			best = m.ID
		}
		return true
	})
	return best
}

// Members gives tests and checkers a look at the other cells. Nobody else may change them.
func (c *Cell) Members() *overlay.Members { return c.members }
