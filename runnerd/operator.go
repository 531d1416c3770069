package runnerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/operator"
	"colloid.net/ipc/packet"
	"colloid.net/ipc/uds"
	"colloid.net/runnerd/image"
)

const (
	operatorsMax     = 16 // connections at a time
	operatorPatience = 5 * time.Second
	operatorMode     = 0o660
)

// operators serves the socket of package operator. It never touches the loop's state but through do.
type operators struct {
	supervisor *Supervisor
	listener   *net.UnixListener
	group      int64 // whose members are served, -1 = there is no such group
	slots      chan struct{}
}

// ServeOperators listens at a path for the host's operators until Close. The directory may belong to
// meshd: whoever replaces the socket there can fool nobody, since the command line looks at who serves it.
func (s *Supervisor) ServeOperators(path string) error {
	o := &operators{supervisor: s, group: -1, slots: make(chan struct{}, operatorsMax)}
	if group, err := user.LookupGroup(uds.GroupWrite); err == nil {
		if number, err := strconv.ParseUint(group.Gid, 10, 32); err == nil {
			o.group = int64(number)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("runnerd: remove the old socket: %w", err)
	}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("runnerd: listen for operators: %w", err)
	}
	if err := o.protect(path); err != nil {
		listener.Close()
		return fmt.Errorf("runnerd: protect the socket of operators: %w", err)
	}
	o.listener = listener
	go func() { <-s.quit; listener.Close() }()
	go o.serve()
	return nil
}

// protect sets mode and group of the very socket that was made: meshd could exchange the name meanwhile.
func (o *operators) protect(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK || int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not what was made there", path)
	}
	name := fmt.Sprintf("/proc/self/fd/%d", fd)
	if o.group >= 0 {
		if err := os.Chown(name, -1, int(o.group)); err != nil {
			o.supervisor.options.Log.Printf("group %s cannot use %s: %v", uds.GroupWrite, path, err)
		}
	}
	return os.Chmod(name, operatorMode)
}

func (o *operators) serve() {
	for {
		socket, err := o.listener.Accept()
		if err != nil {
			select {
			case <-o.supervisor.quit:
			default:
				o.supervisor.options.Log.Printf("operators are served no more: %v", err)
			}
			return
		}
		select {
		case o.slots <- struct{}{}:
			go func() { defer func() { <-o.slots }(); o.connection(socket) }()
		default:
			socket.Close() // the command line says that runnerd hung up
		}
	}
}

func (o *operators) connection(socket net.Conn) {
	conn, err := packet.Over(socket)
	if err != nil {
		return
	}
	defer conn.Close()
	var request operator.Request
	_ = socket.SetReadDeadline(time.Now().Add(operatorPatience))
	file, err := conn.Receive(&request)
	if err != nil {
		return
	}
	if file != nil {
		defer file.Close()
	}
	// The request is read first: what is unread when a socket closes takes the answer with it.
	who, err := o.admit(conn)
	if err != nil {
		_ = conn.Send(operator.Reply{Error: err.Error()}, nil)
		return
	}
	_ = socket.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // whoever hangs up wants it no more
		var more operator.Request
		surplus, _ := conn.Receive(&more)
		if surplus != nil {
			surplus.Close()
		}
		cancel()
	}()
	send := func(r operator.Reply) { _ = conn.Send(r, nil) }
	err = o.carryOut(ctx, &request, file, send)
	o.supervisor.note(who, &request, err)
	if err != nil {
		send(operator.Reply{Error: limitText(err.Error(), operatorErrorMax), Usage: errors.As(err, new(usageError))})
		return
	}
	send(operator.Reply{Done: true})
}

const operatorErrorMax = 4096

// usageError is one of the request itself.
type usageError struct{ error }

func limitText(text string, limit int) string {
	if len(text) > limit {
		return text[:limit] + "..."
	}
	return text
}

// admit looks at who connected.
func (o *operators) admit(conn *packet.Conn) (peer, error) {
	uid, pid, err := conn.Credentials()
	if err != nil {
		return peer{}, errors.New("it cannot be told who asks")
	}
	who := peer{uid: int64(uid), pid: pid}
	if uid == 0 || int(uid) == os.Geteuid() {
		return who, nil
	}
	if groups, err := conn.Groups(); err == nil && o.group >= 0 && slices.Contains(groups, uint32(o.group)) {
		return who, nil
	}
	return who, fmt.Errorf("permission denied: become root or a member of group %s", uds.GroupWrite)
}

// note writes down what changed something.
func (s *Supervisor) note(who peer, request *operator.Request, err error) {
	if request.Operation == operator.OperationList || request.Operation == operator.OperationResolve {
		return
	}
	decision := "done"
	if err != nil {
		decision = err.Error()
	}
	s.do(func() { s.audit.write(who, 0, "image "+request.Operation+" "+quoteKey(request.Reference), decision) })
}

func (o *operators) carryOut(ctx context.Context, q *operator.Request, file *os.File, send func(operator.Reply)) error {
	if q.Version != operator.Version {
		return fmt.Errorf("the command line speaks version %d with runnerd, this runnerd %d: install both of one release",
			q.Version, operator.Version)
	}
	images := o.supervisor.images
	progress := throttle(func(p image.Progress) {
		send(operator.Reply{Progress: &operator.Progress{Text: p.String(), Bytes: p.Bytes, Total: p.Total}})
	})
	show := func(list []image.Image, err error) error {
		for i := range list {
			send(operator.Reply{Image: describeImage(&list[i])})
		}
		return err
	}
	switch q.Operation {
	case operator.OperationPull:
		return o.pull(ctx, q.Reference, progress, show)
	case operator.OperationLoad:
		if file == nil {
			return errors.New("the request carries no file")
		}
		if !image.IsModule(file) {
			if err := o.useful(); err != nil {
				return err
			}
		}
		return show(images.Load(ctx, file, progress))
	case operator.OperationList:
		return show(o.list(ctx))
	case operator.OperationPrune:
		return show(o.prune(ctx))
	case operator.OperationRemove:
		return o.remove(ctx, q.Reference)
	case operator.OperationResolve:
		if err := o.allowed(q.Reference); err != nil {
			return err
		}
		r, err := images.Resolve(ctx, q.Reference)
		if err == nil {
			send(operator.Reply{Resolved: &operator.Resolved{Reference: r.Reference, Digest: r.Digest.String(),
				Architectures: r.Architectures, Loaded: r.Loaded}})
		}
		return err
	}
	return fmt.Errorf("operation %.40q is unknown", q.Operation)
}

// allowed asks the policy about an image.
func (o *operators) allowed(reference string) error {
	_, repository, err := image.Normalize(reference)
	if err != nil {
		return usageError{fmt.Errorf("%.200q is no reference of an image: %w", reference, err)}
	}
	o.supervisor.do(func() { err = o.supervisor.policy.CheckImage(repository) })
	return err
}

// useful refuses to bring images to a host that runs none. What a tag means may be asked there: the cluster runs it
// elsewhere.
func (o *operators) useful() (err error) {
	o.supervisor.do(func() { err = o.supervisor.policy.CheckContainers() })
	if err != nil {
		err = fmt.Errorf("%w: an image is of no use here", err)
	}
	return err
}
