// Command runnerd runs workloads for meshd within the bounds of the host's policy. See
// docs/runnerd.md. "runnerd shim", "runnerd stage", "runnerd wasm-worker", "runnerd images" and "runnerd
// fetch" are internal.
//
// The Go runtime otherwise keeps files of the host's control groups open, in sandboxes too.
//
//go:debug containermaxprocs=0
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"colloid.net/internal/version"
	"colloid.net/ipc/supply"
	"colloid.net/runnerd"
	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
	"golang.org/x/sys/unix"
)

func main() {
	if exit, is := image.Children(); is {
		os.Exit(exit)
	}
	if exit, is := shim.Children(); is {
		os.Exit(exit)
	}
	if len(os.Args) == 2 && os.Args[1] == wasm.Argument {
		os.Exit(wasm.Main(shim.ExtraFirst))
	}
	say := supply.TakeWords()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		say(err)
		if permanent(err) {
			os.Exit(supply.ExitMisconfigured)
		}
		os.Exit(1)
	}
}

var errArguments = errors.New("runnerd: wrong arguments")

// permanent reports whether something lies in the state directory that only a person can move away, or the
// command line is wrong.
func permanent(err error) bool {
	for _, cause := range [...]error{errArguments, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EEXIST, unix.ENXIO, unix.EACCES, unix.EROFS} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

func run() error {
	supply := flag.Int("supply-fd", -1,
		"descriptor of the `socket` on which the launcher passes connections of meshd")
	listen := flag.Int("listen-fd", -1, "descriptor of a listening unix `socket`, for systemd")
	directory := flag.String("directory", "/var/lib/colloid/runnerd", "state `directory`")
	policy := flag.String("policy", "/etc/colloid/runnerd.policy", "policy `file`")
	credentials := flag.String("credentials", "/etc/colloid/registries.credentials",
		"`file` with users and passwords of registries")
	operators := flag.String("operator-socket", "", "`path` of the socket for colloid image")
	meshd := flag.Int64("meshd-uid", -1, "`uid` of meshd; default: meshd_user of the policy, else the own uid")
	flag.CommandLine.Init("runnerd", flag.ContinueOnError) // its own status for wrong arguments is that of a panic
	if err := flag.CommandLine.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return errArguments
	}
	if flag.NArg() > 0 || (*supply < 0) == (*listen < 0) {
		return fmt.Errorf("%w: exactly one of --supply-fd and --listen-fd is needed, and no arguments", errArguments)
	}
	shim.IsolateDescriptors()
	useShim()
	logger := log.New(os.Stderr, "runnerd: ", log.LstdFlags|log.LUTC)
	manager := groups(logger)
	supervisor, err := runnerd.Open(runnerd.Options{
		Directory: *directory, PolicyFile: *policy, Groups: manager, Worker: worker(),
		Software: version.String(), Log: logger,
		Credentials: *credentials,
	})
	if err != nil {
		return err
	}
	defer manager.Close()
	defer supervisor.Close()
	if *operators != "" {
		if err := supervisor.ServeOperators(*operators); err != nil {
			logger.Print(err) // the cell works without it
		}
	}
	ended := make(chan error, 1)
	go func() {
		if *supply >= 0 {
			ended <- supervisor.ServeSupply(os.NewFile(uintptr(*supply), "supply"), supervisor.Allowed(*meshd))
			return
		}
		ended <- supervisor.ServeListener(os.NewFile(uintptr(*listen), "listen"), supervisor.Allowed(*meshd))
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE)
	select {
	case err := <-ended:
		return err
	case <-signals:
		return nil
	}
}

// useShim takes the small program for shims that is installed beside this one. Without it runnerd is its own.
func useShim() {
	self, err := os.Executable()
	if err == nil {
		_ = shim.UseProgram(filepath.Join(filepath.Dir(self), "runnerd-shim"))
	}
}

// worker opens the small program for Wasm workers that is installed beside this one, once, as useShim does.
// Without it runnerd is its own. The descriptor is kept for good.
func worker() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	fd, err := unix.Open(filepath.Join(filepath.Dir(self), wasm.Program), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd)
}

// groups prepares control groups where the host allows it. Without them runnerd works, and says so.
func groups(logger *log.Logger) *cgroup.Manager {
	manager, err := cgroup.Detect(os.Getpid())
	if err == nil {
		return manager
	}
	logger.Printf("no control groups: %v", err)
	return nil
}
