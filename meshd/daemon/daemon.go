// Package daemon runs one cell as a process: it joins the pure state machine of package cell to the
// reactor (sockets and time), the storage (files), the control socket (people) and the helper rings
// (hands). It decides nothing itself.
//
// One goroutine, the reactor's, owns the cell. Everything else that happens in the process posts a
// closure to that goroutine and wakes it.
package daemon

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"colloid.net/ipc/supply"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/control"
	"colloid.net/meshd/join"
	"colloid.net/meshd/reactor"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/storage"
	"colloid.net/meshd/wire"
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// Options of one daemon.
type Options struct {
	Directory string         // state directory of this cell
	Socket    string         // path of the command socket
	Bind      netip.AddrPort // zero address: all; port 0: the standard port
	Advertise []netip.AddrPort
	Driver    string // of the reactor: auto, io_uring, epoll
	Hostname  string
	Software  string
	Labels    [][2]string
	KeysMax   uint32
	Join      []control.Target // seeds to join while the cell is in no cluster but its own
	SupplyFD  int              // -1: not started by the launcher
	Helpers   []string         // that the launcher starts
	// PortMapping lets the daemon ask the host's router for an open port.
	PortMapping bool
	// NoPortSearch keeps the cell from finding ways through routers by many sockets.
	NoPortSearch bool
	Quiet        bool                            // log nothing (benchmarks)
	Observe      func(c *cell.Cell, name []byte) // see cell.Config
	Reactor      reactor.Options                 // sizes; Bind and Driver are set from the fields above
}

// ErrLeft means that the cell left its cluster on an operator's command; the daemon has nothing to do.
var ErrLeft = errors.New("the cell has left its cluster")

// ConfigurationError says that the daemon cannot run until a person has changed something: trying again
// would fail in the same way.
type ConfigurationError struct{ cause error }

func (e *ConfigurationError) Error() string { return e.cause.Error() }
func (e *ConfigurationError) Unwrap() error { return e.cause }

// Daemon is one running cell.
type Daemon struct {
	options     Options
	reactor     reactor.Reactor
	storage     *storage.Directory
	control     *control.Server
	supply      *supply.Receiver
	cell        *cell.Cell
	started     bool // the cell has had its Start
	inbox       inbox
	helper      helper
	workers     workers
	attachments attachments
	blobs       blobPulls
	names       nameService
	greeting    greeting
	log         *logger
	failure     atomic.Pointer[error]
	// Where other cells reach this one; see watchAddresses.
	addresses      atomic.Pointer[[]netip.Addr]
	addressTrouble string // the alarm about them; of the reactor's goroutine
	// Timers that withdraw alarms, by name; of the reactor's goroutine.
	troubles map[string]*time.Timer
	stopped  chan struct{} // closed when Run ends
}

// Run serves until ctx ends, the cell leaves, the launcher goes away, or something breaks.
func Run(ctx context.Context, options Options) error {
	d, err := Open(options)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// Open takes the state directory, binds the socket and builds the cell. The caller must call Run.
func Open(options Options) (*Daemon, error) {
	d := &Daemon{options: options, log: newLogger(options.Quiet), stopped: make(chan struct{})}
	d.workers = workers{
		daemon: d, byInstance: map[reconcile.InstanceID]*worker{}, accounts: map[string]*account{},
	}
	d.names.daemon = d
	if err := d.open(); err != nil {
		return nil, err
	}
	return d, nil
}

// Run serves; see the function of the same name. It frees everything before it returns.
func (d *Daemon) Run(ctx context.Context) error {
	defer close(d.stopped)
	defer d.close()
	stop := context.AfterFunc(ctx, func() { d.stop(nil) })
	defer stop()
	if d.supply != nil {
		go d.serveSupply()
	}
	go d.sampleLoad()
	go d.watchAddresses()
	go d.watchHelper()
	if d.options.PortMapping {
		go d.mapPort(ctx)
	}
	if len(d.options.Join) > 0 {
		go d.joinSeeds(ctx, d.options.Join)
	}
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		if err := d.control.Serve(); err != nil {
			d.stop(fmt.Errorf("command socket: %w", err))
		}
	}()
	err := d.reactor.Run((*handler)(d))
	d.control.Close()
	<-serving
	if stored := d.failure.Load(); stored != nil {
		return *stored
	}
	if errors.Is(err, reactor.ErrClosed) {
		return nil // told to stop before the reactor ran: that is no failure
	}
	return err
}

