package daemon

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/control"
	"colloid.net/workload"
)

// account is what one workload may do on this cell, over all its instances and connections.
type account struct {
	reads, writes, metrics, streams rate
	values                          map[string]float64 // of its metrics
}

// rate is a number of things a second with a burst of as many.
type rate struct {
	tokens   float64
	refilled time.Time
}

func (r *rate) take(perSecond, count float64) bool {
	now := time.Now()
	if r.refilled.IsZero() {
		r.tokens = perSecond
	} else {
		r.tokens = min(perSecond, r.tokens+now.Sub(r.refilled).Seconds()*perSecond)
	}
	r.refilled = now
	if r.tokens < 1 {
		return false
	}
	r.tokens -= count // may go below zero: what is large is paid for afterwards
	return true
}

// accountOf finds or makes the account of a workload. The caller holds the lock of workers; there are as
// many as instances at most.
func (w *workers) accountOf(name string) *account {
	a := w.accounts[name]
	if a == nil {
		a = &account{values: map[string]float64{}}
		w.accounts[name] = a
	}
	return a
}

// invoke carries out WASM_INVOKE of the command socket, on the client's goroutine.
func (w *workers) invoke(ctx context.Context, payload []byte) control.Response {
	refuse := func(errno uint16, text string) control.Response {
		return control.Response{Status: uds.Error, Errno: errno, Text: text}
	}
	name, call, err := invoke.ParseCall(payload)
	if err != nil {
		return refuse(uds.ErrorInvalid, "malformed invoke request")
	}
	name = bareName(name)
	result, why := w.call(ctx, name, call, true)
	if why != absenceNone {
		return w.elsewhere(ctx, name, call, why)
	}
	if result.Errno != 0 {
		return refuse(deadlineErrno(result.Errno), name+": "+string(result.Output))
	}
	return control.Response{Status: uds.OK, Payload: invoke.AppendOutcome(nil, result)}
}

// elsewhere has an invocation done by another cell when no worker of this one took it, and says why nobody does.
func (w *workers) elsewhere(ctx context.Context, name string, call *invoke.Invocation, why absence) control.Response {
	response, began := w.forward(ctx, name, call)
	if began {
		return response
	}
	refuse := func(errno uint16, text string) control.Response {
		return control.Response{Status: uds.Error, Errno: errno, Text: text}
	}
	text := why.refusal(name, "this cell")
	switch {
	case why == absenceBusy:
		return refuse(uds.ErrorBusy, text)
	case response.Errno != 0: // the most telling refusal of others
		return response
	}
	known, again := "", false
	answered := w.onReactor(ctx, func() { known, again = w.daemon.cell.WhyNotInvoked(name) })
	switch {
	case !answered:
		return refuse(uds.ErrorBusy, cmp.Or(text, "the daemon is stopping"))
	case known != "" && !again && why == absenceMissing:
		return refuse(uds.ErrorNotFound, known)
	case text == "":
		text = known
	}
	return refuse(uds.ErrorBusy, text)
}

// deadlineErrno translates a worker's error number to that of a reply.
func deadlineErrno(errno uint16) uint16 {
	if errno == invoke.ErrorTimeout {
		return uds.ErrorDeadline
	}
	return errno
}

// onReactor runs f on the goroutine that owns the cell and waits. It reports false when that, or the caller's time, has
// ended; f may still run then, so the caller must not look at what f writes to.
func (w *workers) onReactor(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	w.daemon.inbox.post(func() {
		f()
		close(done)
	})
	select {
	case <-done:
		return true
	case <-w.daemon.stopped:
	case <-ctx.Done():
	}
	return false
}

// answer carries out one request of a worker, on a goroutine of its own.
func (w *workers) answer(to *worker, conn *invoke.Conn, request *invoke.Request) {
	var answers []*invoke.Answer
	switch errno := w.admit(to, request); {
	case errno != 0:
		answers = []*invoke.Answer{{Errno: errno}}
	case request.Operation.IsStream():
		answers = []*invoke.Answer{w.streamRequest(to, conn, request)}
	case request.Operation == invoke.OperationSnapshot:
		answers = w.snapshot(to)
	case request.Operation == invoke.OperationGet:
		answers = []*invoke.Answer{w.read(to, request)}
	default:
		answers = []*invoke.Answer{{Errno: w.write(to, request)}}
	}
	w.mutex.Lock()
	to.requests--
	w.mutex.Unlock()
	for _, answer := range answers {
		answer.ID = request.ID
		if conn.Send(answer) != nil {
			return // its reader notices
		}
	}
}

