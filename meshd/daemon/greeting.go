package daemon

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/control"
)

// greetingPatience is how late the reactor's goroutine may be before HELLO waits for it: the answer says that the
// cell works, not only that its command socket does.
const greetingPatience = time.Second

// greeting is the answer to HELLO as the cell would give it. It changes a few times in the life of a daemon, so the
// reactor's goroutine leaves it here instead of being woken for each.
type greeting struct {
	phase   cell.Phase // of the reactor's goroutine, as joining
	joining string

	reply atomic.Pointer[[]byte] // nil = none yet
	due   atomic.Int64           // the clock.Instant by which the reactor's goroutine looks after it again
}

// greet renews the greeting if something has changed. It runs on the reactor's goroutine, after all that changes the
// cell and before the answers to commands.
func (d *Daemon) greet() {
	g := &d.greeting
	phase, joining := d.cell.Phase(), d.cell.Joining()
	if g.reply.Load() != nil && phase == g.phase && joining == g.joining {
		return
	}
	raw, err := json.Marshal(d.cell.Hello())
	if err != nil {
		return // HELLO asks the cell then, which says so
	}
	g.phase, g.joining = phase, joining
	g.reply.Store(&raw)
}

// answerHello answers HELLO on its client's goroutine; false: the cell must be asked.
func (d *Daemon) answerHello() (control.Response, bool) {
	reply := d.greeting.reply.Load()
	if reply == nil || d.reactor.Now() > clock.Instant(d.greeting.due.Load()).Add(greetingPatience) {
		return control.Response{}, false
	}
	return control.Response{Status: uds.OK, Payload: *reply}, true
}
