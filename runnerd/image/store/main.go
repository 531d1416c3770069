package store

import (
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.podman.io/storage/pkg/reexec"
	"golang.org/x/sys/unix"

	"colloid.net/ipc/packet"
)

// Argument is what `runnerd images` is called with. The directory and how long it stays without work
// follow; descriptor 3 is the socket to runnerd.
const Argument = "images"

// socketDescriptor is the first one that exec passes on.
const socketDescriptor = 3

// capabilitiesKept are what the process keeps of root's rights.
var capabilitiesKept = []uint{
	unix.CAP_SYS_ADMIN,    // mount overlays, map ids of mounts, mark directories as opaque (trusted.overlay)
	unix.CAP_SYS_CHROOT,   // the child that unpacks makes the layer its root directory
	unix.CAP_CHOWN,        // files of an image belong to many users
	unix.CAP_DAC_OVERRIDE, // and are unpacked and removed whatever their mode
	unix.CAP_FOWNER,       // their modes and times are set
	unix.CAP_FSETID,       // set-user-id bits of an image stay
	unix.CAP_SETFCAP,      // file capabilities of an image stay
	unix.CAP_MKNOD,        // whiteouts are character devices 0/0, which older kernels do not give away
	unix.CAP_SETUID,       // write the id map of a user namespace
	unix.CAP_SETGID,       // and that of groups
}

// Reexec runs what the library starts this program for, and reports whether it did. It is the first
// thing in main of every program that uses this package.
func Reexec() bool { return reexec.Init() }

// Main is the process `runnerd images DIRECTORY IDLE`.
func Main(arguments []string) int {
	logger := log.New(os.Stderr, "runnerd images: ", log.LstdFlags|log.LUTC)
	if len(arguments) != 2 {
		logger.Print("this is started by runnerd")
		return 2
	}
	idle, err := time.ParseDuration(arguments[1])
	if err == nil {
		err = run(arguments[0], idle)
	}
	if err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}

func run(directory string, idle time.Duration) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signal.Ignore(syscall.SIGINT) // a control-C is for the launcher; runnerd hangs up in its turn
	conn, err := packet.Open(os.NewFile(socketDescriptor, "runnerd"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := dropRights(); err != nil {
		return err
	}
	unix.Umask(0o022)
	s, err := Open(directory)
	if err != nil {
		// The first request gets the answer; without it runnerd would only see a process that ends.
		var request Request
		if _, receiveErr := conn.Receive(&request); receiveErr == nil {
			_ = conn.Send(Reply{ID: request.ID, Done: true, Error: shorten("image store: " + err.Error())}, nil)
		}
		return err
	}
	defer s.Close()
	return s.Serve(conn, idle)
}

// dropRights keeps capabilitiesKept. With no_new_privs no program that is started from here gets more.
func dropRights() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("set no_new_privs: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, keep [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, number := range capabilitiesKept {
		bit := have[number/32].Permitted & (1 << (number % 32)) // asking for more than there is would fail
		keep[number/32].Permitted |= bit
		keep[number/32].Effective |= bit
	}
	return setCapabilities(&header, &keep)
}
