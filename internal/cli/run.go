package cli

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"colloid.net/internal/launcher"
	"colloid.net/ipc/operator"
	"colloid.net/ipc/uds"
	"colloid.net/workload"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// PortDefault is the UDP port of a cell.
const PortDefault = 12421

// runFlags describe the cell that the launcher starts.
type runFlags struct {
	directory  string
	bind       string
	advertises []string
	joins      []string
	labels     []string
	user       string
	policy     string
	accounts   string // file of credentials
	driver     string
	mapping    string
	search     string
}

func (f *runFlags) register(all *pflag.FlagSet) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringVar(&f.directory, "directory", "", "state directory (default $COLLOID_DIR, or the system's)")
	flags.StringVar(&f.bind, "bind", "", "ADDR[:PORT] to listen on (default every address, port 12421)")
	flags.StringArrayVar(&f.joins, "join", nil, "HOST[:PORT][#KEY] of a cell to join; may be repeated")
	flags.StringArrayVar(&f.advertises, "advertise", nil, "ADDR[:PORT] where others reach this cell; may be repeated")
	flags.StringArrayVar(&f.labels, "label", nil, "NAME=VALUE for constraints of workloads; may be repeated")
	flags.StringVar(&f.user, "user", "", "who meshd runs as when root starts it (default colloid, else a spare user id)")
	flags.StringVar(&f.policy, "policy", "", "file that says what this host lets workloads do")
	flags.StringVar(&f.accounts, "credentials", "", "file with users and passwords of registries")
	flags.StringVar(&f.driver, "driver", "", "how meshd uses its socket: auto, io_uring or epoll")
	flags.StringVar(&f.mapping, "port-mapping", "", "off: do not ask the router of a private network for an open port")
	flags.StringVar(&f.search, "port-search", "", "off: find no way through routers by many sockets, stay relayed")
	markDaemonFlags(flags)
	all.AddFlagSet(flags)
}

// environmentJoinKey carries the key of a locked cluster to meshd; a command line can be read by
// every user of the host.
const environmentJoinKey = "COLLOID_JOIN_KEY"

// runAppliance starts this machine's cell and stays until it is stopped. first, if there is one, is done as
// soon as the daemon answers; when it fails, the cell is stopped again and its error is the result.
func (a *app) runAppliance(ctx context.Context, first func(*session) error) error {
	options, err := a.launcherOptions()
	if err != nil {
		return err
	}
	a.endsItself.Store(true) // it stops daemons
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	announced := make(chan struct{})
	go func() {
		defer close(announced)
		if err := a.announce(ctx, filepath.Join(options.RunDirectory, launcher.SocketName), first); err != nil {
			cancel(err)
		}
	}()
	var unusable *launcher.DirectoryError
	switch err := launcher.Run(ctx, options); {
	case errors.Is(err, launcher.ErrMisconfigured), errors.As(err, &unusable):
		return fail(ExitConfiguration, "%w", err)
	case err != nil:
		return fail(ExitError, "%w", err)
	}
	var f *failure
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	cancel(nil)
	<-announced
	return nil
}

// socketPathMax is what the kernel takes for the address of a Unix socket, without the final zero.
const socketPathMax = 107

func (a *app) launcherOptions() (launcher.Options, error) {
	o := launcher.Options{Directory: a.run.directory, Output: os.Stderr, Log: log.New(a.Errors, "colloid: ", 0)}
	if o.Directory == "" {
		o.Directory = launcher.DefaultDirectory(a.Root, a.Variable)
	}
	if o.Directory == "" {
		return o, fail(ExitUsage, "neither $HOME nor $COLLOID_DIR is set: choose a state directory with --directory")
	}
	absolute, err := filepath.Abs(o.Directory)
	if err != nil {
		return o, fail(ExitUsage, "%w", err)
	}
	o.Directory = absolute
	o.RunDirectory = launcher.RunDirectory(absolute)
	if socket := filepath.Join(o.RunDirectory, launcher.SocketName); len(socket) > socketPathMax {
		return o, fail(ExitUsage, "the socket %s would have a path of %d bytes, the kernel takes %d: choose a shorter --directory",
			socket, len(socket), socketPathMax)
	}
	if a.Root {
		identity, err := launcher.LookupIdentity(a.run.user)
		if err != nil {
			return o, fail(ExitUsage, "%w", err)
		}
		o.Identity = &identity
	} else if a.run.user != "" {
		return o, fail(ExitUsage, "--user %s: only root can start meshd as another user", a.run.user)
	}
	if o.Meshd, err = a.meshdProgram(o); err != nil {
		return o, err
	}
	o.Helpers, err = a.helperPrograms(o)
	return o, err
}

