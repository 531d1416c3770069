package runnerd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/operator"
	"colloid.net/ipc/packet"
	"colloid.net/ipc/uds"
	"colloid.net/runnerd/image"
	"colloid.net/runnerd/image/manifest"
	"colloid.net/workload"
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

func (o *operators) pull(ctx context.Context, reference string, progress func(image.Progress),
	show func([]image.Image, error) error,
) error {
	if err := o.allowed(reference); err != nil {
		return err
	}
	if err := o.useful(); err != nil {
		return err
	}
	var digest image.Digest
	if _, text, pinned := strings.Cut(reference, "@"); pinned {
		var err error
		if digest, err = manifest.ParseDigest(text); err != nil {
			return usageError{fmt.Errorf("%.200q is no reference of an image: %w", reference, err)}
		}
	}
	pulled, err := o.supervisor.images.Pull(ctx, reference, digest, progress)
	if err != nil {
		return err
	}
	return show([]image.Image{pulled}, nil)
}

// list gives the images that are here. What uses one is not its mounted root alone: an instance that waits for its
// next start has none, and needs the image then.
func (o *operators) list(ctx context.Context) ([]image.Image, error) {
	list, err := o.supervisor.images.List(ctx)
	o.supervisor.do(func() {
		for i := range list {
			list[i].Users = max(list[i].Users, len(o.supervisor.instancesOf(list[i].Digest)))
		}
	})
	slices.SortFunc(list, func(a, b image.Image) int { // by name, those without one last
		byName := cmp.Compare(len(b.References), len(a.References))
		if len(a.References) > 0 && len(b.References) > 0 {
			byName = strings.Compare(a.References[0], b.References[0])
		}
		return cmp.Or(byName, bytes.Compare(a.Digest[:], b.Digest[:]))
	})
	return list, err
}

// instancesOf lists the workloads of the instances of an image or module that run or shall run, one each.
func (s *Supervisor) instancesOf(digest image.Digest) (keys []string) {
	for _, i := range s.instances {
		if i.phase != phaseDenied && i.spec != nil && i.spec.Runtime != workload.RuntimeProcess && i.spec.ImageDigest == digest {
			keys = append(keys, i.key)
		}
	}
	slices.Sort(keys)
	return keys
}

// inUse says why an image stays.
func (o *operators) inUse(i *image.Image) error {
	var keys []string
	o.supervisor.do(func() { keys = slices.Compact(o.supervisor.instancesOf(i.Digest)) })
	who := strings.Join(keys[:min(len(keys), 3)], ", ")
	if len(keys) > 3 {
		who += fmt.Sprintf(" and %d more", len(keys)-3)
	}
	if who == "" {
		return fmt.Errorf("image %s is in use by %d instances here that are just ending: try again", i.Digest, i.Users)
	}
	return fmt.Errorf("image %s is in use by %d instances here, of %s: delete the workload, or have it run elsewhere", i.Digest,
		i.Users, who)
}

// prune removes the images that no instance uses.
func (o *operators) prune(ctx context.Context) (removed []image.Image, err error) {
	list, err := o.list(ctx)
	for _, i := range list {
		if i.Users > 0 || err != nil {
			continue
		}
		if err = o.supervisor.images.Remove(ctx, i.Digest); err == nil {
			removed = append(removed, i)
		}
	}
	return removed, err
}

// remove finds an image by digest, the beginning of one, or name. Of several names one goes, and nothing else with it.
func (o *operators) remove(ctx context.Context, what string) error {
	if what == "" {
		return usageError{errors.New("name an image, or the beginning of its digest: see `colloid image ls`")}
	}
	list, err := o.list(ctx)
	if err != nil {
		return err
	}
	digits := strings.TrimPrefix(what, "sha256:")
	var found []image.Image
	var names []string // of the first one found
	for _, i := range list {
		called := namesLike(i.References, what)
		if len(called) > 0 || len(digits) >= digitsMin && strings.HasPrefix(i.Digest.Hex(), digits) {
			if len(found) == 0 {
				names = called
			}
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return fmt.Errorf("there is no image %.200q here: see `colloid image ls`", what)
	case 1:
		if len(names) > 0 && len(names) < len(found[0].References) {
			return o.supervisor.images.Remove(ctx, found[0].Digest, names...)
		}
		if found[0].Users > 0 {
			return o.inUse(&found[0])
		}
		return o.supervisor.images.Remove(ctx, found[0].Digest)
	}
	return fmt.Errorf("%.200q means %d images here: name one by its digest", what, len(found))
}

// namesLike gives the names that mean the same as one that somebody wrote.
func namesLike(references []string, what string) (names []string) {
	full, _, fullErr := image.Normalize(what)
	for _, reference := range references {
		normalized, _, err := image.Normalize(reference)
		if reference == what || fullErr == nil && err == nil && normalized == full {
			names = append(names, reference)
		}
	}
	return names
}

// digitsMin is the shortest beginning of a digest that names an image.
const digitsMin = 6

func describeImage(i *image.Image) *operator.Image {
	return &operator.Image{Digest: i.Digest.String(), References: i.References, Size: i.Size, Created: i.Created,
		Architecture: i.Architecture, Loaded: i.Loaded, Instances: i.Users}
}

// throttle passes on at most a few reports a second.
func throttle(report func(image.Progress)) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			report(p)
		}
	}
}

const progressEvery = 250 * time.Millisecond

// openImages gives the client of this runnerd. What it may reach follows the policy as it changes.
func (s *Supervisor) openImages() error {
	client, err := image.Open(image.Options{
		Directory: filepath.Join(s.options.Directory, "images"), Credentials: s.options.Credentials,
		Owners: s.options.Owners, Log: s.options.Log, Hosts: s.registryHosts, Command: s.options.ImagesCommand,
		Peers: peers{s}, Share: s.sharing,
	})
	s.images = client
	return err
}

// certificatesMax bounds a file of certificates: all of them have to fit the message to a fetcher.
const certificatesMax = 16 << 10

// registryHosts gives what the policy says of single registries. It runs outside the loop.
func (s *Supervisor) registryHosts() []image.Host {
	var hosts []image.Host
	var files []string
	s.do(func() {
		for _, r := range s.policy.Registries {
			hosts = append(hosts, image.Host{Name: r.Host, HTTP: r.HTTP, Private: r.Private})
			files = append(files, r.CA)
		}
	})
	for i, path := range files {
		if path == "" {
			continue
		}
		text, err := s.readTrusted(path, certificatesMax)
		if err != nil {
			s.options.Log.Printf("registry %s: %v", hosts[i].Name, err)
			text = []byte("none") // not the system's: the policy says which
		}
		hosts[i].CA = text
	}
	return hosts
}

func (s *Supervisor) readTrusted(path string, limit int) ([]byte, error) {
	file, _, err := s.options.Owners.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text := make([]byte, limit+1)
	n, err := file.ReadAt(text, 0)
	if n > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	if n == 0 {
		return nil, err
	}
	return text[:n], nil
}
