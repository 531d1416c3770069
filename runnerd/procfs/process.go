// Package procfs identifies and kills processes safely under reuse of process ids. A process is
// named by its id together with its start time in clock ticks (field 22 of /proc/PID/stat): the pair
// never names two processes of one boot (F134). Signals go through a pidfd that was opened before
// the start time was compared, so they reach that process or nobody.
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process of this boot. The zero value names none.
type Process struct {
	PID        int
	StartTicks uint64
}

// stat is what is read of /proc/PID/stat.
type stat struct {
	Process
	state   byte
	parent  int
	session int
}

var errStat = errors.New("procfs: stat has another form")

// readStat reads one process. The name in parentheses may hold anything, so fields count from the
// last parenthesis.
func readStat(pid int) (stat, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, text)
}

func parseStat(pid int, text []byte) (stat, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errStat
	}
	fields := strings.Fields(string(text[end+1:])) // field 3 (state) is index 0
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, errStat
	}
	s := stat{Process: Process{PID: pid}, state: fields[0][0]}
	var err1, err2, err3 error
	s.parent, err1 = strconv.Atoi(fields[1])
	s.session, err2 = strconv.Atoi(fields[3])
	s.StartTicks, err3 = strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return stat{}, errStat
	}
	return s, nil
}

// Find names the process that now has the id, dead ones that nobody has collected included.
func Find(pid int) (Process, error) {
	s, err := readStat(pid)
	return s.Process, err
}

// Alive reports whether the process still runs. A zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	s, err := readStat(p.PID)
	return err == nil && s.Process == p && s.state != 'Z' && s.state != 'X'
}

// errGone says that the process has ended.
var errGone = errors.New("procfs: process has ended")

// Open gives a pidfd of exactly this process. The descriptor becomes readable when the process ends.
func (p Process) Open() (int, error) {
	if p.PID <= 0 {
		return -1, errGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1, errGone
	}
	if now, err := Find(p.PID); err != nil || now != p {
		unix.Close(fd)
		return -1, errGone
	}
	return fd, nil
}

// Signal sends a signal to exactly this process; it is no error if that has ended.
func (p Process) Signal(signal unix.Signal) error {
	fd, err := p.Open()
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("procfs: signal %d to process %d: %w", signal, p.PID, err)
	}
	return nil
}

// Wait blocks until the process ends, the time is over or cancel is closed, and reports whether it
// has ended. It parks a goroutine, not a thread.
func (p Process) Wait(timeout time.Duration, cancel <-chan struct{}) bool {
	fd, err := p.Open()
	if err != nil {
		return true
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	ended := make(chan struct{})
	raw, err := file.SyscallConn()
	if err != nil {
		return !p.Alive()
	}
	go func() {
		defer close(ended)
		_ = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
	}()
	var over <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ended:
	case <-over:
	case <-cancel:
	}
	return !p.Alive()
}

// BootID names this boot of the kernel; start ticks of another boot mean nothing.
func BootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture Go runs Linux on.
const ticksPerSecond = 100

// Age is how long ago the process started.
func (p Process) Age() time.Duration {
	return max(0, BootTime()-time.Duration(p.StartTicks)*(time.Second/ticksPerSecond))
}

// BootTime is the time since the kernel started, suspension included. It goes on when daemons are restarted.
func BootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("procfs: clock: %v", err))
	}
	return time.Duration(now.Nano())
}

// MemoryMiB is the memory of the host.
func MemoryMiB() uint32 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return uint32(uint64(info.Totalram) * uint64(info.Unit) >> 20)
}