func (a *app) meshdProgram(o launcher.Options) (launcher.Program, error) {
	p := launcher.Program{Name: "meshd", Confinement: launcher.Confinement{Identity: o.Identity,
		Bounded: a.Root, NoNewPrivileges: true}}
	path, err := launcher.FindBinary("meshd", a.Variable)
	if err != nil {
		return p, fail(ExitError, "%w", err)
	}
	p.Path = path
	p.Arguments = []string{"--directory", launcher.ProgramDirectory(o.Directory, p.Name),
		"--socket", filepath.Join(o.RunDirectory, launcher.SocketName)}
	if a.run.bind != "" {
		bind, err := parseEndpoint("--bind", a.run.bind)
		if err != nil {
			return p, err
		}
		p.Arguments = append(p.Arguments, "--bind", bind.String())
	}
	for _, text := range a.run.advertises {
		advertise, err := parseEndpoint("--advertise", text)
		if err != nil {
			return p, err
		}
		switch address := advertise.Addr(); {
		case address.IsUnspecified():
			return p, fail(ExitUsage, "--advertise %q: every address is none to be reached at: name one", text)
		case address.Zone() != "":
			return p, fail(ExitUsage, "--advertise %q: the zone behind %% says nothing to other machines: name an address "+
				"that is the same everywhere", text)
		}
		p.Arguments = append(p.Arguments, "--advertise", advertise.String())
	}
	if count := len(a.run.advertises); count > advertisesMax {
		return p, fail(ExitUsage, "--advertise is given %d times: a cell has at most %d addresses", count, advertisesMax)
	}
	labels := map[string]bool{}
	for _, label := range a.run.labels {
		if err := workload.CheckLabel(label); err != nil {
			return p, fail(ExitUsage, "--label %w", err)
		}
		name, _, _ := strings.Cut(label, "=")
		if labels[name] {
			return p, fail(ExitUsage, "--label %q: a cell has one value of each label, and this one has another already", label)
		}
		labels[name] = true
		p.Arguments = append(p.Arguments, "--label", label)
	}
	switch a.run.driver {
	case "":
	case "auto", "io_uring", "epoll":
		p.Arguments = append(p.Arguments, "--driver", a.run.driver)
	default:
		return p, fail(ExitUsage, "--driver %s: there are auto, io_uring and epoll", a.run.driver)
	}
	switch a.run.mapping {
	case "":
	case "on", "off":
		p.Arguments = append(p.Arguments, "--port-mapping", a.run.mapping)
	default:
		return p, fail(ExitUsage, "--port-mapping %s: there are on and off", a.run.mapping)
	}
	switch a.run.search {
	case "":
	case "on", "off":
		p.Arguments = append(p.Arguments, "--port-search", a.run.search)
	default:
		return p, fail(ExitUsage, "--port-search %s: there are on and off", a.run.search)
	}
	return p, a.addJoins(&p)
}

// addJoins passes the seeds on the command line and the key, of which there is one, in the
// environment of meshd alone.
func (a *app) addJoins(p *launcher.Program) error {
	key := ""
	for _, text := range a.run.joins {
		t, err := parseTarget(text)
		if err != nil {
			return err
		}
		if t.Key != "" && key != "" && t.Key != key {
			return fail(ExitUsage, "--join %s: this key differs from that of another --join, and a cell joins one cluster",
				t.Address())
		}
		if t.Key != "" {
			key = t.Key
		}
		p.Arguments = append(p.Arguments, "--join", t.Address())
	}
	if key != "" {
		p.Environment = append(p.Environment, environmentJoinKey+"="+key)
	}
	return nil
}