// admit checks right and rate. The worker does as well, but it may have been taken over.
func (w *workers) admit(to *worker, request *invoke.Request) uint16 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	needed, a := workload.CapabilityKVRead, w.accountOf(to.name)
	used, perSecond := &a.reads, float64(invoke.ReadsPerSecond)
	switch {
	case request.Operation == invoke.OperationSet || request.Operation == invoke.OperationDelete:
		needed, used, perSecond = workload.CapabilityKVWrite, &a.writes, invoke.WritesPerSecond
	case request.Operation.IsStream():
		needed, used, perSecond = workload.CapabilityStreams, &a.streams, invoke.StreamsPerSecond
	}
	switch {
	case to.capabilities&needed == 0:
		return invoke.ErrorPermission
	case request.Operation.IsStream() && request.Operation != invoke.OperationStreamOpen:
		return 0 // the stream's window holds it back
	case !used.take(perSecond, 1):
		return invoke.ErrorTryAgain
	}
	return 0
}

// read gives one value and remembers what was seen: the next write of this instance supersedes that (F148).
func (w *workers) read(to *worker, request *invoke.Request) *invoke.Answer {
	var value cell.Value
	err := cell.ErrValueLater
	if !w.onReactor(context.Background(), func() {
		value, err = w.daemon.cell.ReadValue(to.name, request.Key, int(request.Index))
	}) {
		return &invoke.Answer{Errno: invoke.ErrorTryAgain}
	}
	w.remember(to, request.Key, value.Seen)
	if err != nil {
		return &invoke.Answer{Errno: errnoOf(err), Siblings: uint16(min(value.Siblings, 1<<16-1))}
	}
	return &invoke.Answer{Siblings: uint16(min(value.Siblings, 1<<16-1)), Value: value.Data}
}

// remember keeps what a worker saw under a key. Beyond KeysMax keys all is forgotten, which costs nothing
// but siblings.
func (w *workers) remember(to *worker, key string, seen []byte) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(to.seen) >= invoke.KeysMax {
		clear(to.seen)
	}
	to.seen[key] = seen
}

func (w *workers) write(to *worker, request *invoke.Request) uint16 {
	w.mutex.Lock()
	seen := to.seen[request.Key]
	w.mutex.Unlock()
	stored := make(chan error, 1)
	d := w.daemon
	d.inbox.post(func() {
		d.cell.WriteValue(d.reactor.Now(), to.name, request.Key, request.Value, seen, invoke.KeysMax,
			func(err error) { stored <- err })
	})
	select {
	case err := <-stored:
		return errnoOf(err)
	case <-d.stopped:
		return invoke.ErrorTryAgain
	}
}

// snapshot gives all keys of the workload as of one moment (F143).
func (w *workers) snapshot(to *worker) []*invoke.Answer {
	answers := []*invoke.Answer{{}}
	count := 0
	if !w.onReactor(context.Background(), func() {
		w.daemon.cell.ReadValues(to.name, func(key string, value cell.Value) {
			if count++; count > invoke.KeysMax || len(key) > invoke.KeyMax {
				return // concurrent writers on many cells may have made more
			}
			last := answers[len(answers)-1]
			if len(last.Value)+len(key)+len(value.Data)+3 > invoke.OutputMax {
				last.More = true
				last = &invoke.Answer{}
				answers = append(answers, last)
			}
			last.Value = invoke.AppendPair(last.Value, key, value.Data)
			w.remember(to, key, value.Seen)
		})
	}) {
		return []*invoke.Answer{{Errno: invoke.ErrorTryAgain}}
	}
	w.mutex.Lock()
	w.accountOf(to.name).reads.take(invoke.ReadsPerSecond, float64(count/16))
	w.mutex.Unlock()
	return answers
}

func errnoOf(err error) uint16 {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, cell.ErrValueAbsent):
		return invoke.ErrorNotFound
	case errors.Is(err, cell.ErrValueKey):
		return invoke.ErrorInvalid
	case errors.Is(err, cell.ErrValueRoom):
		return invoke.ErrorNoSpace
	case errors.Is(err, cell.ErrValueLater):
		return invoke.ErrorTryAgain
	}
	return invoke.ErrorIO
}

// measure keeps a metric of a worker. The caller holds the lock.
func (w *workers) measure(to *worker, metric *invoke.Metric) {
	a := w.accountOf(to.name)
	_, known := a.values[metric.Name]
	if to.capabilities&workload.CapabilityMetrics == 0 || !known && len(a.values) >= invoke.MetricNamesMax ||
		!a.metrics.take(invoke.MetricsPerSecond, 1) {
		return
	}
	a.values[metric.Name] = metric.Value
}

// metrics lists the last values for status, on the reactor's goroutine.
func (w *workers) metrics() []uds.Metric {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var list []uds.Metric
	for _, name := range slices.Sorted(maps.Keys(w.accounts)) {
		values := w.accounts[name].values
		for _, metric := range slices.Sorted(maps.Keys(values)) {
			list = append(list, uds.Metric{
				Name: "colloid_workload_" + strings.ReplaceAll(name, "-", "_") + "_" + metric,
				Help: "emitted by workload " + name, Kind: "gauge", Value: values[metric],
			})
		}
	}
	return list
}
