// Command meshd is the brain of a cell: it speaks to other cells, holds the replicated state, decides
// what runs here, and asks the helpers to do it. It needs no privilege. The launcher starts it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"colloid.net/internal/version"
	"colloid.net/ipc/supply"
	"colloid.net/ipc/uds"
	"colloid.net/meshd/control"
	"colloid.net/meshd/daemon"
	"colloid.net/meshd/state"
)

func main() {
	say := supply.TakeWords()
	options, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "meshd:", err)
		say(err)
		os.Exit(supply.ExitMisconfigured)
	}
	tune(options.KeysMax)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var misconfigured *daemon.ConfigurationError
	switch err := daemon.Run(ctx, options); {
	case errors.Is(err, daemon.ErrLeft):
		os.Exit(supply.ExitLeft)
	case errors.As(err, &misconfigured):
		fmt.Fprintln(os.Stderr, "meshd:", err)
		say(err)
		os.Exit(supply.ExitMisconfigured)
	case err != nil:
		fmt.Fprintln(os.Stderr, "meshd:", err)
		say(err)
		os.Exit(1)
	}
}

// Bounds of the Go runtime (F127, F128).
const (
	// processorsMin: the reactor's thread sleeps inside the kernel with a processor of the runtime in hand;
	// with a second one files and the command socket need not wait until it is taken away from it.
	processorsMin = 2
	// memoryBase and memoryPerKey make a limit that a healthy daemon never touches and a leaking one
	// reaches before it takes the host down: the collector then works harder instead of growing.
	memoryBase   = 256 << 20
	memoryPerKey = 4096
	keysDefault  = 65536
)

// tune applies them, unless the environment says otherwise.
func tune(keys uint32) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < processorsMin {
		runtime.GOMAXPROCS(processorsMin)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		if keys == 0 {
			keys = keysDefault
		}
		debug.SetMemoryLimit(memoryBase + int64(keys)*memoryPerKey)
	}
}

// withPort stands for an address whose port is that of the socket, which is not known yet.
func withPort(address netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(address.Addr(), cmp.Or(address.Port(), 1))
}

// joinKeyVariable holds the key of a locked cluster to join: command lines are readable by every user of
// a host, the environment of a process is not.
const joinKeyVariable = "COLLOID_JOIN_KEY"

func parse(arguments []string) (daemon.Options, error) {
	options := daemon.Options{Software: version.String(), SupplyFD: -1}
	flags := flag.NewFlagSet("meshd", flag.ContinueOnError)
	flags.StringVar(&options.Directory, "directory", "", "state `directory` of this cell (required)")
	flags.StringVar(&options.Socket, "socket", "", "`path` of the command socket (default DIRECTORY/colloid.sock)")
	flags.StringVar(&options.Driver, "driver", "auto", "socket `driver`: auto, io_uring or epoll")
	mapping := flags.String("port-mapping", "on", "`on` asks the router of a private network for an open port, off does not")
	search := flags.String("port-search", "on", "`on` finds a way through routers by many sockets where nothing else does, off stays relayed")
	flags.StringVar(&options.Hostname, "hostname", "", "`name` shown to operators (default: the host's)")
	flags.IntVar(&options.SupplyFD, "supply-fd", -1, "inherited `descriptor` on which the launcher sends helper connections")
	flags.Func("bind", "`address`[:port] to listen on (default: all addresses, port 12421)", func(s string) (err error) {
		options.Bind, err = uds.ParseEndpoint(s, 0)
		return err
	})
	flags.Func("advertise", "`address`[:port] where other cells reach this one; may be repeated", func(s string) error {
		address, err := uds.ParseEndpoint(s, 0)
		if err != nil {
			return err
		}
		if len(options.Advertise) == state.CandidatesMax {
			return fmt.Errorf("a cell has at most %d addresses", state.CandidatesMax)
		}
		options.Advertise = append(options.Advertise, address)
		if reachable := (state.Candidate{Address: withPort(address)}); reachable.Check() != nil {
			return fmt.Errorf("nobody can be reached at %s: want the address of one machine", address.Addr())
		}
		return nil
	})
	flags.Func("label", "`name=value` for constraints; may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" || len(s) > 120 {
			return fmt.Errorf("label %q: want name=value", s)
		}
		options.Labels = append(options.Labels, [2]string{name, value})
		return nil
	})
	flags.Func("join", "`host`[:port] of a cell to join, unless this cell is in a cluster already; may be repeated", func(s string) error {
		target, err := control.ParseTarget(s)
		if err == nil && target.Key == "" {
			target.Key = os.Getenv(joinKeyVariable)
		}
		options.Join = append(options.Join, target)
		return err
	})
	var keysMax uint
	flags.UintVar(&keysMax, "keys-max", 0, "most `keys` this cell stores (default 65536)")
	if err := flags.Parse(arguments); err != nil {
		return options, err
	}
	if *mapping != "on" && *mapping != "off" {
		return options, fmt.Errorf("port-mapping %q: want on or off", *mapping)
	}
	options.PortMapping = *mapping == "on"
	if *search != "on" && *search != "off" {
		return options, fmt.Errorf("port-search %q: want on or off", *search)
	}
	options.NoPortSearch = *search == "off"
	if flags.NArg() > 0 {
		return options, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if options.Directory == "" {
		return options, errors.New("--directory is required")
	}
	if options.Socket == "" {
		options.Socket = filepath.Join(options.Directory, "colloid.sock")
	}
	options.KeysMax = uint32(keysMax)
	options.Helpers = strings.FieldsFunc(os.Getenv(supply.HelpersVariable), func(r rune) bool { return r == ',' })
	return options, nil
}
