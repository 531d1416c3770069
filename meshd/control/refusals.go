package control

import (
	"fmt"
	"sync"
	"time"
)

// Bounds of the lines about clients that are turned away. Anybody on this machine can be refused as often as
// they like, and must not fill the disk with that, nor push everything else out of the log (F135).
const (
	// refusalLines of a kind and a user have a line in refusalWindow; the next line counts the others.
	refusalLines  = 5
	refusalWindow = 10 * time.Second
	// refusalKeysMax bounds the kinds and users that are told apart. The others share what one has.
	refusalKeysMax = 64
)

// refusalKind is why somebody is turned away.
type refusalKind byte

const (
	refusedConnection refusalKind = iota
	refusedPlace                  // all are taken
	refusedCommand
	refusedStream
	refusedSlow   // a request did not come in time
	refusedUnread // replies are not read
	refusedSharing
)

// refusals writes lines about clients that are turned away. Its lock is taken last.
type refusals struct {
	log   func(line string)
	mutex sync.Mutex
	told  map[refusalKey]*toldRefusals
}

type refusalKey struct {
	kind refusalKind
	uid  uint32
}

type toldRefusals struct {
	since         time.Time
	lines, untold int
}

// say writes a line, or counts it.
func (r *refusals) say(now time.Time, kind refusalKind, who *credentials, format string, arguments ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	told := r.of(now, refusalKey{kind, who.uid})
	if now.Sub(told.since) >= refusalWindow {
		told.since, told.lines = now, 0
	}
	if told.lines++; told.lines > refusalLines {
		told.untold++
		return
	}
	more := ""
	if told.untold > 0 {
		more = fmt.Sprintf(", and %d before that have no line", told.untold)
		told.untold = 0
	}
	r.log(fmt.Sprintf("control: uid %d (pid %d) %s%s", who.uid, who.pid, fmt.Sprintf(format, arguments...), more))
}

// of finds what was told of a kind and a user, and makes room for it in the place of what is over.
func (r *refusals) of(now time.Time, key refusalKey) *toldRefusals {
	if told := r.told[key]; told != nil {
		return told
	}
	if len(r.told) >= refusalKeysMax {
		for other, told := range r.told {
			if now.Sub(told.since) >= refusalWindow {
				delete(r.told, other)
			}
		}
	}
	if len(r.told) >= refusalKeysMax {
		key = refusalKey{kind: refusedSharing}
	}
	told := r.told[key]
	if told == nil {
		if r.told == nil {
			r.told = map[refusalKey]*toldRefusals{}
		}
		told = &toldRefusals{since: now}
		r.told[key] = told
	}
	return told
}
