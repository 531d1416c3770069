package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"colloid.net/ipc/supply"
	"golang.org/x/sys/unix"
)

// The test binary plays the children: roleVariable says which, journalVariable where to write what
// happened, one line an event, in one write each.
const (
	roleVariable    = "LAUNCHER_TEST_ROLE"
	journalVariable = "LAUNCHER_TEST_JOURNAL"
	nameVariable    = "LAUNCHER_TEST_NAME"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	os.Exit(m.Run())
}

func playRole(role string) int {
	switch role {
	case "crash":
		note("crashes")
		return 1
	case "panic":
		supply.TakeWords()
		note("panics")
		panic("the invariant does not hold")
	case "misconfigured":
		supply.TakeWords()(errors.New("no such policy"))
		return supply.ExitMisconfigured
	case "leave":
		note("leaves")
		return supply.ExitLeft
	case "launcher":
		return playLauncher()
	}
	note("starts")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		playConnections()
		close(ended)
	}()
	for {
		select {
		case <-signals:
			if role == "stubborn" {
				note("ignores")
				continue
			}
			note("stops")
			return 0
		case <-ended:
			note("orphaned")
			return 0
		}
	}
}

// playConnections tells each supplied connection who it is and notes who the other side says it is.
func playConnections() {
	receiver, err := supply.NewReceiver(supplyDescriptor)
	if err != nil {
		note("no supply: " + err.Error())
		return
	}
	receiver.Notices = func(n supply.Notice) {
		note(fmt.Sprintf("hears that %s ended %d times, down %v: %s", n.Program, n.Ends, n.Down, n.Reason))
	}
	for {
		name, connection, err := receiver.Next()
		if err != nil {
			return
		}
		go func(c *net.UnixConn) {
			fmt.Fprintf(c, "%s %d\n", os.Getenv(nameVariable), os.Getpid())
			if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				note("as " + name + " meets " + line[:len(line)-1])
			}
		}(connection)
	}
}

// note appends "<name> <pid> <event>" to the journal.
func note(event string) {
	file, err := os.OpenFile(os.Getenv(journalVariable), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintf(file, "%s %d %s\n", os.Getenv(nameVariable), os.Getpid(), event)
}

// playLauncher runs a launcher in a process of its own, to be killed.
func playLauncher() int {
	directory := filepath.Dir(os.Getenv(journalVariable))
	options := testOptions(directory, "meshd", "runnerd")
	if err := Run(testContext(), options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// alive reports whether a process exists and has not ended.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	var id int
	var name string
	var state byte
	if _, err := fmt.Sscanf(string(stat), "%d %s %c", &id, &name, &state); err != nil {
		return unix.Kill(pid, 0) == nil
	}
	return state != 'Z' && state != 'X'
}