// runnerdCapabilities are what runnerd and its children cannot do without. Making and filling control
// groups needs none, since root owns those files. runnerd's child that keeps images gives up all but its
// own share, its child that fetches them has none.
var runnerdCapabilities = []uintptr{
	unix.CAP_KILL,         // stop workloads that run as other users
	unix.CAP_SETUID,       // start a workload as its user
	unix.CAP_SETGID,       // and with that user's groups only
	unix.CAP_CHOWN,        // give a workload its scratch directory
	unix.CAP_DAC_OVERRIDE, // read and remove what workloads left there
	unix.CAP_SYS_ADMIN,    // images: mount the root of a container, map its ids; containers: copy mounts for them
	unix.CAP_SYS_CHROOT,   // images: unpack a layer in a process that sees nothing else
	unix.CAP_FOWNER,       // images: set modes and times of unpacked files
	unix.CAP_FSETID,       // images: keep their set-user-id bits
	unix.CAP_SETFCAP,      // images: keep their file capabilities
	unix.CAP_MKNOD,        // images: whiteouts of overlays are device nodes 0/0
	// Networks of containers.
	unix.CAP_NET_ADMIN,        // bridge, addresses, rules of nf_tables
	unix.CAP_NET_BIND_SERVICE, // port 53 of the bridge, for meshd
}

// helperPrograms are the helpers that are installed. One that is missing is a degradation, not an
// error: status shows it.
func (a *app) helperPrograms(o launcher.Options) ([]launcher.Program, error) {
	path, err := launcher.FindBinary("runnerd", a.Variable)
	if errors.Is(err, launcher.ErrNoBinary) {
		a.talk("colloid: runnerd is not installed: this cell runs no workloads")
		return nil, nil
	}
	if err != nil {
		return nil, fail(ExitError, "%w", err)
	}
	p := launcher.Program{Name: "runnerd", Path: path,
		Arguments: []string{"--directory", launcher.ProgramDirectory(o.Directory, "runnerd"),
			"--operator-socket", filepath.Join(o.RunDirectory, operator.SocketName)},
		Confinement: launcher.Confinement{Bounded: a.Root, Capabilities: runnerdCapabilities}}
	for _, file := range []struct{ flag, path string }{{"--policy", a.run.policy}, {"--credentials", a.run.accounts}} {
		if file.path == "" {
			continue
		}
		path, err := filepath.Abs(file.path)
		if err != nil {
			return nil, fail(ExitUsage, "%s: %w", file.flag, err)
		}
		p.Arguments = append(p.Arguments, file.flag, path)
	}
	return []launcher.Program{p}, nil
}

// parseEndpoint reads [ADDR][:PORT] and adds the default port.
func parseEndpoint(flag, text string) (netip.AddrPort, error) {
	given := text
	if strings.HasPrefix(text, ":") && !strings.HasPrefix(text, "::") {
		given = "[::]" + text
	}
	pair, err := uds.ParseEndpoint(given, PortDefault)
	if err != nil {
		return pair, fail(ExitUsage, "%s: %w", flag, err)
	}
	return pair, nil
}

// advertisesMax is how many addresses meshd can tell others.
const advertisesMax = 4

// announceInterval is the pause between two looks at a daemon that starts or joins.
const announceInterval = 100 * time.Millisecond

// announce tells the operator when the cell is up and what to do next, and what keeps it from being what was
// asked for. The error is that of first.
func (a *app) announce(ctx context.Context, socket string, first func(*session) error) error {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(announceInterval):
		}
		client, err := uds.Dial(socket)
		if err != nil {
			continue
		}
		s := &session{client, socket}
		reply, err := s.hello()
		if err == nil && first != nil {
			if err := first(s); err != nil {
				client.Close()
				return err
			}
			first = nil
			reply, err = s.hello()
		}
		client.Close()
		switch {
		case err != nil || reply.State != "active":
		case reply.Joining == "":
			a.announceUp(reply, socket)
			return nil
		case said != reply.Joining && strings.HasPrefix(reply.Joining, "not "):
			said = reply.Joining
			a.talk("colloid: cell %s runs but is %s; it is a cluster of its own for now", reply.Cell, printable(said))
		}
	}
}

func (a *app) announceUp(reply *uds.HelloReply, socket string) {
	use := ""
	if a.Variable(launcher.EnvironmentDirectory) == "" && a.run.directory != "" {
		use = fmt.Sprintf(" --socket %s", socket)
	}
	a.talk("colloid: cell %s is up. Look: colloid%s status. Run something: colloid%s apply -f FILE.\n"+
		"colloid: control-C stops the daemons, workloads go on; `colloid%s leave` stops both",
		reply.Cell, use, use, use)
}