// Inspect runs f on the reactor's goroutine and waits for it: tests and benchmarks look at the cell this
// way. It reports false when the daemon has stopped.
func (d *Daemon) Inspect(f func(c *cell.Cell)) bool {
	done := make(chan struct{})
	d.inbox.post(func() {
		f(d.cell)
		close(done)
	})
	select {
	case <-done:
		return true
	case <-d.stopped:
		return false
	}
}

// Command carries out one request as if it came from the command socket, and waits for the answer.
func (d *Daemon) Command(request cell.Request) cell.Response {
	answer := make(chan cell.Response, 1)
	d.inbox.post(func() {
		d.cell.Command(d.reactor.Now(), request, func(r cell.Response) { answer <- r })
	})
	select {
	case r := <-answer:
		return r
	case <-d.stopped:
		return cell.Response{Status: uds.Error, Errno: uds.ErrorTimeout, Text: "the daemon has stopped"}
	}
}

// stop ends Run with err. The first reason wins.
func (d *Daemon) stop(err error) {
	if err != nil {
		d.failure.CompareAndSwap(nil, &err)
	}
	d.reactor.Close()
}

func (d *Daemon) open() (err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	var loaded storage.Loaded
	d.storage, loaded, err = storage.Open(d.options.Directory, storage.Options{
		Completed: d.stored, Trouble: d.directoryTrouble, Rewrite: d.saveState,
		CheckJoining: cell.CheckJoining,
	})
	if err != nil {
		if storage.Permanent(err) {
			err = &ConfigurationError{err}
		}
		return err
	}
	if err := d.openReactor(); err != nil {
		return err
	}
	if d.options.SupplyFD >= 0 {
		if d.supply, err = supply.NewReceiver(d.options.SupplyFD); err != nil {
			return err
		}
		d.supply.Notices = d.programEnded
	}
	for _, note := range loaded.Notes {
		d.log.printf("%s", note)
	}
	if loaded.Lost != "" {
		d.log.printf("configuration may be lost: %s: see `colloid status`", loaded.Lost)
	}
	serve := control.DefaultOptions(d.options.Socket, d.handle)
	serve.OpenStream = d.openStream
	serve.Log = func(line string) { d.log.printf("%s", line) }
	serve.Trouble = d.socketTrouble
	d.control, err = control.Listen(serve)
	if errors.Is(err, control.ErrObstructed) {
		return &ConfigurationError{err}
	}
	if err != nil {
		return err
	}
	config, err := d.configuration(loaded)
	if err != nil {
		return err
	}
	d.cell = cell.New(config)
	if len(loaded.Damaged) > 0 {
		d.showTrouble(cell.AlarmDirectory, strings.Join(loaded.Damaged, "; "),
			"nothing of the configuration is lost by that; look after the disk", true)
	}
	d.serveAttachments()
	d.blobs = blobPulls{daemon: d, pulls: map[*blobPull]struct{}{}, silent: map[wire.CellID]clock.Instant{},
		holders: d.cell.Holders}
	d.workers.hosts = d.cell.Hosts
	d.cell.Serve(wire.StreamInvoke, d.workers.serveForwarded)
	d.helper.address = config.Addresses[0].Address.Addr().AsSlice()
	d.helper.cellID = uint64(config.Self)
	d.setAddresses(config.Addresses)
	return nil
}

func (d *Daemon) openReactor() (err error) {
	sizes := d.options.Reactor
	sizes.Bind, sizes.Driver = d.options.Bind, d.options.Driver
	if sizes.Bind.Port() == 0 {
		sizes.Bind = netip.AddrPortFrom(sizes.Bind.Addr(), wire.Port)
	}
	if d.reactor, err = reactor.Open(sizes); err != nil {
		return err
	}
	d.inbox.attach(d.reactor.Wake)
	return nil
}

func (d *Daemon) configuration(loaded storage.Loaded) (cell.Config, error) {
	addresses, err := advertised(d.options.Advertise, d.reactor.LocalAddress())
	if err != nil {
		return cell.Config{}, err
	}
	var seed [32]byte
	if _, err := crand.Read(seed[:]); err != nil {
		return cell.Config{}, err
	}
	hostname := d.options.Hostname
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	return cell.Config{
		Self: loaded.Self, Incarnation: loaded.Incarnation, SecretHash: loaded.SecretHash,
		Cluster: cell.Cluster{Key: seal.Key(loaded.Cluster.Key), Joined: loaded.Cluster.Joined},
		Peers:   loaded.Peers, Snapshot: loaded.Snapshot, Writes: loaded.Writes,
		Joining: loaded.Joining, Lost: loaded.Lost, Renewed: loaded.Renewed,
		Addresses: addresses, Hostname: hostname, Software: d.options.Software, Labels: d.options.Labels,
		KeysMax: d.options.KeysMax, Loopback: true, AES: hardwareAES, NoPortSearch: d.options.NoPortSearch,
		RunnerExpected: slices.Contains(d.options.Helpers, "runnerd"),
		Directory:      d.options.Directory, Driver: d.reactor.Driver(),
		Random:  rand.New(rand.NewChaCha8(seed)),
		Entropy: func(p []byte) { crand.Read(p) },
		Network: network{d.reactor}, Storage: store{d.storage}, Runner: &d.helper, Logger: d.log,
		Observe: d.options.Observe, Metrics: d.workers.metrics,
	}, nil
}

