package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// Request is one command, framed, authorised and, for Connect, resolved.
type Request struct {
	Code    uds.Code
	Payload []byte
	UID     uint32 // of the client, from the kernel
	// Connect only:
	Addresses []netip.AddrPort
	JoinKey   string // text behind #, empty if none
	Merge     bool
}

// Response is the answer: raw bytes for OK and Conflict (JSON), number and text for Error.
type Response struct {
	Status  uds.ReplyStatus
	Payload []byte
	Errno   uint16
	Text    string
	// File goes to the client with the reply. It stays the handler's, who is told by Ended when the client's
	// connection has ended, or the reply could not be sent.
	File  *os.File
	Ended func()
}

// Handler executes a request. It is called from a client's goroutine and may block; the context ends
// when the server closes.
type Handler func(ctx context.Context, request Request) Response

// Options of Listen.
type Options struct {
	// Path of the socket. Its directory is created with mode 0750 if missing.
	Path   string
	Handle Handler
	// OpenStream starts a stream for a client and returns at once. nil: this daemon has no streams.
	OpenStream func(open uds.StreamOpen, uid uint32, sink Sink) Handle
	// Log takes one line for people: each change, and each client that was turned away.
	Log func(line string)
	// UID of the daemon, who may do everything.
	UID uint32
	// ReadGroup and WriteGroup are group numbers, NoGroup for none.
	ReadGroup, WriteGroup int
	// Resolver is net.DefaultResolver if nil.
	Resolver Resolver

	// Trouble hears that the socket's file was taken away: what, what to do, and whether it is there again.
	Trouble func(text, hint string, repaired bool)

	// Shortened in tests.
	requestTimeout, watchInterval time.Duration
}

// DefaultOptions are those of this host: the user of this process, groups colloid and colloid-admin.
func DefaultOptions(path string, handle Handler) Options {
	return Options{
		Path: path, Handle: handle, UID: uint32(os.Geteuid()),
		ReadGroup: LookupGroup(uds.GroupRead), WriteGroup: LookupGroup(uds.GroupWrite),
	}
}

// ErrObstructed means that something lies at the socket's place that only a person can judge.
var ErrObstructed = errors.New("control")

// Server owns the socket.
type Server struct {
	options Options
	context context.Context
	cancel  context.CancelFunc
	group   sync.WaitGroup

	refusals refusals

	mutex    sync.Mutex // guards what follows
	listener *net.UnixListener
	place    place // of its file
	clients  map[*client]struct{}
	closed   bool

	invokeSecond time.Time // since when lines about invocations are counted
	invokeLines  int
	invokeUntold int // invocations without a line since the last one that had one
}

// Listen creates the socket. A socket that a dead daemon has left is replaced; one that answers is not.
func Listen(options Options) (*Server, error) {
	if err := uds.CheckPath(options.Path); err != nil {
		return nil, err
	}
	if options.Log == nil {
		options.Log = func(string) {}
	}
	if options.Resolver == nil {
		options.Resolver = net.DefaultResolver
	}
	if options.requestTimeout == 0 {
		options.requestTimeout = uds.RequestTimeoutSec * time.Second
	}
	if options.Trouble == nil {
		options.Trouble = func(string, string, bool) {}
	}
	if options.watchInterval == 0 {
		options.watchInterval = watchInterval
	}
	listener, mine, err := bind(&options)
	if err != nil {
		return nil, err
	}
	s := &Server{options: options, listener: listener, place: mine, clients: map[*client]struct{}{}}
	s.refusals.log = options.Log
	s.context, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

func bind(options *Options) (*net.UnixListener, place, error) {
	directory := filepath.Dir(options.Path)
	if err := os.MkdirAll(filepath.Dir(directory), 0o755); err != nil {
		return nil, place{}, fmt.Errorf("control: directory of the socket: %w", err)
	}
	err := os.Mkdir(directory, 0o750)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, place{}, fmt.Errorf("control: directory of the socket: %w", err)
	}
	if err == nil {
		options.giveToGroup(directory)
	}
	if err := removeStale(options.Path); err != nil {
		return nil, place{}, err
	}
	return listenAt(options)
}

// giveToGroup lets the reading group reach the socket. An unprivileged daemon outside that group
// cannot; then the file stays with its own group.
func (o *Options) giveToGroup(path string) {
	if o.ReadGroup == NoGroup {
		return
	}
	if err := os.Chown(path, -1, o.ReadGroup); err != nil {
		o.Log(fmt.Sprintf("control: %s cannot be given to group %d, its members have no access: %v",
			path, o.ReadGroup, err))
	}
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%w: %s exists and is not a socket: move it away", ErrObstructed, path)
	}
	connection, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		connection.Close()
	}
	if err == nil || !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("control: a daemon is running at %s already: stop it or set COLLOID_DIR", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}

