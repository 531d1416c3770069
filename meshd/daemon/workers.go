package daemon

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/message"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

const (
	// attachRetry is how long after a lost connection, or one that could not be asked for, the next is.
	attachRetry = time.Second
	// attachPatience is how long an asked-for connection may take before it is asked for again.
	attachPatience = 5 * time.Second
)

// workers is the registry of this cell's Wasm workers: the connections over which invocations go to them
// and requests for their key-value spaces come (ipc/invoke). Connections are made by runnerd when it is
// asked to, and then work without it. Requests of the command socket go from their client's goroutine to the
// worker and back, without the reactor's; only key-value requests need the cell and so its goroutine.
type workers struct {
	daemon *Daemon
	hosts  func(key string) []wire.CellID // cell.Hosts

	// Of the reactor's goroutine: how many invocations of other cells are under way here, how many of this cell
	// were sent to others, and how many streams this cell's modules have.
	serving   int
	forwarded uint64
	streams   int // of modules
	// unlisted are those that the list under way has not named yet, nil outside of one.
	unlisted map[reconcile.InstanceID]struct{}

	mutex      sync.Mutex // guards what follows; never held while anything is sent
	byInstance map[reconcile.InstanceID]*worker
	accounts   map[string]*account // by workload
	guarded    bool                // expire will run
	channels   int                 // of all workers
	shortcuts  int                 // of all workers
}

// waiter is who waits for a result, and until when.
type waiter struct {
	result chan *invoke.Result // with room for one
	until  time.Time
}

// worker is one instance and, once connected says so, its connection. It is replaced, not changed, when the
// instance has another process.
type worker struct {
	id           reconcile.InstanceID
	pid          uint32
	ticks        uint64
	name         string // of the workload, without its kind
	capabilities uint32
	channel      uint64 // of the connection that was asked for, 0 = none is
	conn         *invoke.Conn
	connected    bool // its Hello has come
	// takesChannels: its version and its module do.
	takesChannels bool
	// retiring: it is being stopped. It gets nothing more to do, and the results of what it has.
	retiring bool

	nextID   uint64 // of invocations and channels
	pending  map[uint64]waiter
	channels map[uint64]*channel
	ended    endedChannels
	// shortcut is a channel of meshd's own, nil = there is none; when one last failed, and the last invocation came.
	shortcut       *shortcut
	shortcutFailed time.Time
	called         time.Time
	requests       int               // under way
	seen           map[string][]byte // what the last read of each key saw (F148)

	streams map[uint16]*moduleStream // of the reactor's goroutine, not under the lock
}

// observe looks at what runnerd reports of an instance. It runs on the reactor's goroutine.
func (w *workers) observe(actual *reconcile.Actual) {
	delete(w.unlisted, actual.ID)
	running := actual.PID != 0 && (actual.State == reconcile.Starting || actual.State == reconcile.Ready ||
		actual.State == reconcile.Unready)
	w.mutex.Lock()
	known := w.byInstance[actual.ID]
	w.mutex.Unlock()
	same := known != nil && known.pid == actual.PID && known.ticks == actual.StartTicks
	if same && running {
		return
	}
	if same && actual.State == reconcile.Stopping && w.retire(known) {
		return
	}
	if known != nil {
		w.drop(known)
	}
	if !running {
		return
	}
	spec, err := workload.Decode(actual.Spec)
	if err != nil || spec.Runtime != workload.RuntimeWasm {
		return
	}
	fresh := &worker{
		id: actual.ID, pid: actual.PID, ticks: actual.StartTicks, name: state.WorkloadName(actual.Key),
		capabilities: spec.Capabilities, pending: map[uint64]waiter{}, channels: map[uint64]*channel{},
		seen: map[string][]byte{}, streams: map[uint16]*moduleStream{},
	}
	w.mutex.Lock()
	w.byInstance[actual.ID] = fresh
	w.mutex.Unlock()
	w.ask(fresh)
}

