package storage

import (
	"errors"
	"fmt"
)

// logReadMax is more than any log can hold with a batch that was not completely written.
const logReadMax = LogMax + 2*appendBytesMax

// logHeader starts every log.
var logHeader = appendEnvelope(nil, kindLog)

// appendAll adds entries with one sync. After an error the log is what it was before, or is put
// aside to be rebuilt: nothing may follow bytes of which nobody knows whether they are on disk.
func (w *writer) appendAll(jobs []appendJob) error {
	if w.log == nil {
		if err := w.rebuildLog(); err != nil {
			return err
		}
	}
	w.written[nameLog] = struct{}{}
	var data []byte
	for _, job := range jobs {
		data = append(data, job.entry...)
	}
	if w.logSize+int64(len(data)) > LogMax {
		return ErrLogFull
	}
	if _, err := w.log.Write(data); err != nil {
		if w.log.Truncate(w.logSize) != nil {
			w.abandonLog()
		}
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	if err := w.log.Sync(); err != nil {
		// The kernel may have dropped the pages and call them clean: a second sync that succeeds
		// would prove nothing.
		w.abandonLog()
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	w.logSize += int64(len(data))
	w.logLast = jobs[len(jobs)-1].sequence
	return nil
}

func (w *writer) abandonLog() {
	_ = w.log.Close()
	w.log = nil
}

// rebuildLog copies the part of the log that is known to be good into a new file.
func (w *writer) rebuildLog() error {
	data, err := w.disk.Read(nameLog, logReadMax)
	if err != nil && !missing(err) {
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	if int64(len(data)) < w.logSize {
		return fmt.Errorf("storage: %s: %w: %d bytes, %d were written", nameLog, ErrDamaged, len(data), w.logSize)
	}
	if data = data[:w.logSize]; len(data) == 0 {
		data = logHeader
	}
	return w.installLog(data)
}

// installLog makes data the log and keeps it open: what is appended later goes into this very file.
func (w *writer) installLog(data []byte) error {
	const temporary = nameLog + suffixTemporary
	w.written[nameLog] = struct{}{}
	f, err := w.disk.Create(temporary)
	if err != nil {
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = w.disk.Rename(temporary, nameLog)
	}
	if err != nil {
		_ = f.Close()
		_ = w.disk.Remove(temporary) // it is overwritten next time if it stays
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	w.logNamed = true
	if w.log != nil {
		w.abandonLog()
	}
	if err := w.disk.Sync(); err != nil {
		_ = f.Close()
		return fmt.Errorf("storage: directory after %s: %w", nameLog, err)
	}
	w.log, w.logSize = f, int64(len(data))
	return nil
}

// reuseLog is rebuildLog for a full disk: it cuts the file where it lies.
func (w *writer) reuseLog() error {
	if err := w.openLog(); err != nil {
		return err
	}
	err := w.log.Truncate(w.logSize)
	if err == nil {
		err = w.log.Sync()
	}
	if err != nil {
		w.abandonLog()
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	return nil
}

func (w *writer) openLog() (err error) {
	if w.log, err = w.disk.Append(nameLog); err != nil {
		w.log = nil
		return fmt.Errorf("storage: %s: %w", nameLog, err)
	}
	return nil
}

// rotateLog makes a copy of the log the previous one and puts an empty one in its place, so that there is a
// writes.log at every moment: that it is missing then proves that somebody took it. If that fails, appending
// goes on in the old one; numbers tell what the snapshot contains.
func (w *writer) rotateLog() {
	data, err := w.disk.Read(nameLog, logReadMax)
	if missing(err) && w.log != nil { // somebody deleted it just now; it may hold more than the snapshot
		_ = w.salvageLog()
		return
	}
	if err != nil || int64(len(data)) < w.logSize || w.logSize == 0 {
		return
	}
	if w.install(nameLogPrevious, data[:w.logSize]) != nil {
		return
	}
	w.previousLogLast = w.logLast
	if w.installLog(logHeader) != nil && w.log != nil {
		return
	}
	w.logLast = 0
	if w.log == nil { // nobody knows which of the two has the name; the next append makes it the empty one
		w.logSize = 0
	}
}

// newer reports that a file is of a later version of the program.
func newer(err error) bool {
	var e *NewerError
	return errors.As(err, &e)
}
