package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// LogFileMax bounds one of the two log files (F147).
const LogFileMax = 10 << 20

const (
	drainBuffer = 16 << 10
	// pauseOverRate is how long the drain rests when the output is over its rate. The pipe then fills
	// and slows the writer down instead of burning a processor for bytes that are thrown away.
	pauseOverRate = 10 * time.Millisecond
	burstSeconds  = 4 // a start may be chatty
)

// boundedLog keeps the last output in two files and throws away what comes too fast.
type boundedLog struct {
	directory string
	fileMax   int64
	rate      float64 // bytes per second, 0 = unlimited
	tokens    float64
	refilled  time.Time
	file      *os.File
	size      int64
	times     timesFile
	dropped   int64 // in all
	unmarked  int64 // of it not yet mentioned in the log
	saved     int64 // of it in the file dropped
}

func openLog(directory string, rate int) (*boundedLog, error) {
	l := &boundedLog{directory: directory, fileMax: LogFileMax, rate: float64(rate), refilled: time.Now()}
	l.tokens = l.rate * burstSeconds
	if text, err := os.ReadFile(l.path(FileDropped)); err == nil {
		l.dropped, _ = strconv.ParseInt(string(text), 10, 64)
		l.saved = l.dropped
	}
	return l, l.open()
}

func (l *boundedLog) path(name string) string { return l.directory + "/" + name }

func (l *boundedLog) open() error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND | unix.O_NOFOLLOW
	file, err := os.OpenFile(l.path(FileLog), flags, 0o600)
	if err != nil {
		return err
	}
	l.file = file
	if info, err := file.Stat(); err == nil {
		l.size = info.Size()
	}
	l.times.open(l.path(FileTimes), file)
	return nil
}

// write takes all of data, keeps what the rate allows and reports whether something was dropped.
func (l *boundedLog) write(now time.Time, data []byte) (over bool) {
	if l.rate > 0 {
		l.tokens = min(l.rate*burstSeconds, l.tokens+now.Sub(l.refilled).Seconds()*l.rate)
		l.refilled = now
		if float64(len(data)) > l.tokens {
			l.dropped += int64(len(data))
			l.unmarked += int64(len(data))
			return true
		}
		l.tokens -= float64(len(data))
	}
	l.mark(now)
	l.append(now, data)
	return false
}

// mark says in the log what was dropped since the last mark.
func (l *boundedLog) mark(now time.Time) {
	if l.unmarked > 0 {
		mark := fmt.Sprintf("\n[runnerd: %d bytes of output dropped, over %d bytes per second]\n",
			l.unmarked, int(l.rate))
		l.unmarked = 0
		l.append(now, []byte(mark))
	}
}

func (l *boundedLog) append(now time.Time, data []byte) {
	if l.size+int64(len(data)) > l.fileMax || l.times.full() {
		l.rotate()
	}
	if l.file == nil {
		l.dropped += int64(len(data))
		return
	}
	l.times.stamp(now, l.size)
	n, err := l.file.Write(data)
	l.size += int64(n)
	if err != nil { // a full disk costs output, never the workload
		l.dropped += int64(len(data) - n)
	}
}

func (l *boundedLog) rotate() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
	if err := os.Rename(l.path(FileLog), l.path(FileLogOld)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = os.Truncate(l.path(FileLog), 0) // the bound matters more than the old half
	}
	l.times.close()
	_ = os.Rename(l.path(FileTimes), l.path(FileTimesOld)) // one that does not fit its log is not believed
	l.size = 0
	_ = l.open()
}

func (l *boundedLog) saveDropped() {
	if l.dropped == l.saved {
		return
	}
	l.saved = l.dropped
	_ = os.WriteFile(l.path(FileDropped), strconv.AppendInt(nil, l.dropped, 10), 0o600)
}

// drain copies the pipe to the log until all writers have closed it.
func (l *boundedLog) drain(pipe io.Reader) {
	buffer := make([]byte, drainBuffer)
	for saved := time.Now(); ; {
		n, err := pipe.Read(buffer)
		now := time.Now()
		if n > 0 && l.write(now, buffer[:n]) {
			time.Sleep(pauseOverRate)
		}
		if now.Sub(saved) > time.Second {
			saved = now
			l.saveDropped()
		}
		if err != nil {
			break
		}
	}
	l.mark(time.Now())
	l.saveDropped()
	if l.file != nil {
		l.file.Close()
	}
	l.times.close()
}

// Drain keeps what comes out of a pipe in directory, as a shim does, until it ends. Rate is in bytes per second,
// 0 = unlimited.
func Drain(directory string, rate int, pipe io.Reader) error {
	log, err := openLog(directory, rate)
	if err != nil {
		return err
	}
	log.drain(pipe)
	return nil
}