// drop forgets a worker and ends its connection; whoever waits for it is told.
func (w *workers) drop(old *worker) {
	w.mutex.Lock()
	if w.byInstance[old.id] == old {
		delete(w.byInstance, old.id)
		if !w.hasName(old.name) {
			delete(w.accounts, old.name)
		}
	}
	conn := w.disconnect(old)
	w.mutex.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// retire takes a worker that is being stopped out of the choice and ends its channels. What it has been sent it still
// does (its stop_grace is for that), so the connection stays until it ends. false: there is nothing to wait for.
func (w *workers) retire(old *worker) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if !old.connected {
		return false
	}
	old.retiring = true
	for _, c := range old.channels {
		w.shutChannel(c)
	}
	if old.shortcut != nil {
		w.retireShortcut(old.shortcut)
	}
	return true
}

func (w *workers) hasName(name string) bool {
	for _, other := range w.byInstance {
		if other.name == name {
			return true
		}
	}
	return false
}

// disconnect takes the connection from a worker and gives it back to be closed. The caller holds the lock.
func (w *workers) disconnect(old *worker) *invoke.Conn {
	conn := old.conn
	if conn != nil {
		w.daemon.inbox.post(func() { w.endStreams(old, conn) })
	}
	old.conn, old.connected, old.channel = nil, false, 0
	for id, waiting := range old.pending {
		delete(old.pending, id)
		close(waiting.result)
	}
	for id, c := range old.channels {
		delete(old.channels, id)
		w.shutChannel(c)
	}
	if old.shortcut != nil {
		w.cutShort(old.shortcut)
	}
	return conn
}

// ask asks runnerd for a connection to a worker. It runs on the reactor's goroutine.
func (w *workers) ask(to *worker) {
	w.mutex.Lock()
	if w.byInstance[to.id] != to || to.conn != nil {
		w.mutex.Unlock()
		return
	}
	h := &w.daemon.helper
	h.channel++
	channel := h.channel
	to.channel = channel
	w.mutex.Unlock()
	if h.link == nil {
		return // the next listing of the next runnerd asks again, see listed
	}
	h.descriptors.Claim(channel, func(file *os.File) { w.connect(to, channel, file) })
	sent := h.command(&message.Command{Body: &message.Command_Attach{Attach: &message.Attach{
		Channel: channel, What: &message.Attach_Invoke{Invoke: &message.Invoke{}},
		Id: &message.InstanceID{KeyHash: to.id.KeyHash, Slot: uint32(to.id.Slot), Digest: to.id.Digest},
	}}})
	patience := attachPatience
	if !sent {
		patience = attachRetry
	}
	w.later(to, channel, patience)
}

// later asks again after a while unless there is a connection by then.
func (w *workers) later(to *worker, channel uint64, after time.Duration) {
	time.AfterFunc(after, func() {
		w.daemon.inbox.post(func() {
			w.mutex.Lock()
			again := to.conn == nil && to.channel == channel
			w.mutex.Unlock()
			if again {
				if descriptors := w.daemon.helper.descriptors; descriptors != nil { // a runnerd has connected once
					descriptors.Abandon(channel)
				}
				w.ask(to)
			}
		})
	})
}

// listing begins: a runnerd that has connected, or has lost count of what is gone, names all instances.
func (w *workers) listing() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.unlisted = make(map[reconcile.InstanceID]struct{}, len(w.byInstance))
	for id := range w.byInstance {
		w.unlisted[id] = struct{}{}
	}
}

// listed ends it: what was not named does not exist. It asks for all connections that are missing.
func (w *workers) listed() {
	w.mutex.Lock()
	var gone []*worker
	for id := range w.unlisted {
		if old := w.byInstance[id]; old != nil {
			gone = append(gone, old)
		}
	}
	w.mutex.Unlock()
	w.unlisted = nil
	for _, old := range gone {
		w.drop(old)
	}
	w.mutex.Lock()
	missing := make([]*worker, 0, len(w.byInstance))
	for _, to := range w.byInstance {
		if to.conn == nil {
			missing = append(missing, to)
		}
	}
	w.mutex.Unlock()
	for _, to := range missing {
		w.ask(to)
	}
}

