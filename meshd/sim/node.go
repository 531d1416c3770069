package sim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Node is one simulated machine.
type Node struct {
	world   *World
	Index   int
	Address netip.AddrPort // of its own interface
	NAT     NATKind
	router  *router // nil: none

	cell    *cell.Cell
	disk    *disk
	host    *host
	offset  time.Duration // of its clock
	paused  bool
	starved bool          // a fault lets the process run in short slices only
	queue   []func()      // inputs that came while paused
	tick    uint64        // number of the newest tick event
	armed   time.Duration // when it comes, 0 = none is armed
	due     clock.Instant // when the cell wants to be called, as it said after its last input
	run     int           // number of the process on this machine

	// For checkers: since when nothing was done to the machine, its process or its links.
	disturbed time.Duration
	outside   bool // it left the cluster, or forgot it, and has not joined again
	booted    time.Duration
	backup    *image // an older copy of its disk
	backupAt  time.Duration
	reserved  bool // a fault holds the machine down or paused; others leave it alone
	joining   bool
	keysMax   uint32         // of this cell, 0 = the world's
	machine   Machine        // what it offers
	arch      string         // of its processor, "" = this machine's
	versions  wire.Versions  // of the protocol that the installed meshd speaks
	forced    bool           // it was told to leave by force
	sockets   map[int]uint16 // ports of the cell's further sockets
	noSearch  bool           // it was told to search for no ports
	nextPort  uint16         // counts them
}

// Cell is the running cell, nil while meshd is down.
func (n *Node) Cell() *cell.Cell { return n.cell }

// Up reports whether meshd runs.
func (n *Node) Up() bool { return n.cell != nil }

// Boot starts meshd from what the disk holds.
func (n *Node) Boot() {
	if n.cell != nil {
		return
	}
	w := n.world
	if n.disk.full {
		w.Tracef("n%d cannot boot: its disk is full", n.Index)
		return
	}
	n.run++
	n.booted = w.now
	w.disturb(n)
	config := n.disk.load()
	config.Addresses = []state.Candidate{{Address: n.Address}}
	config.Hostname = fmt.Sprintf("n%d", n.Index)
	config.Software = "sim"
	config.Arch = n.arch
	config.Labels = n.machine.Labels
	config.Random = rand.New(rand.NewPCG(w.random.Uint64(), w.random.Uint64()))
	config.Entropy = func(p []byte) {
		for len(p) > 0 {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], w.random.Uint64())
			p = p[copy(p, word[:]):]
		}
	}
	config.Network = (*port)(n)
	config.NoPortSearch = n.noSearch
	config.Storage = n.disk
	config.Runner = n.host
	config.Logger = (*nodeLogger)(n)
	config.Timing = w.options.Timing
	n.install(&config)
	config.KeysMax = w.options.KeysMax
	if n.keysMax != 0 {
		config.KeysMax = n.keysMax
	}
	n.cell = cell.New(config)
	w.Tracef("n%d %s boots, incarnation %d", n.Index, config.Self, config.Incarnation)
	n.input(func(now clock.Instant) { n.cell.Start(now) })
	n.host.connect()
}

// Kill ends meshd at once. The disk keeps what was synced, the host keeps what it runs.
func (n *Node) Kill() {
	if n.cell == nil {
		return
	}
	n.world.Tracef("n%d killed", n.Index)
	n.cell = nil
	n.sockets = nil
	n.armed = 0
	n.tick++
	n.run++
	n.world.disturb(n)
	n.paused, n.queue, n.joining = false, nil, false
	n.disk.crash()
}

// PowerOff kills meshd and everything that runs on the machine.
func (n *Node) PowerOff() {
	n.Kill()
	n.host.crash()
}

// Wipe loses the disk of a machine that is down.
func (n *Node) Wipe() { n.disk.wipe() }

// Pause stops the process without killing it, as SIGSTOP does; the clock goes on (F65).
func (n *Node) Pause() {
	n.paused = true
	n.world.disturb(n)
}