// Serve accepts clients until Close; it returns nil then.
func (s *Server) Serve() error {
	go s.watch()
	for {
		connection, err := s.accept()
		if err != nil {
			if s.isClosed() {
				return nil
			}
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) ||
				errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) {
				s.options.Log(fmt.Sprintf("control: accept: %v", err))
				time.Sleep(100 * time.Millisecond) // descriptors come back when clients leave
				continue
			}
			return fmt.Errorf("control: %w", err)
		}
		s.admit(connection)
	}
}

func (s *Server) isClosed() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.closed
}

// Close removes the socket, cancels running requests and waits for the clients' goroutines.
func (s *Server) Close() error {
	s.mutex.Lock()
	s.closed = true
	if placeOf(s.options.Path) == s.place {
		os.Remove(s.options.Path)
	}
	err := s.listener.Close()
	for c := range s.clients {
		c.connection.Close()
	}
	s.mutex.Unlock()
	s.cancel()
	s.group.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// admit takes a client in or turns it away.
func (s *Server) admit(connection *net.UnixConn) {
	who, err := peerCredentials(connection)
	if err != nil {
		s.refuse(connection, uds.ErrorPermission, "the kernel does not say who you are: "+err.Error())
		return
	}
	may := s.levelOf(&who)
	if may == levelNone {
		s.refusals.say(time.Now(), refusedConnection, &who, "was refused")
		s.refuse(connection, uds.ErrorPermission, fmt.Sprintf(
			"uid %d may not use this daemon: run as root or join group %s", who.uid, uds.GroupRead))
		return
	}
	if reason := s.add(newClient(s, connection, who, may)); reason != "" {
		s.refusals.say(time.Now(), refusedPlace, &who, "was refused: %s", reason)
		s.refuse(connection, uds.ErrorBusy, reason)
	}
}

// refuse answers with one error and hangs up. The frame fits any socket buffer, so this waits for nobody.
// What the client writes then fails, and what it reads is the answer: package uds and the command line look
// there for the reason.
func (s *Server) refuse(connection *net.UnixConn, errno uint16, text string) {
	_ = connection.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = connection.Write(uds.AppendError(nil, errno, text))
	connection.Close()
}

// privileged is who has all places (see uds.RootClients).
func (s *Server) privileged(who *credentials) bool { return who.uid == 0 || who.uid == s.options.UID }

// add takes a client in and starts it, or says why not. When all places are taken that there are for its
// kind, the one of them that has idled longest gives way if it was idle for as long as a request may take; so
// nobody can block the socket by sitting on it.
func (s *Server) add(c *client) (refusal string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return "this daemon stops"
	}
	places := uds.ClientsMax
	if !s.privileged(&c.who) {
		if places -= uds.RootClients; c.may < levelWrite {
			places -= uds.OperatorClients
		}
		if !s.makeRoom(uds.UserClientsMax, func(other *client) bool { return other.who.uid == c.who.uid }) {
			return fmt.Sprintf("uid %d has %d connections already: close one", c.who.uid, uds.UserClientsMax)
		}
	}
	if !s.makeRoom(places, func(*client) bool { return true }) {
		return fmt.Sprintf("%d clients are connected already: close one", len(s.clients))
	}
	s.clients[c] = struct{}{}
	s.group.Go(c.read) // under the lock: Close must not wait before they are counted
	s.group.Go(c.write)
	return ""
}

// makeRoom reports whether there are less than places clients of a kind, after one that idles was sent away
// if need be.
func (s *Server) makeRoom(places int, kind func(*client) bool) bool {
	count := 0
	var idlest *client
	var idle time.Time
	for other := range s.clients {
		if !kind(other) {
			continue
		}
		count++
		if since := other.idleSince(); !since.IsZero() && (idlest == nil || since.Before(idle)) {
			idlest, idle = other, since
		}
	}
	if count < places {
		return true
	}
	if idlest == nil || count > places || time.Since(idle) < s.options.requestTimeout {
		return false
	}
	idlest.connection.Close()
	delete(s.clients, idlest)
	return true
}

func (s *Server) remove(c *client) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.clients, c)
}

// execute checks a request and has it done.
func (s *Server) execute(who *credentials, may level, code uds.Code, payload []byte) Response {
	need, known := levels[code]
	if !known {
		return failure(uds.ErrorInvalid,
			fmt.Sprintf("command %#x is unknown: the daemon may be of an earlier version", byte(code)))
	}
	if need > may {
		s.refusals.say(time.Now(), refusedCommand, who, "was refused %s", describe(code, payload))
		return failure(uds.ErrorPermission, fmt.Sprintf(
			"uid %d may read but not change: run as root or join group %s", who.uid, uds.GroupWrite))
	}
	request := Request{Code: code, Payload: payload, UID: who.uid}
	if code == uds.CodeConnect {
		if err := s.resolve(&request); err != nil {
			return failure(uds.ErrorInvalid, err.Error())
		}
	}
	if need == levelWrite {
		s.note(who, code, payload)
	}
	return s.options.Handle(s.context, request)
}

