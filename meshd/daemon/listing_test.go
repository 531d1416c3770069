package daemon

import (
	"testing"

	"colloid.net/ipc/message"
)

// TestAWorkerThatNoListNamesIsForgotten: a runnerd that has lost count of what is gone lists what there is.
func TestAWorkerThatNoListNamesIsForgotten(t *testing.T) {
	r := launch(t, "epoll")
	one, two := r.connectWorker("wasm.one", 0, 0), r.connectWorker("wasm.two", 1, 0)
	w := &r.daemon.workers
	do := func(f func()) {
		done := make(chan struct{})
		r.daemon.inbox.post(func() { f(); close(done) })
		<-done
	}
	deliver := func(event *message.Event) {
		do(func() {
			if err := r.daemon.helper.deliver(r.daemon, event); err != nil {
				t.Error(err)
			}
		})
	}
	deliver(&message.Event{Body: &message.Event_Hello{Hello: &message.Hello{Protocol: helperProtocol}}})
	do(func() { w.observe(&two.actual) })
	deliver(&message.Event{Body: &message.Event_Listing{Listing: &message.Listing{Count: 1}}})
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.byInstance[one.actual.ID] != nil || w.byInstance[two.actual.ID] == nil {
		t.Errorf("%d workers are known", len(w.byInstance))
	}
}
