package runnerd

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	auditFileMax = 16 << 20 // then it becomes audit.log.1
	auditRate    = 50       // lines a second, beyond them only counted
	auditBurst   = 500
)

// audit is the append-only record of every decision. It is bounded in size and rate, so that a flood
// of commands cannot fill the disk. It belongs to the loop's goroutine.
type audit struct {
	path       string
	file       *os.File
	size       int64
	tokens     float64
	refilled   time.Time
	suppressed int
	failed     error // of the last line, nil = it was written
}

func openAudit(path string) (*audit, error) {
	a := &audit{path: path, tokens: auditBurst, refilled: time.Now()}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("runnerd: open audit log: %w", err)
	}
	return a, nil
}

func (a *audit) open() error {
	file, err := os.OpenFile(a.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	a.file, a.size = file, 0
	if info, err := file.Stat(); err == nil {
		a.size = info.Size()
	}
	return nil
}

// write adds one line. A zero peer means runnerd itself.
func (a *audit) write(who peer, sequence uint64, what, decision string) {
	now := time.Now()
	a.tokens = min(auditBurst, a.tokens+now.Sub(a.refilled).Seconds()*auditRate)
	a.refilled = now
	if a.tokens < 1 {
		a.suppressed++
		return
	}
	a.tokens--
	if a.suppressed > 0 {
		a.line(now, fmt.Sprintf("%d decisions were too fast to be written down", a.suppressed))
		a.suppressed = 0
	}
	source := "runnerd"
	if who != (peer{}) {
		source = fmt.Sprintf("uid=%d pid=%d sequence=%d", who.uid, who.pid, sequence)
	}
	a.line(now, source+" "+what+": "+decision)
}

func (a *audit) line(now time.Time, text string) {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, shorten(text))
	if a.size > auditFileMax && a.file != nil {
		a.file.Close()
		a.file = nil
		if os.Rename(a.path, a.path+".1") == nil {
			_ = a.open()
		}
	}
	if a.file == nil {
		return
	}
	n, err := a.file.WriteString(now.UTC().Format("2006-01-02T15:04:05.000Z ") + text + "\n")
	a.size += int64(n)
	a.failed = err
}

func (a *audit) close() {
	if a.file != nil {
		a.file.Close()
	}
}
