package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/meshd/names"
	"colloid.net/meshd/resolver"
)

const (
	// namesKept is how long a table of names is used before the cell is asked again.
	namesKept = 200 * time.Millisecond
	// namesPatience is how long a query waits for a table; then it gets the one before.
	namesPatience = time.Second
	// namesOverlap is how long sockets of an earlier runnerd are still read when there are newer ones.
	namesOverlap = time.Second
	// namesChannel marks tags of descriptors that are not the workers'.
	namesChannel = 1 << 63
)

// nameService answers the names of workloads to the containers of this host, on sockets that runnerd passes.
// It goes on without runnerd. Its fields but the table belong to the reactor's goroutine.
type nameService struct {
	daemon     *Daemon
	server     *resolver.Server
	generation uint64
	linked     bool // the sockets are of the present link
	channel    uint64
	asked      map[uint64]*message.Resolver

	refresh sync.Mutex // one asks the cell at a time
	table   atomic.Pointer[datedTable]
}

type datedTable struct {
	*names.Table
	made time.Time
}

// network takes what runnerd says of the network of its containers.
func (n *nameService) network(h *helper, m *message.Network) error {
	ranges, err := rangesOf(m)
	if err != nil {
		return err
	}
	if n.server != nil && n.linked && n.generation == m.Generation && len(ranges) > 0 {
		return nil
	}
	old := n.server
	n.server, n.generation, n.asked, n.linked = nil, m.Generation, nil, true
	if old != nil {
		time.AfterFunc(namesOverlap, old.Close)
	}
	if len(ranges) == 0 {
		return nil
	}
	var gateways []netip.Addr
	for _, r := range ranges {
		gateways = append(gateways, r.Addr().Next())
	}
	n.table.Store(nil)
	n.server = resolver.New(resolver.Options{
		Ranges: ranges, Table: func() *names.Table { return n.current(gateways) },
	})
	n.asked = map[uint64]*message.Resolver{}
	for _, r := range ranges {
		for _, stream := range []bool{false, true} {
			n.ask(n.server, &message.Resolver{Ipv6: r.Addr().Is6(), Stream: stream})
		}
	}
	return nil
}

// rangesOf accepts one range per family.
func rangesOf(m *message.Network) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, r := range m.Ranges {
		a, ok := netip.AddrFromSlice(r.Address)
		p := netip.PrefixFrom(a, int(min(r.Bits, 1000)))
		if !ok || !p.IsValid() || p != p.Masked() || a.Is4In6() || len(list) == 2 ||
			len(list) == 1 && list[0].Addr().Is4() == a.Is4() {
			return nil, fmt.Errorf("the network has %d ranges of addresses, or malformed ones", len(m.Ranges))
		}
		list = append(list, p)
	}
	return list, nil
}

// ask asks runnerd for a socket, until there is one or the server has been replaced.
func (n *nameService) ask(server *resolver.Server, wanted *message.Resolver) {
	h := &n.daemon.helper
	if n.server != server || h.link == nil {
		return // the next Network of the next runnerd begins anew
	}
	n.channel++
	channel := namesChannel | n.channel
	n.asked[channel] = wanted
	h.descriptors.Claim(channel, func(file *os.File) {
		if err := server.Serve(file, wanted.Stream); err != nil {
			n.daemon.log.printf("names for containers: %v", err)
		}
	})
	sent := h.command(&message.Command{Body: &message.Command_Attach{Attach: &message.Attach{
		Channel: channel, What: &message.Attach_Resolver{Resolver: wanted},
	}}})
	if !sent {
		n.again(channel)
	}
}

// again asks for a socket once more, after a while.
func (n *nameService) again(channel uint64) {
	wanted, server := n.asked[channel], n.server
	delete(n.asked, channel)
	n.daemon.helper.descriptors.Abandon(channel)
	if wanted == nil || server == nil {
		return
	}
	time.AfterFunc(attachRetry, func() { n.daemon.inbox.post(func() { n.ask(server, wanted) }) })
}

// attached takes runnerd's answer; sockets come by themselves.
func (n *nameService) attached(answer *message.Attached) {
	if answer.Error != "" && answer.Channel&namesChannel != 0 {
		n.again(answer.Channel)
	}
}

// detached notes that runnerd has gone. Its sockets are still heard.
func (n *nameService) detached() { n.linked = false }

func (n *nameService) close() {
	if n.server != nil {
		n.server.Close()
	}
}

// current gives a table that is young enough. It is called on goroutines of the server.
func (n *nameService) current(gateways []netip.Addr) *names.Table {
	if t := n.table.Load(); t != nil && time.Since(t.made) < namesKept {
		return t.Table
	}
	n.refresh.Lock()
	defer n.refresh.Unlock()
	before := n.table.Load()
	if before != nil && time.Since(before.made) < namesKept {
		return before.Table
	}
	fresh := make(chan *names.Table, 1)
	n.daemon.inbox.post(func() { fresh <- names.NewTable(n.daemon.cell.Names(gateways)) })
	timer := time.NewTimer(namesPatience)
	defer timer.Stop()
	select {
	case t := <-fresh:
		n.table.Store(&datedTable{t, time.Now()})
		return t
	case <-timer.C:
	case <-n.daemon.stopped:
	}
	if before != nil {
		return before.Table
	}
	return names.NewTable(nil)
}

// ownAddress reads an address that runnerd gave an instance; what is none counts as the cell's.
func ownAddress(raw []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(raw)
	if !ok || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		return netip.Addr{}
	}
	return a.Unmap()
}
