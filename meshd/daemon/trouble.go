package daemon

import (
	"time"

	"colloid.net/meshd/cell"
)

// troubleShown is how long status speaks of a mishap that was repaired: long enough to be seen by whoever looks
// every day at the office, short enough not to hide the next one. What is not repaired is shown until it is.
const troubleShown = time.Hour

// directoryTrouble hears from the storage that others changed its files.
func (d *Daemon) directoryTrouble(text, hint string, repaired bool) {
	d.showTrouble(cell.AlarmDirectory, text, hint, repaired)
}

// socketTrouble hears from the command socket that its file was taken away.
func (d *Daemon) socketTrouble(text, hint string, repaired bool) {
	d.showTrouble(cell.AlarmSocket, text, hint, repaired)
}

func (d *Daemon) showTrouble(name, text, hint string, repaired bool) {
	d.log.printf("%s: %s", text, hint)
	d.inbox.post(func() {
		if d.troubles == nil {
			d.troubles = make(map[string]*time.Timer)
		}
		if timer := d.troubles[name]; timer != nil {
			timer.Stop()
			d.troubles[name] = nil
		}
		d.cell.HostAlarm(name, "critical", text, hint)
		if repaired {
			d.troubles[name] = time.AfterFunc(troubleShown, func() {
				d.inbox.post(func() { d.cell.HostAlarm(name, "", "", "") })
			})
		}
	})
}

// saveState has the cell save a snapshot: the storage lost the one it had.
func (d *Daemon) saveState() {
	d.inbox.post(func() { d.cell.SaveState(d.reactor.Now()) })
}