// attached takes runnerd's answer. Only a refusal matters: the connection comes by itself.
func (w *workers) attached(answer *message.Attached) {
	if answer.Error == "" {
		return
	}
	w.daemon.helper.descriptors.Abandon(answer.Channel)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, to := range w.byInstance {
		if to.channel == answer.Channel {
			w.later(to, answer.Channel, attachRetry)
			return
		}
	}
}

// connect takes a connection that came, on the goroutine that receives descriptors.
func (w *workers) connect(to *worker, channel uint64, file *os.File) {
	conn, err := invoke.Open(file)
	if err != nil {
		w.daemon.log.printf("worker of %s: %v", to.name, err)
		return
	}
	w.mutex.Lock()
	wanted := w.byInstance[to.id] == to && to.channel == channel && to.conn == nil
	if wanted {
		to.conn = conn
	}
	w.mutex.Unlock()
	if !wanted {
		conn.Close()
		return
	}
	go w.serve(to, conn, channel)
}

// serve reads from a worker until the connection ends. What a worker sends is as hostile as what it runs.
func (w *workers) serve(to *worker, conn *invoke.Conn, channel uint64) {
	buffer := make([]byte, invoke.FrameMax+1)
	for {
		body, err := conn.Receive(buffer)
		if err != nil || !w.take(to, conn, body) {
			break
		}
	}
	conn.Close()
	w.mutex.Lock()
	if to.conn == conn {
		w.disconnect(to)
		to.channel = channel
	}
	retiring := to.retiring
	w.mutex.Unlock()
	if retiring {
		w.drop(to)
		return
	}
	w.later(to, channel, attachRetry)
}

// take handles one frame; false ends the connection.
func (w *workers) take(to *worker, conn *invoke.Conn, body any) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if to.conn != conn {
		return false
	}
	if hello, is := body.(*invoke.Hello); is != !to.connected {
		return false // the first frame is a Hello and no other is
	} else if is {
		to.connected, to.takesChannels = true, hello.TakesChannels()
		return true
	}
	switch frame := body.(type) {
	case *invoke.Result:
		waiting, known := to.pending[frame.ID]
		if !known {
			return true // its client has given up
		}
		delete(to.pending, frame.ID)
		frame.Output = bytes.Clone(frame.Output)
		waiting.result <- frame
		return true
	case *invoke.Request:
		if to.requests >= invoke.RequestsMax {
			return false // an honest worker has one under way
		}
		to.requests++
		frame.Value = bytes.Clone(frame.Value)
		go w.answer(to, conn, frame)
		return true
	case *invoke.Metric:
		w.measure(to, frame)
		return true
	case *invoke.ChannelEnd:
		w.channelEnded(to, frame)
		return true
	}
	return false
}

// names lists the workloads with a connected worker, for tests.
func (w *workers) names() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var list []string
	for _, candidate := range w.byInstance {
		if candidate.connected && !candidate.retiring {
			list = append(list, candidate.name)
		}
	}
	slices.Sort(list)
	return list
}

// close ends all connections.
func (w *workers) close() {
	w.mutex.Lock()
	list := make([]*worker, 0, len(w.byInstance))
	for _, one := range w.byInstance {
		list = append(list, one)
	}
	w.mutex.Unlock()
	for _, one := range list {
		w.drop(one)
	}
}

// bareName accepts "thumbs" and "wasm.thumbs": workloads of all kinds share their names.
func bareName(name string) string {
	for _, kind := range []string{state.PrefixWasm, state.PrefixSpread, state.PrefixStateful} {
		if bare, found := strings.CutPrefix(name, kind); found {
			return bare
		}
	}
	return name
}