// Resume continues a paused process: everything that waited happens now.
func (n *Node) Resume() {
	if !n.paused {
		return
	}
	n.world.disturb(n)
	n.paused = false
	queue := n.queue
	n.queue = nil
	for _, f := range queue {
		f()
	}
	n.rearm()
}

// JumpClock moves the node's clock forward, as a suspended laptop's does (F11).
func (n *Node) JumpClock(d time.Duration) {
	n.world.disturb(n)
	n.offset += d
	n.armed = 0 // the armed tick would come too late
	n.rearm()
}

// inputsPausedMax bounds what a paused process' socket holds.
const inputsPausedMax = 1000

// Input hands one input to the cell, for tests of inputs that nothing here models.
func (n *Node) Input(f func(now clock.Instant)) { n.input(f) }

// input hands one input to the cell, arms its next tick, and lets the checkers look.
func (n *Node) input(f func(now clock.Instant)) {
	if n.cell == nil {
		return
	}
	if n.paused {
		if len(n.queue) < inputsPausedMax {
			n.queue = append(n.queue, func() { n.input(f) })
		}
		return
	}
	f(n.instant())
	n.after()
}

func (n *Node) after() {
	if n.cell != nil {
		n.rearm()
	}
	n.world.touched(n)
}

// rearm schedules the next tick at the cell's deadline. A tick that is armed for an earlier moment stays:
// when it comes it arms the next.
func (n *Node) rearm() {
	if n.cell == nil || n.paused {
		return
	}
	n.due = n.cell.Deadline()
	n.arm()
}

// arm schedules a tick at the deadline that is known.
func (n *Node) arm() {
	if n.due == clock.Never {
		return
	}
	at := max(time.Duration(n.due)-n.offset, n.world.now)
	if n.armed != 0 && n.armed <= at {
		return
	}
	n.tick++
	n.armed = at
	n.world.events.push(at, event{node: n, number: n.tick})
}

// ticked is the arrival of a tick.
func (n *Node) ticked(number uint64) {
	if n.tick != number {
		return
	}
	n.armed = 0
	if n.cell == nil || n.paused {
		return
	}
	now := n.instant()
	if n.due > now { // since the tick was armed an input has put the deadline off
		n.arm()
		return
	}
	n.cell.Tick(now)
	n.after()
}

// port is the node's socket.
type port Node

// Send implements cell.Network.
func (p *port) Send(to netip.AddrPort, datagram []byte) {
	p.world.network.send((*Node)(p), p.Address, to, datagram)
}

// SendAlternate implements cell.Alternate.
func (p *port) SendAlternate(to netip.AddrPort, datagram []byte) {
	source := netip.AddrPortFrom(p.Address.Addr(), 40000+uint16(p.world.random.IntN(20000)))
	p.world.network.send((*Node)(p), source, to, datagram)
}

// OpenSocket implements cell.Sockets.
func (p *port) OpenSocket(socket int) bool {
	if len(p.sockets) >= p.world.socketsMax() {
		return false
	}
	if p.sockets == nil {
		p.sockets = make(map[int]uint16)
	}
	p.nextPort++
	p.sockets[socket] = 20000 + p.nextPort%20000
	return true
}

// CloseSocket implements cell.Sockets.
func (p *port) CloseSocket(socket int) { delete(p.sockets, socket) }

// SendVia implements cell.Sockets.
func (p *port) SendVia(socket int, to netip.AddrPort, datagram []byte) {
	p.world.examined("SOCKET")
	source, open := p.sockets[socket]
	if !open {
		p.world.fail("SOCKET", "n%d sends from socket %d, which is not open", p.Index, socket)
		return
	}
	p.world.network.send((*Node)(p), netip.AddrPortFrom(p.Address.Addr(), source), to, datagram)
}