func (d *Daemon) close() {
	d.helper.detach(d)
	d.workers.close()
	d.names.close()
	if d.control != nil {
		d.control.Close()
	}
	if d.supply != nil {
		d.supply.Close()
	}
	if d.reactor != nil {
		d.reactor.Close()
	}
	if d.storage != nil {
		d.storage.Close()
	}
}

// stored posts the completion of a storage call to the reactor's goroutine.
func (d *Daemon) stored(ticket uint64, err error) {
	d.inbox.post(func() { d.cell.Stored(d.reactor.Now(), ticket, err) })
}

// handle carries one request of the command socket to the cell and waits for its answer.
func (d *Daemon) handle(ctx context.Context, request control.Request) control.Response {
	switch request.Code {
	case uds.CodeHello:
		if response, known := d.answerHello(); known {
			return response
		}
	case uds.CodeWasmInvoke:
		return d.workers.invoke(ctx, request.Payload)
	case uds.CodeWasmChannel:
		return d.workers.openChannel(request)
	}
	answer := make(chan cell.Response, 1)
	translated := cell.Request{
		Code: request.Code, Payload: request.Payload, Addresses: request.Addresses, Merge: request.Merge,
	}
	if request.JoinKey != "" {
		key, err := join.ParseDoorKey(request.JoinKey)
		if err != nil {
			return control.Response{Status: uds.Error, Errno: uds.ErrorInvalid, Text: err.Error()}
		}
		translated.JoinKey = &key
	}
	d.inbox.post(func() {
		d.cell.Command(d.reactor.Now(), translated, func(r cell.Response) {
			d.greet()
			answer <- r
		})
	})
	select {
	case r := <-answer:
		if request.Code == uds.CodeLeave && r.Status == uds.OK {
			d.stop(ErrLeft) // closing the storage writes what is queued
		}
		return control.Response{Status: r.Status, Payload: r.Payload, Errno: r.Errno, Text: r.Text}
	case <-ctx.Done():
		return control.Response{Status: uds.Error, Errno: uds.ErrorTimeout, Text: "the daemon is stopping"}
	}
}

// hardwareAES: the processor has instructions for AES and for the multiplication of GCM.
var hardwareAES = cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41 || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL

// handler is the reactor's view of the daemon.
type handler Daemon

func (h *handler) Datagram(from netip.AddrPort, _ netip.Addr, datagram []byte) {
	if !h.started {
		return // a restarted daemon's socket may hold datagrams before its first Tick
	}
	h.cell.Receive(h.reactor.Now(), from, datagram)
}

// DatagramVia takes what came in on a further socket of a search (F35).
func (h *handler) DatagramVia(socket int, from netip.AddrPort, _ netip.Addr, datagram []byte) {
	if h.started {
		h.cell.ReceiveVia(h.reactor.Now(), socket, from, datagram)
	}
}

func (h *handler) Wake() { h.inbox.run() }

func (h *handler) Tick() {
	if !h.started {
		h.started = true
		h.cell.Start(h.reactor.Now())
	}
	h.cell.Tick(h.reactor.Now())
}

// Deadline is the cell's; the first Tick, due at once, starts it.
func (h *handler) Deadline() clock.Instant {
	if !h.started {
		return 0
	}
	deadline := h.cell.Deadline()
	(*Daemon)(h).greet()
	h.greeting.due.Store(int64(deadline))
	return deadline
}

// SendFailed hears of datagrams that the kernel refused to send. Only one reason says something lasting:
// the path is too narrow (F30).
func (h *handler) SendFailed(to netip.AddrPort, reason unix.Errno) {
	if reason == unix.EMSGSIZE {
		h.cell.PathTooNarrow(h.reactor.Now(), to)
	}
}

var (
	_ reactor.SendObserver  = (*handler)(nil)
	_ reactor.SocketHandler = (*handler)(nil)
)