// invokeLinesPerSecond bounds the lines about invocations: there can be thousands a second, and they must not
// push everything else out of the log.
const invokeLinesPerSecond = 10

// note logs a change (F135). Invocations beyond invokeLinesPerSecond are counted in the next line about one.
func (s *Server) note(who *credentials, code uds.Code, payload []byte) {
	more := ""
	if code == uds.CodeWasmInvoke || code == uds.CodeWasmChannel {
		s.mutex.Lock()
		now := time.Now()
		if now.Sub(s.invokeSecond) >= time.Second {
			s.invokeSecond, s.invokeLines = now, 0
		}
		if s.invokeLines++; s.invokeLines > invokeLinesPerSecond {
			s.invokeUntold++
			s.mutex.Unlock()
			return
		}
		if s.invokeUntold > 0 {
			more = fmt.Sprintf(", and %d invocations before that have no line", s.invokeUntold)
			s.invokeUntold = 0
		}
		s.mutex.Unlock()
	}
	s.options.Log(fmt.Sprintf("control: uid %d (pid %d): %s%s", who.uid, who.pid, describe(code, payload), more))
}

func failure(errno uint16, text string) Response {
	return Response{Status: uds.Error, Errno: errno, Text: text}
}

// resolve fills in what Connect needs.
func (s *Server) resolve(request *Request) error {
	if len(request.Payload) < 1 || request.Payload[0] > 1 {
		return errors.New("malformed connect request")
	}
	target, err := ParseTarget(string(request.Payload[1:]))
	if err != nil {
		return err
	}
	request.Addresses, err = Resolve(s.context, s.options.Resolver, target)
	request.JoinKey, request.Merge = target.Key, request.Payload[0] == 1
	return err
}

// describe names a change for the log, without values and without keys of clusters.
func describe(code uds.Code, payload []byte) string {
	switch code {
	case uds.CodeSet, uds.CodeDelete, uds.CodeResolve:
		name := map[uds.Code]string{uds.CodeSet: "set", uds.CodeDelete: "delete", uds.CodeResolve: "resolve"}[code]
		if w, err := uds.ParseWriteRequest(payload); err == nil {
			return fmt.Sprintf("%s %q", name, w.Key)
		}
		return name
	case uds.CodeConnect:
		if len(payload) > 0 {
			if target, err := ParseTarget(string(payload[1:])); err == nil {
				return fmt.Sprintf("connect to %s", net.JoinHostPort(target.Host, fmt.Sprint(target.Port)))
			}
		}
		return "connect"
	case uds.CodeLeave:
		return "leave"
	case uds.CodeAcceptLoss:
		return "accept-loss"
	case uds.CodeForget:
		return fmt.Sprintf("forget %x", payload[:min(len(payload), 8)])
	case uds.CodeDrain:
		return fmt.Sprintf("drain %x", payload[:min(len(payload), 9)])
	case uds.CodeEnvironment: // never the values
		if r, err := uds.ParseEnvironmentRequest(payload); err == nil {
			return fmt.Sprintf("environment of %q", r.Key)
		}
		return "environment"
	case uds.CodeWasmInvoke: // never the arguments
		if name, call, err := invoke.ParseCall(payload); err == nil {
			return fmt.Sprintf("invoke %q of %q", call.Function, name)
		}
		return "invoke"
	case uds.CodeWasmChannel:
		return fmt.Sprintf("channel to %.80q", payload)
	case uds.CodeDoor:
		return fmt.Sprintf("door %x", payload[:min(len(payload), 1)])
	}
	return fmt.Sprintf("command %#x", byte(code))
}

// frame encodes a response.
func frame(r Response) []byte {
	switch r.Status {
	case uds.OK:
		if len(r.Payload) <= uds.ReplyMax {
			return uds.AppendReply(nil, r.Payload)
		}
		return uds.AppendError(nil, uds.ErrorIO,
			fmt.Sprintf("the reply has %d bytes, %d are possible", len(r.Payload), uds.ReplyMax))
	case uds.NotFound:
		return uds.AppendFrame(nil, byte(uds.NotFound), nil)
	case uds.Conflict:
		if len(r.Payload) <= uds.OutputQueueMax {
			return uds.AppendFrame(nil, byte(uds.Conflict), r.Payload)
		}
		small, _ := json.Marshal(uds.Entries{}) // too many values to show: the refusal itself counts
		return uds.AppendFrame(nil, byte(uds.Conflict), small)
	case uds.Error:
		return uds.AppendError(nil, r.Errno, r.Text)
	}
	panic(fmt.Sprintf("control: response with status %d", r.Status))
}