// socketAt returns the socket at an address of the machine, 0 for the cell's own.
func (n *Node) socketAt(address netip.AddrPort) (socket int, open bool) {
	if address == n.Address {
		return 0, true
	}
	if address.Addr() != n.Address.Addr() {
		return 0, false
	}
	for socket, source := range n.sockets { // one at most has this port
		if source == address.Port() {
			return socket, true
		}
	}
	return 0, false
}

// receive hands a datagram to the cell, unless its socket was closed while it was on its way.
func (n *Node) receive(now clock.Instant, socket int, source netip.AddrPort, datagram []byte) {
	if socket == 0 {
		n.cell.Receive(now, source, datagram)
	} else if _, open := n.sockets[socket]; open {
		n.cell.ReceiveVia(now, socket, source, datagram)
	}
}

type nodeLogger Node

// Log implements cell.Logger.
func (l *nodeLogger) Log(level cell.Level, text string) {
	if level != cell.LevelDebug {
		l.world.Tracef("n%d %s", l.Index, text)
	} else if l.world.options.Debug != nil {
		l.world.options.Debug((*Node)(l), fmt.Sprintf("%12.6f n%d %s", l.world.now.Seconds(), l.Index, text))
	}
}

// Command sends a request to the node's local socket.
func (n *Node) Command(request cell.Request, reply func(cell.Response)) {
	n.input(func(now clock.Instant) { n.cell.Command(now, request, reply) })
}

// Connect joins the node to the cluster of another.
func (n *Node) Connect(seed *Node) { n.connect(seed, false, nil) }

func (n *Node) connect(seed *Node, merge bool, done func(cell.Response)) {
	request := cell.Request{Code: uds.CodeConnect, Addresses: []netip.AddrPort{seed.Address}, Merge: merge}
	n.Command(request, func(r cell.Response) {
		if r.Status != uds.OK {
			n.world.Tracef("n%d connect: %s", n.Index, r.Text)
		}
		if done != nil {
			done(r)
		}
	})
}

// Set writes a key; done gets the outcome.
func (n *Node) Set(key string, value []byte, expect uint64, done func(cell.Response)) {
	write := uds.WriteRequest{Expect: expect, Key: key, Value: value}
	n.Command(cell.Request{Code: uds.CodeSet, Payload: write.Append(nil)}, func(r cell.Response) {
		n.world.Tracef("n%d set %s: %d %s", n.Index, key, r.Status, r.Text)
		if done != nil {
			done(r)
		}
	})
}

// Delete deletes a key, whatever it holds.
func (n *Node) Delete(key string) {
	write := uds.WriteRequest{Expect: uds.ExpectAny, Key: key}
	n.Command(cell.Request{Code: uds.CodeDelete, Payload: write.Append(nil)}, func(r cell.Response) {
		n.world.Tracef("n%d delete %s: %d %s", n.Index, key, r.Status, r.Text)
	})
}

// Resolve supersedes all values of a key that the node holds now.
func (n *Node) Resolve(key string, value []byte) {
	register, found := n.cell.Store().Get([]byte(key))
	if !found {
		return
	}
	write := uds.WriteRequest{Expect: register.DotDigest(), Key: key, Value: value}
	n.Command(cell.Request{Code: uds.CodeResolve, Payload: write.Append(nil)}, func(r cell.Response) {
		n.world.Tracef("n%d resolve %s: %d %s", n.Index, key, r.Status, r.Text)
	})
}

// alarms counts what the node's status warns of, by severity.
func (n *Node) alarms() map[string]int {
	counts := make(map[string]int)
	n.Command(cell.Request{Code: uds.CodeStatus}, func(r cell.Response) {
		var status uds.Status
		if json.Unmarshal(r.Payload, &status) == nil {
			for _, alarm := range status.Alarms {
				counts[alarm.Severity]++
			}
		}
	})
	return counts
}

// ID returns the id of the machine's cell.
func (n *Node) ID() wire.CellID { return n.disk.self }
