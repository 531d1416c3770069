package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// An invocation whose client's server closes while the reactor is busy ends at once, and does not look at what the
// reactor fills in for it later. The race detector is the judge of the second.
func TestACanceledInvocationLeavesTheReactorAlone(t *testing.T) {
	r := launch(t, "epoll")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	begun := make(chan struct{})
	r.daemon.inbox.post(func() {
		close(begun)
		time.Sleep(50 * time.Millisecond) // no channel: it would order the accesses, and so hide the race
	})
	<-begun
	response := r.daemon.workers.invoke(ctx, invoke.AppendCall(nil, "w", &invoke.Invocation{Function: "f"}))
	if response.Errno != uds.ErrorBusy || !strings.Contains(response.Text, "stopping") {
		t.Errorf("%+v", response)
	}
	time.Sleep(100 * time.Millisecond) // until the reactor has done what was posted, for the same reason
}
